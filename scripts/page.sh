#!/usr/bin/env bash
# The operator's page in a real browser (Chromium, driven by playwright-core), on a real gateway in front of a small server:
# a wrong token, live changes, questions of every kind, what a task waits for, cancel, retry, the keyboard alone, a hostile
# task, what the browser complains about, and how it looks at 360 and 1600 pixels, in light and in dark.
#
#   scripts/page.sh [FOLDER]       screenshots go into FOLDER (target/page)
#   scripts/page.sh --prepare      only install and build what it needs
#
# Needs cargo, npm and Chromium, which is installed with apt-get where it is missing and may be. Where there is none, that is
# said, nothing is checked, and the script succeeds.
#
# Environment: PAGE_TOOLS is where the packages go (target/page-tools); CHROMIUM the browser to use; OUTLAST a binary that is
# built already.
set -euo pipefail

# What is pinned.
driver=playwright-core@1.65.1

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=${PAGE_TOOLS:-target/page-tools}

die() { echo "page.sh: $*" >&2; exit 2; }
. scripts/node.sh

folder=target/page
only=
case ${1-} in
  --prepare) only=prepare ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) die "unknown argument $1 (see --help)" ;;
  ?*) folder=$1 ;;
esac

find_chromium() {
  local name
  for name in "${CHROMIUM-}" chromium chromium-browser google-chrome; do
    if [ -n "$name" ] && command -v "$name"; then return; fi
  done
  return 1
}

chromium=$(find_chromium) || {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium" >&2
    apt-get update -qq >&2 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null || true
  fi
  chromium=$(find_chromium)
} || {
  echo "not checked: the page in a browser, because there is no Chromium here and it may not be installed"
  exit 0
}

node=$(find_node "$tools/node")
npm_install "$tools/driver" "$driver"
mkdir -p "$tools/driver" "$folder"
cp interop/page/*.mjs "$tools/driver/"
outlast=${OUTLAST:-}
if [ -z "$outlast" ]; then
  outlast=$(cargo build --quiet --locked --message-format=json-render-diagnostics -p outlast-cli --bin outlast |
    sed -n 's/.*"kind":\["bin"\].*"executable":"\([^"]*\)".*/\1/p')
fi
[ -x "$outlast" ] || die "could not build outlast"
if [ "$only" = prepare ]; then
  echo "all there"
  exit
fi

# A proxy that the environment names would be asked for the loopback address too.
export NO_PROXY="127.0.0.1${NO_PROXY:+,$NO_PROXY}"
export no_proxy=$NO_PROXY
exec "$node" "$tools/driver/check.mjs" "$(realpath "$outlast")" "$chromium" "$(realpath "$folder")"
