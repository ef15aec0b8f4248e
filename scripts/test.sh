#!/usr/bin/env bash
# Passes every test: format, lints, documentation, unit, property, store, crash and integration tests, twenty rounds of
# killing a whole server and five of killing or stopping one of two on PostgreSQL, ten thousand seeds of the simulation, the README's demo, the official conformance suite, a Python
# client, the gateway between real servers and clients, and the operator's page in a browser.
#
#   scripts/test.sh              all of it
#   scripts/test.sh --rust       what cargo alone can do: without the demo, the conformance suite and the real peers
#
# Needs Rust (rustup) and a C compiler. Uses cargo-nextest and cargo-deny where they are installed. Installs npm, Python's
# venv and curl with apt-get where they are missing and it may; Node 22 and the suites come from npm and PyPI into
# target/. All of that comes first, so that nothing is found missing after the long part.
#
# Environment: PYTHON and FASTMCP_PYTHON, as scripts/fastmcp.sh has them.
set -euo pipefail

die() { echo "test.sh: $*" >&2; exit 2; }

rust_only=
while [ $# -gt 0 ]; do
  case $1 in
    --rust) rust_only=1; shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument $1 (see --help)" ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '\n== %s\n' "$*"; }

# Whether a check passes, once a Debian package that provides what it looks for has been installed.
provided() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing $package"
    apt-get update -qq || echo "test.sh: apt-get update failed" >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
      echo "test.sh: apt-get install $package failed" >&2
  fi
  "$@" >/dev/null 2>&1
}

command -v cargo >/dev/null || die "Rust is needed; install it with rustup and run this again"
provided build-essential cc --version || die "a C compiler is needed; install one and run this again"

if [ -z "$rust_only" ]; then
  step "tools"
  provided npm npm --version || die "npm is needed; install it and run this again"
  provided python3-venv scripts/fastmcp.sh --find-python ||
    die "Python 3.11 or newer with its venv module is needed; install it, or name one with PYTHON, and run this again"
  curl=1
  provided curl curl --version || curl=
  scripts/conformance.sh --prepare
  scripts/fastmcp.sh --prepare
  scripts/gateway.sh --prepare
  scripts/page.sh --prepare
  echo "all there"
fi

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
export RUSTDOCFLAGS="-D warnings"
# A clean build is faster without, and takes half the room.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings

step "documentation"
cargo doc --workspace --no-deps --locked

step "dependencies"
if command -v cargo-deny >/dev/null; then
  cargo deny --log-level error check licenses bans sources
else
  echo "cargo-deny is not installed; the list of dependencies was not checked against deny.toml"
fi

# Tests keep their stores in a folder in memory where there is one: a disk that others use may stall a sync for longer
# than a caller waits. What SIGKILL leaves behind is the same there.
if [ -z "${TMPDIR-}" ] && [ -w /dev/shm ] && [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 1000000 ]; then
  export TMPDIR=/dev/shm
fi

step "tests"
if command -v cargo-nextest >/dev/null; then
  cargo nextest run --workspace --locked
else
  cargo test --workspace --locked --lib --bins --tests
fi

step "examples in the documentation"
cargo test --workspace --locked --doc

step "what would be published"
# Whether each crate has what a registry asks for, names nothing that is not published before it, and is whole.
scripts/release.sh --packages

step "kill torture"
cargo run --release --locked -p outlast-testkit --bin torture -- --rounds 20
cargo run --release --locked -p outlast-testkit --bin torture -- --self-check

step "kill torture of two replicas on PostgreSQL"
cargo run --release --locked -p outlast-testkit --bin torture -- --postgres --replicas 2 --rounds 5

step "simulation"
cargo run --release --locked -p outlast-testkit --bin simulate -- --seeds 10000
cargo run --release --locked -p outlast-testkit --bin simulate -- --planted

if [ -z "$rust_only" ]; then
  step "the README's demo"
  if [ -n "$curl" ]; then
    scripts/demo.sh
  else
    echo "curl is not installed; the demo was not driven as the README does it"
  fi

  step "conformance"
  scripts/conformance.sh

  step "conformance of two replicas on one PostgreSQL, each request to the other one"
  scripts/conformance.sh --only replicas

  step "a Python client"
  scripts/fastmcp.sh

  step "the gateway, in front of real servers and called by real clients"
  scripts/gateway.sh

  step "the operator's page, in a browser"
  scripts/page.sh
fi

step "all passed"
