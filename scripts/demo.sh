#!/usr/bin/env bash
# Drives the demo server as the README does, with curl: a task is created, asks, is answered, and is read; then the
# same over standard input and output. Fails when any of it does not happen.
#
#   scripts/demo.sh            build the demo, start it, drive it, stop it
set -euo pipefail

# The most seconds that a request may take.
SECONDS_EACH=30

die() { echo "demo.sh: $*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) echo "demo.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
    esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v curl >/dev/null || die "curl is needed"

# Cargo knows where it puts what it builds.
outlast=$(cargo build --quiet --locked --message-format=json-render-diagnostics -p outlast-cli --bin outlast |
    sed -n 's/.*"kind":\["bin"\].*"executable":"\([^"]*\)".*/\1/p')
[ -x "$outlast" ] || die "cargo did not say where the binary is"

# The server runs in `place` and reads it; what this script writes is elsewhere.
scratch=$(mktemp -d)
place=$scratch/place banner=$scratch/banner log=$scratch/log
server=
cleanup() {
    local status=$?
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
    if [ "$status" -ne 0 ] && [ -s "$log" ]; then
        echo "--- the end of the server's log" >&2
        tail -n 20 "$log" >&2
    fi
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$place"
cd "$place"
printf 'abc' >a.txt
printf 'hello\n' >b.txt

: >"$banner"
"$outlast" demo --listen 127.0.0.1:0 >"$banner" 2>"$log" &
server=$!
url=
for _ in $(seq 300); do
    url=$(sed -n '1s/^listening on //p' "$banner")
    [ -z "$url" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
[ -n "$url" ] || die "the server did not say where it listens"
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1

# --- what the README shows, at this server's address, and with a limit

meta='"_meta": {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
  "io.modelcontextprotocol/clientCapabilities": {
    "elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}'

mcp() { # method, name of the tool or task, parameters
    curl -sS --max-time "$SECONDS_EACH" "$url" \
        -H 'Content-Type: application/json' \
        -H 'Accept: application/json, text/event-stream' \
        -H 'MCP-Protocol-Version: 2026-07-28' \
        -H "Mcp-Method: $1" \
        -H "Mcp-Name: $2" \
        -d "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"$1\", \"params\": {$3, $meta}}"
    echo
}

call() { mcp tools/call make_report '"name": "make_report", "arguments": {"folder": ".", "file": "report.md"}'; }
get() { mcp tasks/get "$task" "\"taskId\": \"$task\""; }
update() {
    mcp tasks/update "$task" "\"taskId\": \"$task\", \"inputResponses\": {
      \"title\": {\"action\": \"accept\", \"content\": {\"title\": \"My files\"}},
      \"format\": {\"action\": \"accept\", \"content\": {\"format\": \"markdown\"}}}"
}

# --- the check

task_id() { sed -n 's/.*"taskId":"\([0-9a-f]*\)".*/\1/p'; }

until_it_says() {
    for _ in $(seq 100); do
        answer=$(get)
        case $answer in *"$1"*) echo "$answer"; return ;; esac
        sleep 0.2
    done
    die "the task never said $1; it is: $answer"
}

# The whole life of one task, by whatever `mcp` does.
drive() {
    local created
    rm -f report.md
    created=$(call)
    echo "$created"
    task=$(echo "$created" | task_id)
    [ -n "$task" ] || die "the call did not become a task"
    until_it_says '"statusMessage":"'
    until_it_says '"status":"input_required"'
    update
    until_it_says '"status":"completed"'
    case $answer in *'"isError":false'*) ;; *) die "the task ended with an error" ;; esac
    grep -qx '# My files' report.md || die "the report is not what was asked for"
    grep -q '^| a.txt | 3 |' report.md || die "the report does not list the files"
}

drive
kill "$server"
wait "$server" || die "the server did not stop in good order"
server=

# Each of these is a process of its own; the task is in the file that they share.
limited() { if command -v timeout >/dev/null; then timeout "$SECONDS_EACH" "$@"; else "$@"; fi; }
mcp() {
    tr -d '\n' <<<"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"$1\", \"params\": {$3, $meta}}" |
        { cat; echo; } | limited "$outlast" demo --stdio 2>>"$log"
}
drive
echo "demo.sh: created, asked, answered and read, over HTTP and over standard input and output"
