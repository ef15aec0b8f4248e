#!/usr/bin/env bash
# Checks the fixture server against FastMCP's Python client: scripts/fastmcp_check.py.
#
#   scripts/fastmcp.sh                     build and start the fixture server, check it, stop it
#   scripts/fastmcp.sh --server-url URL    check a server that is already running
#   scripts/fastmcp.sh --prepare           only install what the check needs, into target/
#   scripts/fastmcp.sh --find-python       only say which interpreter it would use
#
# Environment:
#   PYTHON            the interpreter to build the virtual environment with (3.11 or newer, with venv)
#   FASTMCP_PYTHON    the interpreter of an environment that already has both packages; nothing is
#                     installed then, which is how another version of the client is tried
set -euo pipefail

# fastmcp-tasks requires the fastmcp of its own version. The SDK below them writes what goes over
# the wire, so it is pinned too.
PINS=(fastmcp==4.1.4 fastmcp-tasks==4.1.4 mcp==2.3.0 mcp-types==2.3.0)
VENV=target/fastmcp-venv
START_SECONDS=30

die() {
    echo "fastmcp.sh: $*" >&2
    exit 2
}

server_url=
only=
while [ $# -gt 0 ]; do
    case $1 in
        --server-url) server_url=${2:?--server-url needs a URL}; shift 2 ;;
        --server-url=*) server_url=${1#*=}; shift ;;
        --prepare | --find-python) only=$1; shift ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) die "unknown argument $1 (see --help)" ;;
    esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The interpreter that it was made with may be gone since.
installed() { [ "$(cat "$VENV/pins" 2>/dev/null)" = "${PINS[*]}" ] && "$VENV/bin/python" -c '' 2>/dev/null; }

find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or newer with its venv module${PYTHON:+, which $PYTHON is not}; name one with PYTHON"
}

if [ -z "${FASTMCP_PYTHON:-}" ]; then
    if ! installed; then
        python=$(find_python)
        if [ "$only" = --find-python ]; then echo "$python"; exit; fi
        "$python" -m venv --clear "$VENV"
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "${PINS[@]}" ||
            die "could not install ${PINS[*]}"
        # Written last, so that an installation that was interrupted is made again.
        echo "${PINS[*]}" >"$VENV/pins"
    fi
    FASTMCP_PYTHON=$VENV/bin/python
fi
"$FASTMCP_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$FASTMCP_PYTHON is not a Python of 3.11 or newer"
case $only in
    --find-python) echo "$FASTMCP_PYTHON"; exit ;;
    --prepare) exit ;;
esac

server_pid=
scratch=
cleanup() {
    if [ -n "$server_pid" ]; then
        kill "$server_pid" 2>/dev/null || true
        # A server that drains for longer than this is not what is being checked.
        for _ in $(seq 50); do
            kill -0 "$server_pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$server_pid" 2>/dev/null || true
        wait "$server_pid" 2>/dev/null || true
    fi
    [ -z "$scratch" ] || rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -z "$server_url" ]; then
    # Cargo knows where it puts what it builds.
    server=$(cargo build --quiet --locked --message-format=json-render-diagnostics \
        -p outlast --example conformance_server |
        sed -n 's/.*"kind":\["example"\].*"executable":"\([^"]*\)".*/\1/p')
    [ -x "$server" ] || die "cargo did not say where the fixture server is"
    scratch=$(mktemp -d)
    : >"$scratch/stdout"  # read below, perhaps before the server's process has opened it
    "$server" --listen 127.0.0.1:0 --db "$scratch/tasks.db" \
        >"$scratch/stdout" 2>"$scratch/stderr" &
    server_pid=$!
    for _ in $(seq $((START_SECONDS * 10))); do
        server_url=$(sed -n '1s/^listening on //p' "$scratch/stdout")
        [ -z "$server_url" ] || break
        kill -0 "$server_pid" 2>/dev/null || break
        sleep 0.1
    done
    if [ -z "$server_url" ]; then
        tail -n 20 "$scratch/stderr" >&2
        die "the server ended, or did not say within $START_SECONDS s where it listens"
    fi
    # A proxy that the environment names would be asked for the loopback address too.
    export NO_PROXY="127.0.0.1${NO_PROXY:+,$NO_PROXY}"
    export no_proxy=$NO_PROXY
fi

status=0
"$FASTMCP_PYTHON" scripts/fastmcp_check.py "$server_url" || status=$?
if [ "$status" -ne 0 ] && [ -n "$scratch" ] && [ -s "$scratch/stderr" ]; then
    echo "--- the end of the server's log" >&2
    tail -n 40 "$scratch/stderr" >&2
fi
exit "$status"
