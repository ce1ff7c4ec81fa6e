# shellcheck shell=bash
# The user, the commands and the unit that continues the pipeline.

# write_file PATH MODE <content: replaced in one step when it differs; then CHANGED becomes 1.
write_file() {
  local path=$K3_ROOT$1 mode=$2
  mkdir --parents "$(dirname "$path")"
  cat >"$path.k3-new"
  if cmp --silent "$path" "$path.k3-new"; then
    rm "$path.k3-new"
    return
  fi
  chmod "$mode" "$path.k3-new"
  sync "$path.k3-new"
  mv "$path.k3-new" "$path"
  CHANGED=1
}

ensure_user() {
  id --user "$K3_USER" >/dev/null 2>&1 ||
    useradd --system --user-group --home-dir /var/lib/k3 --shell /usr/sbin/nologin "$K3_USER"
}

make_directory() {
  # Not recursive: what is in there belongs to whoever made it.
  install --directory --owner="$K3_USER" --group="$K3_USER" --mode=0755 "$K3_ROOT$K3_LAB_DIRECTORY"
}

k3_command() {
  # shellcheck disable=SC2016 # for the shell that runs the command
  printf '#!/bin/sh\nPATH=%s/node/bin:$PATH exec %s/cli/bin/k3 "$@"\n' "$K3_ROOT$SOFTWARE" "$K3_ROOT$SOFTWARE"
}

# A file of its own, since systemd has its own ideas of quoting.
pipeline_command() {
  printf '#!/bin/bash\nexec %q' "$K3_ROOT/usr/local/bin/k3"
  printf ' %q' pipeline "$K3_LAB_MODEL_REPO" --revision "$K3_LAB_MODEL_COMMIT" --dir "$K3_ROOT$K3_LAB_DIRECTORY" \
    --memory auto --prompt "$K3_LAB_PROMPT" --generate "$K3_LAB_GENERATE"
  printf '\n'
}

install_commands() {
  k3_command | write_file /usr/local/bin/k3 0755
  pipeline_command | write_file /usr/local/libexec/k3-pipeline 0755
  token_helper | write_file /usr/local/sbin/k3-token 0755
  pipeline_unit | write_file /etc/systemd/system/k3-pipeline.service 0644
}

# What it finds is for the person who reads the log; the pipeline itself refuses what cannot work.
run_doctor() {
  local status=0
  runuser --user "$K3_USER" -- env HOME=/var/lib/k3 "$K3_ROOT/usr/local/bin/k3" doctor "$K3_ROOT$K3_LAB_DIRECTORY" || status=$?
  log "k3 doctor: exit $status"
}

start_or_hold() {
  local wish
  wish=$(metadata instance/attributes/k3-pipeline start)
  "$K3_SYSTEMCTL" daemon-reload
  case $wish in
    start)
      "$K3_SYSTEMCTL" enable k3-pipeline.service
      if ((CHANGED)); then
        "$K3_SYSTEMCTL" restart --no-block k3-pipeline.service
      else
        "$K3_SYSTEMCTL" start --no-block k3-pipeline.service
      fi
      log "the pipeline runs: sudo journalctl --unit=k3-pipeline --follow"
      ;;
    hold)
      "$K3_SYSTEMCTL" disable --now k3-pipeline.service
      log "the pipeline is on hold (metadata k3-pipeline = hold)"
      ;;
    *) refuse "metadata k3-pipeline is \"$wish\"" "set it to start or hold" ;;
  esac
}
