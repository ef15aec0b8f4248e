#!/usr/bin/env bash
# Drives the demo server as the README does, with curl: a task is created, asks, is answered, and is read; then the
# same over standard input and output. Fails when any of it does not happen.
#
#   scripts/demo.sh            build the demo, start it, drive it, stop it
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet -p outlast-cli
outlast=$(cd "${CARGO_TARGET_DIR:-target}/debug" && pwd)/outlast

place=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
    rm -rf "$place"
}
trap cleanup EXIT
cd "$place"
printf 'abc' >a.txt
printf 'hello\n' >b.txt

"$outlast" demo --listen 127.0.0.1:0 >banner 2>log &
server=$!
url=
for _ in $(seq 300); do
    url=$(sed -n '1s/^listening on //p' banner)
    [ -z "$url" ] || break
    sleep 0.1
done
[ -n "$url" ] || { cat log >&2; exit 1; }
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1

# --- what the README shows, at this server's address

meta='"_meta": {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
  "io.modelcontextprotocol/clientCapabilities": {
    "elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}'

mcp() { # method, name of the tool or task, parameters
    curl -sS "$url" \
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
    echo "demo.sh: the task never said $1; it is: $answer" >&2
    return 1
}

created=$(call)
echo "$created"
task=$(echo "$created" | task_id)
until_it_says '"status":"input_required"'
update
until_it_says '"status":"completed"'
grep -qx '# My files' report.md

kill "$server"
wait "$server"
server=

# Each of these is a process of its own; the task is in the file that they share.
mcp() {
    tr -d '\n' <<<"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"$1\", \"params\": {$3, $meta}}" |
        { cat; echo; } | timeout 30 "$outlast" demo --stdio 2>>log
}
rm report.md
created=$(call)
echo "$created"
task=$(echo "$created" | task_id)
until_it_says '"status":"input_required"'
update
until_it_says '"status":"completed"'
grep -qx '# My files' report.md
echo "demo.sh: created, asked, answered and read, over HTTP and over standard input and output"
