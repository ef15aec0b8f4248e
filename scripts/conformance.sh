#!/usr/bin/env bash
# Runs the official MCP conformance suite against the conformance server of the crate `outlast`
# (crates/outlast/examples/conformance_server) and with the conformance client of the crate `outlast-client`
# (crates/outlast-client/examples/conformance_client), and through the gateway, with the same server without tasks behind
# it; and compares the results with conformance-expected.tsv.
#
#   scripts/conformance.sh                      all three
#   scripts/conformance.sh --only server        only one of them: server, client or gateway
#   scripts/conformance.sh --only replicas      two servers on one PostgreSQL behind a balancer that sends each request to the
#                                               other one; without the sessions of 2025-11-25, which are of one server
#   scripts/conformance.sh --server-url URL     test a server that runs already (on localhost)
#   scripts/conformance.sh --prepare            only install what the test needs
#
# Needs npm, and Node 22.19 or newer; an older Node is enough where npm has one to install.
# Tools are kept in target/conformance-tools.
set -euo pipefail

suite=@modelcontextprotocol/conformance
suite_version=0.2.0-alpha.12
# The most that one scenario may take; the longest takes a few seconds.
scenario_seconds=120

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(dirname "$here")
tools=$repo/target/conformance-tools
expected=$here/conformance-expected.tsv

die() { echo "conformance: $*" >&2; exit 1; }

url=
only=
prepare_only=
while [ $# -gt 0 ]; do
  case $1 in
    --server-url) [ -n "${2-}" ] || die "--server-url needs a URL"; url=$2; only=server; shift 2 ;;
    --only)
      case ${2-} in
        server | client | gateway | replicas) only=$2; shift 2 ;;
        *) die "--only needs server, client, gateway or replicas" ;;
      esac ;;
    --prepare) prepare_only=1; shift ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument $1 (see --help)" ;;
  esac
done

scratch=$(mktemp -d)
pids=()
cleanup() {
  # Their databases go with them, so there is nothing to drain for.
  for pid in ${pids[@]+"${pids[@]}"}; do
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

. "$here/node.sh"
node=$(find_node "$tools/node")
npm_install "$tools/suite" "$suite@$suite_version"
[ -z "$prepare_only" ] || exit 0
conformance=("$node" "$tools/suite/node_modules/$suite/dist/index.js")

# Cargo knows where it puts what it builds.
example() {
  local built
  built=$(cd "$repo" && cargo build --locked --message-format=json-render-diagnostics -p "$1" --example "$2" |
    sed -n 's/.*"kind":\["example"\].*"executable":"\([^"]*\)".*/\1/p')
  [ -x "$built" ] || die "cargo did not say where $2 is"
  echo "$built"
}

# Starts a server, and says where it is: the port is the system's choice, so its first line is the only one to know it.
start() {
  local name=$1
  shift
  : >"$scratch/$name.out"  # read below, perhaps before the server's process has opened it
  "$@" >"$scratch/$name.out" 2>"$scratch/$name.err" &
  pids+=($!)
  started=
  for _ in $(seq 300); do
    started=$(sed -n '1s/^listening on //p' "$scratch/$name.out")
    [ -z "$started" ] || return 0
    kill -0 "${pids[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$scratch/$name.err" >&2
  die "the $name did not start"
}

versions=(2026-07-28 2025-11-25)
if [ "$only" = replicas ]; then
  store=$("$here/postgres.sh" start --for $$ | head -1)
  server=$(example outlast conformance_server)
  balancer=$(example outlast round_robin)
  replicas=()
  # What their handler needs beside its tasks: a key for what it seals, and word of its lists.
  mkdir "$scratch/shared"
  head -c 64 /dev/urandom >"$scratch/shared/key"
  for name in one two; do
    start "$name" "$server" --listen 127.0.0.1:0 --store "$store" --shared "$scratch/shared"
    replica=${started#http://}
    replicas+=("${replica%/mcp}")
  done
  start balancer "$balancer" 127.0.0.1:0 "${replicas[@]}"
  url=$started
  only=server
  versions=(2026-07-28)
fi

wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }

if wants client; then
  client=$(example outlast-client conformance_client)
fi
if wants server && [ -z "$url" ]; then
  server=$(example outlast conformance_server)
  start server "$server" --listen 127.0.0.1:0 --db "$scratch/tasks.db"
  url=$started
fi
if wants gateway; then
  server=$(example outlast conformance_server)
  gateway=$(example outlast-gateway in_front)
  start upstream "$server" --listen 127.0.0.1:0
  start gateway "$gateway" "$started" 127.0.0.1:0 "$scratch/gateway.db"
  gateway_url=$started
fi

# What the suite itself has, so that a scenario which a new version adds cannot be overlooked.
names() { sed -n '/^Server scenarios/,/^$/s/^  - \([^ ]*\).*/\1/p'; }
mkdir "$scratch/scenarios"
if wants server; then
  "${conformance[@]}" list --server | names | grep '^tasks-' >"$scratch/scenarios/tasks"
  for version in "${versions[@]}"; do
    "${conformance[@]}" list --server --requirements "$version" | names >"$scratch/scenarios/$version"
  done
fi
if wants gateway; then
  "${conformance[@]}" list --server --requirements 2026-07-28 | names >"$scratch/scenarios/gateway"
fi
if wants client; then
  # Other extensions (skills, further ways of authorization) are not this client's.
  "${conformance[@]}" list --client | grep -v '\[extension\]' | sed -n 's/^  - \([^ ]*\).*/\1/p' \
    >"$scratch/scenarios/client"
fi

# A scenario that hangs is one that failed: it leaves no checks.
limited() {
  if command -v timeout >/dev/null; then
    timeout --foreground --kill-after 5 "$scenario_seconds" "$@"
  else
    "$@"
  fi
}

# The verdict is in checks.json: the suite's exit status is 0 for a skipped check and for a skipped scenario.
while IFS=$'\t' read -r part scenario _; do
  case $part in ''|'#'*) continue ;; esac
  [ -f "$scratch/scenarios/$part" ] || continue
  # Extension scenarios belong to no version; asking for one would skip them. A client finds out the version by itself.
  case $part in
    tasks | client) version=() ;;
    gateway) version=(--spec-version 2026-07-28) ;;
    *) version=(--spec-version "$part") ;;
  esac
  echo "running $part $scenario" >&2
  ended=0
  case $part in
    client) way=(client --command "$client") ;;
    gateway) way=(server --url "$gateway_url" "${version[@]}") ;;
    *) way=(server --url "$url" ${version[@]+"${version[@]}"}) ;;
  esac
  limited "${conformance[@]}" "${way[@]}" --scenario "$scenario" \
    --output-dir "$scratch/results/$part/$scenario" </dev/null >"$scratch/last.log" 2>&1 || ended=$?
  # What `timeout` ends with.
  case $ended in 124 | 137) echo "$part $scenario took more than $scenario_seconds s and was stopped" >&2 ;; esac
done <"$expected"

if ! "$node" "$here/conformance-summary.mjs" "$expected" "$scratch/scenarios" "$scratch/results"; then
  for name in server gateway one two; do
    [ -s "$scratch/$name.err" ] || continue
    echo "the last words of the $name:" >&2
    tail -n 20 "$scratch/$name.err" >&2
  done
  exit 1
fi
