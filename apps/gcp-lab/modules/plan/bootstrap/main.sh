# shellcheck shell=bash
# The order of things. Every step finds out by itself what is left to do.

# shellcheck disable=SC2034 # set in other files
CHANGED=0 FSTAB_CHANGED=0

bootstrap() {
  trap 'log "FAILED: ${FUNCNAME[0]:-bootstrap}: \"$BASH_COMMAND\" ended with $?; to try again: sudo google_metadata_script_runner startup" >&2' ERR
  umask 022
  export DEBIAN_FRONTEND=noninteractive
  mkdir --parents "$K3_ROOT/run/lock" "$K3_ROOT/etc"
  exec 9>"$K3_ROOT/run/lock/k3-lab.lock"
  flock --nonblock 9 || fail 7 "another run of this script is at work" "wait for it"

  log "Bootstrap begins"
  log_machine
  refuse_tokens_in_metadata
  ensure_user
  mount_data_disk
  make_directory
  mount_local_ssd
  if ((FSTAB_CHANGED)); then
    "$K3_SYSTEMCTL" daemon-reload
  fi
  install_software
  install_commands
  run_doctor
  start_or_hold
  log "Bootstrap complete"
}
