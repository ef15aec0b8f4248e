# For scripts that need Node and packages of npm: `find_node` and `npm_install`. To be sourced; the script has a `die`.

# The Node that is installed where the machine's own is older than what the tools here need.
node_version=22.23.3

# Installs PACKAGE@VERSION... into FOLDER, once. No install scripts: nothing here needs them.
npm_install() {
  local folder=$1
  shift
  # Written last, so that an installation that was interrupted is made again.
  if [ "$(cat "$folder/installed" 2>/dev/null)" != "$*" ]; then
    command -v npm >/dev/null || die "npm is needed to install $*"
    echo "installing $*" >&2
    rm -rf "$folder"
    mkdir -p "$folder"
    echo '{"private":true}' >"$folder/package.json"
    npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel error \
      "$@" >&2 || die "could not install $*"
    echo "$*" >"$folder/installed"
  fi
}

# Prints where a Node of 22.19 or newer is: the machine's own, or one that is put into FOLDER.
find_node() {
  local folder=$1 platform
  if command -v node >/dev/null &&
     node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 22 || (a == 22 && b >= 19) ? 0 : 1)'; then
    command -v node
    return
  fi
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) platform=linux-x64 ;;
    Linux-aarch64|Linux-arm64) platform=linux-arm64 ;;
    Darwin-x86_64) platform=darwin-x64 ;;
    *) die "needs Node 22.19 or newer on the PATH" ;;
  esac
  npm_install "$folder" "node-$platform@$node_version"
  echo "$folder/node_modules/node-$platform/bin/node"
}
