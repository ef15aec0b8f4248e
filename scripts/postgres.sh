#!/usr/bin/env bash
# Starts a throwaway PostgreSQL on loopback, for tests, and removes it when the process that it is for has ended.
#
#   scripts/postgres.sh start --for PID [--durable] [--tls]
#                                        prints its URL, and on a second line its folder
#   scripts/postgres.sh kill FOLDER      as a crash would: with SIGKILL, every process of it
#   scripts/postgres.sh again FOLDER     starts it again, where it was
#   scripts/postgres.sh stop FOLDER      stops and removes it
#   scripts/postgres.sh nextest          starts one for the tests of this run, as a setup script of cargo-nextest
#
# With --durable it syncs what it commits; else it does not, which suits all that does not pull its plug. With --tls it can
# be spoken to encrypted, and its certificate, for 127.0.0.1, is FOLDER/server.crt; that needs openssl. It takes PostgreSQL's programs from PATH or /usr/lib/postgresql, and where there are none installs Debian's package if it may. As
# root it runs them as the user postgres, or nobody: PostgreSQL refuses root.
#
# Environment: OUTLAST_TEST_POSTGRES, the URL of a server to use instead (start and nextest).
set -euo pipefail

die() { echo "postgres.sh: $*" >&2; exit 2; }

# Where PostgreSQL's programs are.
programs() {
  local found
  if command -v initdb >/dev/null && command -v postgres >/dev/null; then
    dirname "$(command -v initdb)"
    return
  fi
  found=$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -1)
  [ -n "$found" ] && dirname "$found"
}

bin=$(programs) || {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    {
      apt-get update -qq || true
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
    } >/dev/null 2>&1 || true
  fi
  bin=$(programs) || die "PostgreSQL is needed; install it (Debian: apt-get install postgresql) and run this again, \
or set OUTLAST_TEST_POSTGRES to the URL of a server that tests may use"
}

user=
if [ "$(id -u)" = 0 ]; then
  user=nobody
  id postgres >/dev/null 2>&1 && user=postgres
fi

# Runs a program as the user that PostgreSQL runs as.
as_user() {
  if [ -n "$user" ]; then (cd / && runuser -u "$user" -- "$@"); else "$@"; fi
}

# A new folder that the user can reach.
folder() {
  local base made
  for base in "${TMPDIR:-/tmp}" /tmp; do
    made=$(mktemp -d "$base/outlast-postgres.XXXXXX") || continue
    [ -z "$user" ] || chown "$user" "$made"
    if as_user test -w "$made"; then
      echo "$made"
      return
    fi
    rm -rf "$made"
  done
  die "found no place for a database"
}

run() {
  local dir=$1 port
  port=$(cat "$dir/port")
  # Waits until it answers.
  as_user "$bin/pg_ctl" -D "$dir/data" -l "$dir/server.log" -w -t 60 -o "-p $port" start >/dev/null
}

# Says why a database could not be made, and leaves nothing of it.
give_up() {
  local why
  why="$2: $(tail -n 5 "$1"/*.log)"
  rm -rf "$1"
  die "$why"
}

start() {
  local pid= durable= tls= dir try
  while [ $# -gt 0 ]; do
    case $1 in
      --for) pid=${2:-}; shift 2 ;;
      --durable) durable=1; shift ;;
      --tls) tls=1; shift ;;
      *) die "unknown argument $1" ;;
    esac
  done
  [ -n "$pid" ] || die "start needs --for PID"
  dir=$(folder)
  head -c 18 /dev/urandom | base64 | tr '+/' 'ab' >"$dir/password"
  [ -z "$user" ] || chown "$user" "$dir/password"
  # Nothing of it has to outlast the machine.
  as_user "$bin/initdb" -D "$dir/data" -U outlast --pwfile="$dir/password" -A scram-sha-256 -E UTF8 --locale=C \
    --no-sync >"$dir/initdb.log" 2>&1 || give_up "$dir" "initdb failed"
  {
    echo "listen_addresses = '127.0.0.1'"
    echo "unix_socket_directories = ''"
    echo "max_connections = 300"
    echo "shared_buffers = 64MB"
    [ -n "$durable" ] || echo "fsync = off"
  } | as_user tee -a "$dir/data/postgresql.conf" >/dev/null
  if [ -n "$tls" ]; then
    as_user openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=outlast -keyout "$dir/server.key" \
      -out "$dir/server.crt" -addext "basicConstraints=critical,CA:FALSE" -addext "subjectAltName=IP:127.0.0.1" \
      >"$dir/openssl.log" 2>&1 || give_up "$dir" "openssl failed"
    printf "ssl = on\nssl_cert_file = '%s/server.crt'\nssl_key_file = '%s/server.key'\n" "$dir" "$dir" |
      as_user tee -a "$dir/data/postgresql.conf" >/dev/null
  fi
  for try in 1 2 3 4 5 6 7 8; do
    echo $((20000 + (RANDOM * 32768 + RANDOM) % 40000)) >"$dir/port"
    if run "$dir"; then
      # Without any handle of ours, so that nobody waits for it.
      setsid bash -c 'while kill -0 "$1" 2>/dev/null; do sleep 1; done; exec "$2" stop "$3"' watcher \
        "$pid" "$(realpath "${BASH_SOURCE[0]}")" "$dir" </dev/null >/dev/null 2>&1 &
      echo "postgres://outlast:$(cat "$dir/password")@127.0.0.1:$(cat "$dir/port")/postgres"
      echo "$dir"
      return
    fi
  done
  give_up "$dir" "it does not start"
}

# Every process of the server: itself first, so that it does not clean up after the others.
processes() {
  local first
  first=$(head -1 "$1/data/postmaster.pid" 2>/dev/null) || return 0
  echo "$first"
  pgrep -P "$first" || true
}

crash() {
  local each all
  all=$(processes "$1")
  for each in $all; do kill -KILL "$each" 2>/dev/null || true; done
  for each in $all; do while kill -0 "$each" 2>/dev/null; do sleep 0.02; done; done
}

stop() {
  as_user "$bin/pg_ctl" -D "$1/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$1"
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
  start)
    if [ -n "${OUTLAST_TEST_POSTGRES:-}" ]; then echo "$OUTLAST_TEST_POSTGRES"; else start "$@"; fi ;;
  nextest)
    if [ -z "${OUTLAST_TEST_POSTGRES:-}" ]; then
      url=$(start --for "$PPID")
      echo "OUTLAST_TEST_POSTGRES=${url%%$'\n'*}" >>"${NEXTEST_ENV:?is set by cargo-nextest}"
    fi ;;
  kill) crash "${1:?folder}" ;;
  again) rm -f "${1:?folder}/data/postmaster.pid"; run "$1" ;;
  stop) stop "${1:?folder}" ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; [ "$command" = --help ] || exit 2 ;;
esac
