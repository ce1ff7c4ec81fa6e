# shellcheck shell=bash
# Node.js and k3 at pinned versions, each in a directory of its own that is renamed into place when it is complete.

readonly SOFTWARE=/opt/k3

# point_to NAME TARGET: the link /opt/k3/NAME, changed in one step.
point_to() {
  [[ $(readlink "$K3_ROOT$SOFTWARE/$1") != "$2" ]] || return 0
  ln --symbolic --force --no-dereference "$2" "$K3_ROOT$SOFTWARE/.$1.new"
  mv --no-target-directory "$K3_ROOT$SOFTWARE/.$1.new" "$K3_ROOT$SOFTWARE/$1"
  # shellcheck disable=SC2034 # read in service.sh
  CHANGED=1
}

install_node() {
  local name=node-v$K3_LAB_NODE_VERSION-linux-x64 home=$K3_ROOT$SOFTWARE partial
  if [[ ! -x $home/$name/bin/node ]]; then
    log "installing Node.js $K3_LAB_NODE_VERSION"
    partial=$(mktemp --directory "$home/.partial.XXXXXX")
    curl --fail --silent --show-error --location --proto "$K3_CURL_PROTOCOLS" --retry 8 --retry-all-errors --retry-delay 2 \
      --speed-limit 1024 --speed-time 60 --output "$partial/node.tar.xz" \
      "$K3_NODE_MIRROR/v$K3_LAB_NODE_VERSION/$name.tar.xz" ||
      fail 6 "Node.js could not be downloaded" "check the way out (outbound, NAT) and start this script again"
    sha256sum --check --status <<<"$K3_LAB_NODE_SHA256  $partial/node.tar.xz" ||
      fail 3 "the download of Node.js has another SHA-256 than node_sha256" "check node_version and node_sha256; nothing was installed"
    mkdir "$partial/tree"
    tar --extract --xz --strip-components=1 --no-same-owner --directory "$partial/tree" --file "$partial/node.tar.xz"
    sync --file-system "$partial"
    mv --no-target-directory "$partial/tree" "$home/$name"
    rm --recursive --force "$partial"
  fi
  point_to node "$name"
}

# The prefix of a global install can be moved: its links are relative.
install_k3() {
  local name=cli-$K3_LAB_K3_VERSION home=$K3_ROOT$SOFTWARE partial
  if [[ ! -x $home/$name/bin/k3 ]]; then
    log "installing @k3/cli $K3_LAB_K3_VERSION"
    partial=$(mktemp --directory "$home/.partial.XXXXXX")
    chmod 0755 "$partial"
    npm install --global --prefix "$partial" --cache "$partial/.cache" --ignore-scripts --no-audit --no-fund --no-update-notifier \
      --loglevel=warn "@k3/cli@$K3_LAB_K3_VERSION" ||
      fail 6 "@k3/cli $K3_LAB_K3_VERSION could not be installed" "check k3_version and the way out, and start this script again"
    rm --recursive --force "$partial/.cache"
    [[ -x $partial/bin/k3 ]] ||
      fail 3 "@k3/cli $K3_LAB_K3_VERSION has no command k3" "check k3_version"
    sync --file-system "$partial"
    mv --no-target-directory "$partial" "$home/$name"
  fi
  point_to cli "$name"
}

install_software() {
  mkdir --parents "$K3_ROOT$SOFTWARE"
  # What an interrupted run left behind.
  rm --recursive --force "$K3_ROOT$SOFTWARE"/.partial.*
  export PATH="$K3_ROOT$SOFTWARE/node/bin:$PATH"
  install_node
  install_k3
}
