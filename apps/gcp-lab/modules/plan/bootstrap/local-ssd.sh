# shellcheck shell=bash
# Local SSD: fast, and lost when the machine stops. Only the packed trunk goes there; it can be packed again from the checkpoint.

local_ssds() {
  local index
  for ((index = 0; index < K3_LAB_LOCAL_SSD_COUNT; index++)); do
    find_device "local-nvme-ssd-$index"
    printf '\n'
  done
}

# stripe_of DEVICE: the RAID device that it belongs to already, if any; udev assembles it at boot under a name of its choice.
stripe_of() {
  local holder
  for holder in "/sys/class/block/$(basename "$1")/holders"/md*; do
    [[ ! -e $holder ]] || printf '/dev/%s' "$(basename "$holder")"
  done
}

# stripe DEVICE...: one RAID 0 device over all of them, made only from blank ones.
stripe() {
  local array=$K3_ARRAY device first
  first=$(stripe_of "$1")
  for device in "$@"; do
    if [[ -n $first ]]; then
      [[ $(stripe_of "$device") == "$first" ]] ||
        refuse "the local SSDs belong to different arrays" "they are blank after a stop: stop and start the machine"
    else
      refuse_unless_spare "$device"
    fi
  done
  if [[ -n $first ]]; then
    array=$first
  elif is_blank "$1"; then
    for device in "$@"; do
      is_blank "$device" || refuse "$device is not blank" "local SSDs are blank after a stop: stop and start the machine"
    done
    "$K3_MDADM" --create "$array" --run --homehost=any --name=k3-local --level=0 --raid-devices="$#" "$@" >&2
  else
    "$K3_MDADM" --assemble "$array" --name=k3-local "$@" >&2
  fi
  readlink --canonicalize "$array"
}

# local_device: what the trunk is put on: the only SSD, or a stripe over all of them.
local_device() {
  local -a members=()
  mapfile -t members < <(local_ssds)
  ((${#members[@]} == K3_LAB_LOCAL_SSD_COUNT)) || exit 5
  if ((${#members[@]} == 1)); then
    refuse_unless_spare "${members[0]}"
    printf '%s' "${members[0]}"
  else
    stripe "${members[@]}"
  fi
}

mount_local_ssd() {
  local device trunk=$K3_LAB_DIRECTORY/trunk
  if ((K3_LAB_LOCAL_SSD_COUNT == 0)); then
    set_fstab "$trunk"
    set_fstab "$K3_LAB_LOCAL_MOUNT"
    return
  fi
  log "LOCAL SSD: everything on it is lost when this machine stops; the checkpoint stays on the data disk"
  device=$(local_device)
  format_if_blank "$device" "$LOCAL_LABEL"
  mount_device "$device" "$K3_LAB_LOCAL_MOUNT"
  keep_mounted "$device" "$K3_LAB_LOCAL_MOUNT"
  # A folder of it, so that the trunk's own directory holds nothing of the file system's.
  install --directory --owner="$K3_USER" --group="$K3_USER" --mode=0750 "$K3_ROOT$K3_LAB_LOCAL_MOUNT/trunk"
  install --directory --owner="$K3_USER" --group="$K3_USER" --mode=0750 "$K3_ROOT$trunk"
  mountpoint --quiet "$K3_ROOT$trunk" || mount --bind "$K3_ROOT$K3_LAB_LOCAL_MOUNT/trunk" "$K3_ROOT$trunk"
  set_fstab "$trunk" "$K3_LAB_LOCAL_MOUNT/trunk $trunk none bind,nofail,x-systemd.requires-mounts-for=$K3_LAB_LOCAL_MOUNT,x-systemd.requires-mounts-for=$K3_LAB_MOUNT 0 0"
}
