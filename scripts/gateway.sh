#!/usr/bin/env bash
# The gateway in front of servers as they are published, called by clients as they are published.
#
#   scripts/gateway.sh                     all of it
#   scripts/gateway.sh [UPSTREAM...]       in front of these: everything, everything-http, plain, plain-http,
#                                          plain-2025
#   scripts/gateway.sh --prepare           only install and build what it needs
#
# The servers: @modelcontextprotocol/server-everything, of protocol 2025-11-25, and interop/gateway/plain_server.py, written
# with the official Python package; each as a process of the gateway's, and over Streamable HTTP; and the latter as a process
# that is spoken to in 2025-11-25, though it takes 2026-07-28. The clients: `outlast call`;
# the official TypeScript client with ext-tasks; and the official Python client, which knows nothing of tasks, in both of its
# protocols. What a pair cannot do is named.
#
# Needs cargo, npm, and Python 3.11 or newer with venv. What cannot be installed is named as not checked, the rest runs, and
# the script fails.
#
# Environment: GATEWAY_TOOLS is where the packages go (target/gateway-tools); PYTHON is the interpreter to use; OUTLAST a
# binary that is built already.
set -euo pipefail

# What is pinned.
everything=@modelcontextprotocol/server-everything@2026.8.31
clients=(@modelcontextprotocol/ext-tasks@0.2.2 @modelcontextprotocol/client@2.3.1)
python_packages=(mcp==2.3.0 mcp-types==2.3.0)
# The longest that one client may take when nothing hangs, several times over.
client_seconds=200
# How long the gateway holds a call of a caller without tasks. interop/gateway/host.py goes by it.
hold=4s

all=(everything everything-http plain plain-http plain-2025)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=${GATEWAY_TOOLS:-target/gateway-tools}

die() { echo "gateway.sh: $*" >&2; exit 2; }
. scripts/node.sh

only=
upstreams=()
while [ $# -gt 0 ]; do
  case $1 in
    --prepare) only=prepare ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) [[ " ${all[*]} " == *" $1 "* ]] || die "unknown argument $1 (see --help)"; upstreams+=("$1") ;;
  esac
  shift
done
[ ${#upstreams[@]} -gt 0 ] || upstreams=("${all[@]}")

# The environment with the official Python package, made once.
install_python() {
  local venv=$tools/python python
  [ "$(cat "$venv/pins" 2>/dev/null)" = "${python_packages[*]}" ] && "$venv/bin/python" -c '' 2>/dev/null && return
  # One that was made for FastMCP is no answer here: it says which interpreter is right, and no more.
  python=$(FASTMCP_PYTHON='' scripts/fastmcp.sh --find-python) || die "needs Python 3.11 or newer with its venv module"
  echo "installing ${python_packages[*]}" >&2
  "$python" -m venv --clear "$venv" >&2 &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${python_packages[@]}" >&2 ||
    die "could not install ${python_packages[*]}"
  echo "${python_packages[*]}" >"$venv/pins"
}

# What cannot be had is said, and set down in `missing`.
missing=()
prepare() {
  if node=$(find_node "$tools/node") && (npm_install "$tools/everything" "$everything") &&
     (npm_install "$tools/clients" "${clients[@]}"); then
    cp interop/checks.mjs interop/gateway/*.mjs "$tools/clients/"
  else
    missing+=(npm)
  fi
  (install_python) || missing+=(python)
  outlast=${OUTLAST:-}
  if [ -z "$outlast" ]; then
    outlast=$(cargo build --quiet --locked --message-format=json-render-diagnostics -p outlast-cli --bin outlast |
      sed -n 's/.*"kind":\["bin"\].*"executable":"\([^"]*\)".*/\1/p')
  fi
  [ -x "$outlast" ] || die "could not build outlast"
  python=$tools/python/bin/python
}
has() { [[ " ${missing[*]-} " != *" $1 "* ]]; }

prepare
if [ "$only" = prepare ]; then
  [ ${#missing[@]} -eq 0 ] || die "not installed: ${missing[*]}"
  echo "all there"
  exit
fi

scratch=$(mktemp -d)
started=()
stop() {
  local pid
  for pid in "${started[@]-}"; do
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
  done
  for pid in "${started[@]-}"; do
    [ -n "$pid" ] || continue
    for _ in $(seq 30); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  started=()
}
trap 'stop; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A proxy that the environment names would be asked for the loopback address too.
export NO_PROXY="127.0.0.1${NO_PROXY:+,$NO_PROXY}"
export no_proxy=$NO_PROXY

# Starts COMMAND, whose words are kept under NAME, and waits until it says where it listens, by the pattern that sed knows.
# Sets `url`.
start() {
  local name=$1 pattern=$2
  shift 2
  : >"$scratch/$name"  # read below, perhaps before the process has opened it
  "$@" >"$scratch/$name" 2>&1 &
  local pid=$!
  started+=("$pid")
  url=
  for _ in $(seq 300); do
    url=$(sed -n "$pattern" "$scratch/$name" | head -n 1)
    [ -z "$url" ] || return 0
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$scratch/$name" >&2
  echo "gateway.sh: $name did not start" >&2
  return 1
}

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Starts the gateway in front of UPSTREAM; sets `url`.
serve() {
  local server=() port
  case $1 in
    everything) server=(-- "$node" "$tools/everything/node_modules/@modelcontextprotocol/server-everything/dist/index.js") ;;
    everything-http)
      port=$(free_port)
      start server "s|.*listening on port \([0-9]*\).*|http://127.0.0.1:\1/mcp|p" env PORT="$port" \
        "$node" "$tools/everything/node_modules/@modelcontextprotocol/server-everything/dist/index.js" streamableHttp ||
        return
      server=(--upstream "$url")
      ;;
    plain) server=(-- "$python" interop/gateway/plain_server.py) ;;
    plain-2025) server=(--protocol 2025-11-25 -- "$python" interop/gateway/plain_server.py) ;;
    plain-http)
      start server 's|^listening on ||p' "$python" interop/gateway/plain_server.py 0 || return
      server=(--upstream "$url")
      ;;
  esac
  rm -f "$scratch"/tasks.db*
  start gateway 's|^listening on ||p' \
    "$outlast" gateway --listen 127.0.0.1:0 --db "$scratch/tasks.db" --hold "$hold" --start 1s "${server[@]}"
}

limited() {
  if command -v timeout >/dev/null; then
    timeout --foreground --kill-after 5 "$client_seconds" "$@"
  else
    "$@"
  fi
}

# One line for a check by `outlast`, which is to end with EXIT and to say WORDS. Leaves what it said in `said`.
said=
check() {
  local name=$1 exit=$2 words=$3 status=0
  shift 3
  said=$(limited "$outlast" "$@" </dev/null 2>&1) || status=$?
  said=$(tr -s '[:space:]' ' ' <<<"$said")
  if [ "$status" = "$exit" ] && grep -qF -- "$words" <<<"$said"; then
    echo "ok $name: ${said:0:160}"
  else
    echo "FAIL $name: exit $status, not $exit with \"$words\": ${said:0:300}"
    return 1
  fi
}

# Answers the question that the last check left open, by the name that it gave, and waits for a result that says WORDS.
check_answered() {
  local words=$1 content=${2:-'{"name": "Ada"}'}
  local key handle
  key=$(sed -n 's/.*the question "\([^"]*\)".*/\1/p' <<<"$said")
  handle=$(sed -n 's/.*outlast tasks resume \([^`]*\)`.*/\1/p' <<<"$said")
  check "the answer, later" 0 "" tasks answer "$handle" "$key" "{\"action\": \"accept\", \"content\": $content}" &&
    check "its result" 0 "$words" tasks watch "$handle"
}

# Two calls that ask at the same time. Over standard input and output a server of 2025-11-25 cannot say which of them asks.
two_at_once() {
  local first second
  check "one of two questions at once" 8 "was not answered" call "$url" trigger-elicitation-request || return
  first=$said
  second=$("$outlast" call "$url" trigger-elicitation-request </dev/null 2>&1) || true
  if [ "$1" = everything ] && grep -qF "does not say to which call it belongs" <<<"$second"; then
    echo "not offered two questions at once by $1: as a process, it does not say which of its calls asks"
  else
    said=$(tr -s '[:space:]' ' ' <<<"$second")
    check_answered "- Name: Ada" || return
  fi
  said=$first
  check_answered "- Name: Ada"
}

# A question in the middle of a call of UPSTREAM, as servers ask that were written before 2026-07-28.
within() {
  said=$("$outlast" call "$url" asks_within </dev/null 2>&1) || true
  if [ "$1" != plain-2025 ] && grep -qF "no back-channel" <<<"$said"; then
    echo "not offered a question in the middle of a call by the Python package: it speaks 2026-07-28 to whoever can, and has" \
      "only parameters that are asked for there"
  else
    said=$(tr -s '[:space:]' ' ' <<<"$said")
    check_answered "asks_within: hello Ada"
  fi
}

# What `outlast call` brings, UPSTREAM being a plain one or not.
outlast_calls() {
  local failed=0 name
  case $1 in
    everything*)
      check "quick" 0 "Echo: hi" call "$url" echo --arg message=hi || failed=1
      check "slow call as task" 0 "Long running operation completed" \
        call "$url" trigger-long-running-operation '{"duration": 3, "steps": 3}' || failed=1
      check "elicitation, which nobody answers" 8 "was not answered" call "$url" trigger-elicitation-request || failed=1
      check_answered "- Name: Ada" || failed=1
      check "an upstream's own task" 0 "Research Report: python" \
        call "$url" simulate-research-query '{"topic": "python"}' || failed=1
      check "an upstream's own task asks" 8 "was not answered" \
        call "$url" simulate-research-query '{"topic": "python", "ambiguous": true}' || failed=1
      check_answered "python (snake)" '{"interpretation": "snake"}' || failed=1
      two_at_once "$1" || failed=1
      check "a tool's error" 3 "not found" call "$url" no-such-tool || failed=1
      name=$("$outlast" call "$url" trigger-long-running-operation '{"duration": 60, "steps": 60}' --detach 2>/dev/null) || true
      ;;
    *)
      check "quick" 0 "0" call "$url" times --arg label=never || failed=1
      check "slow call as task" 0 "slow: done" call "$url" slow --arg seconds=3 || failed=1
      check "elicitation, which nobody answers" 8 "was not answered" call "$url" asks || failed=1
      check_answered "asks: hello Ada" || failed=1
      within "$1" || failed=1
      check "a tool's error" 3 "it went wrong, as it should" call "$url" fails || failed=1
      name=$("$outlast" call "$url" cancellable --arg label=cancelled-by-outlast --detach 2>/dev/null) || true
      ;;
  esac
  echo "not offered sampling by outlast call: it has no model, and does not declare that it has"
  check "cancel" 0 "the task is" tasks cancel "$name" || failed=1
  if [[ $1 == plain* ]]; then
    check "cancelled at the server too" 0 "yes" call "$url" was_cancelled --arg label=cancelled-by-outlast || failed=1
  fi
  return $failed
}

declare -A title=(
  [everything]="server-everything, as a process"
  [everything-http]="server-everything, over HTTP"
  [plain]="a server of the official Python package, as a process"
  [plain-http]="a server of the official Python package, over HTTP"
  [plain-2025]="a server of the official Python package, as a process, in protocol 2025-11-25"
)

# One client: its lines as they come, and after them, if it failed, its last words.
run() {
  printf '\n-- %s\n' "$1"
  shift
  "$@" 2>"$scratch/last-words" && return
  failed=1
  tail -q -n 20 "$scratch/last-words" "$scratch/gateway" 2>/dev/null
}

# Everything in front of one upstream, whatever becomes of the rest. Nonzero when a part failed.
gateway_in_front_of() {
  local upstream=$1 kind=${1%%-*} needs=npm failed=0
  [ "$kind" = everything ] || needs=python
  printf '\n== %s: %s\n' "$upstream" "${title[$upstream]}"
  if ! has "$needs" || ! has python; then
    echo "not checked $upstream: what it needs could not be installed (${missing[*]})"
    return 1
  fi
  if ! serve "$upstream"; then
    echo "not checked $upstream: it could not be served"
    return 1
  fi
  run "outlast call" outlast_calls "$upstream"
  if has npm; then
    run "the TypeScript client with ext-tasks" limited "$node" "$tools/clients/ext_tasks_client.mjs" "$url" "$kind"
  else
    echo "not checked by ext-tasks: its packages could not be installed"
    failed=1
  fi
  run "the Python client of 2025-11-25, without tasks" limited "$python" interop/gateway/host.py "$url" "$kind" legacy
  run "the Python client of 2026-07-28, without tasks" limited "$python" interop/gateway/host.py "$url" "$kind" auto
  return $failed
}

# They wait more than they work, so all upstreams are checked at once, and told one after the other.
parts=()
for upstream in "${upstreams[@]}"; do
  mkdir "$scratch/$upstream"
  (
    trap stop EXIT
    trap 'exit 143' TERM
    scratch=$scratch/$upstream
    export OUTLAST_HANDLES=$scratch/handles
    gateway_in_front_of "$upstream"
  ) >"$scratch/$upstream/lines" 2>&1 &
  parts+=("$!")
done
started=("${parts[@]}")
failed=()
for n in "${!upstreams[@]}"; do
  wait "${parts[$n]}" || failed+=("${upstreams[$n]}")
  cat "$scratch/${upstreams[$n]}/lines"
done
started=()

count() { cat "$scratch"/*/lines | grep -c "^$1 " || true; }
printf '\ngateway: %s ok, %s failed, %s not offered' "$(count ok)" "$(count FAIL)" "$(count 'not offered')"
if [ ${#failed[@]} -gt 0 ]; then
  echo "; not passed: ${failed[*]}"
  exit 1
fi
echo
