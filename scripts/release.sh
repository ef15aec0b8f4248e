#!/usr/bin/env bash
# Says whether the crates could be published, and publishes nothing.
#
#   scripts/release.sh             all of it
#   scripts/release.sh --packages  only whether each crate can be packaged, in the order of their dependencies, and whether what
#                                  is in the packages compiles
#
# Installs cargo-deny and, where there is a tag to compare with, cargo-semver-checks into target/tools when they are missing.
set -euo pipefail

die() { echo "release.sh: $*" >&2; exit 2; }

what=all
case ${1-} in
  '') ;;
  --packages) what=packages ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "unknown argument $1 (see --help)" ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/target/tools/bin:$PATH"

step() { printf '\n== %s\n' "$*"; }

# A tool that is here, or is built from its source.
tool() {
  command -v "$1" >/dev/null && return
  step "installing $1"
  cargo install "$1" --locked --quiet --root target/tools || die "$1 cannot be installed"
}

step "packages"
packages=$PWD/target/package
# Says of each crate what it would upload, and that it does not. What is in the packages is compiled below, in one go.
cargo publish --workspace --dry-run --no-verify --locked --allow-dirty 2>&1 | grep -v 'aborting upload' ||
  die "a crate cannot be published"

step "what is in the packages"
rm -rf "$packages"/*.crate "$packages/unpacked"
cargo package --workspace --exclude outlast-testkit --no-verify --locked --allow-dirty --quiet
mkdir "$packages/unpacked"
cp Cargo.lock "$packages/unpacked"
{
  echo '[workspace]'
  echo 'resolver = "3"'
  echo 'members = ["*"]'
  echo '[patch.crates-io]'
} >"$packages/unpacked/Cargo.toml"
for crate in "$packages"/*.crate; do
  tar -xzf "$crate" -C "$packages/unpacked"
  folder=$(basename "$crate" .crate)
  echo "${folder%-[0-9]*} = { path = \"$folder\" }" >>"$packages/unpacked/Cargo.toml"
done
CARGO_TARGET_DIR=$PWD/target cargo check --manifest-path "$packages/unpacked/Cargo.toml" --workspace --all-features
[ "$what" = all ] || exit 0

step "dependencies"
tool cargo-deny
cargo deny --log-level error check licenses bans sources

step "compatibility"
if tag=$(git describe --tags --abbrev=0 2>/dev/null); then
  tool cargo-semver-checks
  cargo semver-checks --workspace --baseline-rev "$tag"
else
  echo "there is no tag yet, and so no release to be compatible with"
fi

step "all of it could be published"
