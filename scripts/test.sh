#!/usr/bin/env bash
# Passes every test: format, lints, documentation, unit, property, store, crash and integration tests, the official
# conformance suite, and a Python client.
#
#   scripts/test.sh              all of it
#   scripts/test.sh --rust       without the conformance suite and the Python client
#
# Needs Rust (rustup) and a C compiler. Uses cargo-nextest where it is installed. Installs npm and Python's venv with
# apt-get where they are missing and it may; Node 22 and the suites come from npm and PyPI into target/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rust_only=
case ${1-} in
  '') ;;
  --rust) rust_only=1 ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) echo "test.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
esac

step() { printf '\n== %s\n' "$*"; }

# Installs a Debian package that provides what a check finds missing.
need() {
  local what=$1 package=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    step "installing $package"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
  fi
  "$@" >/dev/null 2>&1 || { echo "test.sh: $what is needed; install it and run this again" >&2; exit 2; }
}

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
export RUSTDOCFLAGS="-D warnings"

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

step "tests"
if command -v cargo-nextest >/dev/null; then
  cargo nextest run --workspace --locked
else
  cargo test --workspace --locked --lib --bins --tests
fi

step "examples in the documentation"
cargo test --workspace --locked --doc

if [ -z "$rust_only" ]; then
  need npm npm npm --version
  step "conformance"
  scripts/conformance.sh

  need "Python 3.11 with venv" python3-venv python3 -c 'import venv, ensurepip'
  step "a Python client"
  scripts/fastmcp.sh
fi

step "all passed"
