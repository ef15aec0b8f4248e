#!/usr/bin/env bash
# Outlast and its peers, as they are published: their clients drive our server, and our client drives their servers. What a
# peer cannot do is named. interop/README.md says what each of them offers.
#
#   scripts/interop.sh                        all of it
#   scripts/interop.sh PART...                some of it: inspector, ext-tasks, fastmcp-client, which drive our server;
#                                             outlast, rmcp, fastmcp, turul, turul-2025, typescript-2025, which our client drives
#   scripts/interop.sh --prepare [PART...]    only install and build what the parts need
#   scripts/interop.sh --serve SERVER [PORT]  only serve one of these servers, for a client of yours
#
# Needs cargo; npm for inspector, ext-tasks and typescript-2025; Python 3.11 or newer with venv for fastmcp and fastmcp-client.
# A part whose tools cannot be installed is named as not checked, the others run, and the script fails.
#
# Environment: INTEROP_TOOLS is where the packages of npm go (target/interop-tools); PYTHON and FASTMCP_PYTHON as
# scripts/fastmcp.sh has them.
set -euo pipefail

# What is pinned: these, the crates in interop/Cargo.lock, and FastMCP in scripts/fastmcp.sh.
inspector=@modelcontextprotocol/inspector@2.12.0
ext_tasks=@modelcontextprotocol/ext-tasks@0.2.2
# The SDK that this version of the Inspector is built on, and one that ext-tasks asks for (^2.0.0).
typescript_sdk=@modelcontextprotocol/client@2.3.1
# The last line of the SDK that has the tasks of protocol 2025-11-25.
typescript_sdk_2025=@modelcontextprotocol/sdk@1.32.2
# The longest that one part may take when nothing hangs, several times over.
part_seconds=300

all=(inspector ext-tasks fastmcp-client outlast rmcp fastmcp turul turul-2025 typescript-2025)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=${INTEROP_TOOLS:-target/interop-tools}

die() { echo "interop: $*" >&2; exit 2; }
. scripts/node.sh

only=
parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --prepare) only=prepare; shift ;;
    --serve) [ -n "${2-}" ] || die "--serve needs a server"; only=serve; parts=("$2"); port=${3:-0}; break ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) [[ " ${all[*]} " == *" $1 "* ]] || die "unknown argument $1 (see --help)"; parts+=("$1"); shift ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")

scratch=$(mktemp -d)
server_pid=
stop() {
  [ -n "$server_pid" ] || return 0
  kill "$server_pid" 2>/dev/null || true
  # What it holds is in memory, or goes with the folder: there is nothing to wait long for.
  for _ in $(seq 30); do
    kill -0 "$server_pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=
}
trap 'stop; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Builds a binary of interop/ and prints where it is. Shares the folder of the main build, as far as both need the same.
built() {
  local package=$1 binary=$2 path
  path=$(CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} cargo build --quiet --locked \
    --manifest-path interop/Cargo.toml --message-format=json-render-diagnostics -p "$package" --bin "$binary" |
    sed -n 's/.*"kind":\["bin"\].*"executable":"\([^"]*\)".*/\1/p') || die "could not build $binary"
  [ -x "$path" ] || die "could not build $binary"
  echo "$path"
}

fastmcp_python() {
  scripts/fastmcp.sh --prepare >&2 || die "could not install FastMCP"
  scripts/fastmcp.sh --find-python
}

# Prints the command that serves SERVER, one word a line.
server() {
  local python node
  case $1 in
    outlast | rmcp) built interop-servers "serve-$1" ;;
    turul | turul-2025) built "interop-$1" "serve-$1" ;;
    fastmcp) python=$(fastmcp_python) && printf '%s\n' "$python" interop/fastmcp_server.py ;;
    typescript-2025)
      node=$(find_node "$tools/node") || return
      npm_install "$tools/$1" "$typescript_sdk_2025"
      # A module is looked for beside what imports it.
      cp interop/typescript_2025_server.mjs "$tools/$1/"
      printf '%s\n' "$node" "$tools/$1/typescript_2025_server.mjs"
      ;;
    *) die "there is no server $1" ;;
  esac
}

# The packages of the clients in JavaScript, with those beside them.
npm_clients() {
  node=$(find_node "$tools/node") || return
  npm_install "$tools/clients" "$inspector" "$ext_tasks" "$typescript_sdk"
  cp interop/*.mjs "$tools/clients/"
}

# Starts SERVER and sets `url`.
start() {
  local command
  mapfile -t command < <(server "$1")
  [ ${#command[@]} -gt 0 ] || die "there is no server $1"
  : >"$scratch/stdout"  # read below, perhaps before the server's process has opened it
  "${command[@]}" >"$scratch/stdout" 2>"$scratch/stderr" &
  server_pid=$!
  url=
  for _ in $(seq 300); do
    url=$(sed -n '1s/^listening on //p' "$scratch/stdout")
    [ -z "$url" ] || return 0
    kill -0 "$server_pid" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$scratch/stderr" >&2
  die "the server $1 did not start"
}

limited() {
  if command -v timeout >/dev/null; then
    timeout --foreground --kill-after 5 "$part_seconds" "$@"
  else
    "$@"
  fi
}

if [ "$only" = serve ]; then
  mapfile -t command < <(server "${parts[0]}")
  [ ${#command[@]} -gt 0 ] || exit 2
  rm -rf "$scratch"
  exec "${command[@]}" "$port"
fi

# A part is a preparation, which may find a registry out of reach, and the checks.
prepare() {
  case $1 in
    inspector | ext-tasks) npm_clients && server outlast ;;
    # It has a server of its own.
    fastmcp-client)
      fastmcp_python && { cargo build --quiet --locked -p outlast --example conformance_server ||
        die "could not build the conformance server"; }
      ;;
    *) built interop-walk walk && server "$1" ;;
  esac
}

check() {
  # A proxy that the environment names would be asked for the loopback address too.
  export NO_PROXY="127.0.0.1${NO_PROXY:+,$NO_PROXY}"
  export no_proxy=$NO_PROXY
  case $1 in
    inspector | ext-tasks)
      npm_clients || return
      start outlast
      limited "$node" "$tools/clients/${1//-/_}_client.mjs" "$url"
      ;;
    fastmcp-client) limited scripts/fastmcp.sh ;;
    *)
      local walk
      walk=$(built interop-walk walk) || return
      start "$1"
      limited "$walk" "$1" "$url"
      ;;
  esac
}

declare -A title=(
  [inspector]="the MCP Inspector's command lines drive our server"
  [ext-tasks]="the official TypeScript client with ext-tasks drives our server"
  [fastmcp-client]="FastMCP's client drives our server"
  [outlast]="our client drives our server"
  [rmcp]="our client drives rmcp's TaskManager"
  [fastmcp]="our client drives FastMCP's server"
  [turul]="our client drives turul's server"
  [turul-2025]="our client drives turul's server of protocol 2025-11-25"
  [typescript-2025]="our client drives the official TypeScript server of protocol 2025-11-25"
)

failed=()
: >"$scratch/lines"
for part in "${parts[@]}"; do
  printf '\n== %s: %s\n' "$part" "${title[$part]}"
  if ! (trap - EXIT; prepare "$part" >/dev/null) 2>"$scratch/why"; then
    tail -n 40 "$scratch/why" >&2
    echo "not checked $part: $(sed -n 's/^interop: //p' "$scratch/why" | tail -n 1)"
    failed+=("$part")
    continue
  fi
  [ -z "$only" ] || { echo "all there"; continue; }
  # In a shell of its own, which stops its server whatever happens.
  if ! (trap stop EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; check "$part") 2>"$scratch/last-words" |
      tee -a "$scratch/lines"; then
    failed+=("$part")
    tail -q -n 20 "$scratch/last-words" "$scratch/stderr" 2>/dev/null >&2 || true
  fi
done
[ -z "$only" ] || { [ ${#failed[@]} -eq 0 ]; exit; }

count() { grep -c "^$1 " "$scratch/lines" || true; }
printf '\ninterop: %s ok, %s failed, %s not offered by a peer' "$(count ok)" "$(count FAIL)" "$(count 'not offered')"
if [ ${#failed[@]} -gt 0 ]; then
  echo "; not passed: ${failed[*]}"
  exit 1
fi
echo
