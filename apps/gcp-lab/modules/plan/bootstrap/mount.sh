# shellcheck shell=bash
# Mount points and /etc/fstab.

# set_fstab DIRECTORY [LINE]: the one line for a mount point, replaced; removed without LINE. Written aside, then renamed.
set_fstab() {
  local directory=$1 line=${2-} table=$K3_ROOT/etc/fstab
  touch "$table"
  {
    awk -v directory="$directory" '$1 ~ /^#/ || $2 != directory' "$table"
    [[ -z $line ]] || printf '%s\n' "$line"
  } >"$table.k3-new"
  if cmp --silent "$table" "$table.k3-new"; then
    rm "$table.k3-new"
    return
  fi
  chmod 0644 "$table.k3-new"
  sync "$table.k3-new"
  mv "$table.k3-new" "$table"
  # shellcheck disable=SC2034 # read in main.sh
  FSTAB_CHANGED=1
}

device_numbers() {
  lsblk --nodeps --noheadings --raw --output MAJ:MIN "$1"
}

# mount_device DEVICE DIRECTORY: mounts it unless it is mounted there already; another device there is refused.
mount_device() {
  local device=$1 directory=$K3_ROOT$2 mounted
  mkdir --parents "$directory"
  if mountpoint --quiet "$directory"; then
    mounted=$(findmnt --noheadings --output MAJ:MIN --mountpoint "$directory" | tr --delete '[:space:]')
    [[ $mounted == "$(device_numbers "$device" | tr --delete '[:space:]')" ]] ||
      refuse "another device is mounted at $2" "sudo umount $2, then start this script again"
    return
  fi
  [[ -z $(ls --almost-all "$directory") ]] ||
    refuse "$2 is not mounted, but there are files in it, on the boot disk" "move them away, then start this script again"
  mount -o noatime "$device" "$directory"
}

# keep_mounted DEVICE DIRECTORY: also after a reboot, by UUID; a missing disk must not keep the machine from booting.
keep_mounted() {
  local device=$1 directory=$2 uuid
  read -r _ _ uuid <<<"$(signature "$device")"
  set_fstab "$directory" "UUID=$uuid $directory ext4 defaults,noatime,nofail,x-systemd.device-timeout=30s 0 2"
}

# grow DEVICE DIRECTORY: when the disk has become larger than its file system (data_disk_gb was raised), the file system follows.
# After a reboot it is mounted by then, and grows while it is in use.
grow() {
  local device=$1 directory=$K3_ROOT$2 header size status=0
  header=$(dumpe2fs -h "$device" 2>/dev/null)
  size=$(($(awk '/^Block count:/ { print $3 }' <<<"$header") * $(awk '/^Block size:/ { print $3 }' <<<"$header")))
  (($(blockdev --getsize64 "$device") - size > 64 << 20)) || return 0
  log "$device has grown; its file system follows"
  if ! mountpoint --quiet "$directory"; then
    # 1 is "corrected"; resize2fs insists on a check.
    e2fsck -f -p "$device" >/dev/null || status=$?
    ((status <= 1)) || fail 3 "the file system on $device needs repair" "sudo e2fsck -f $device, then start this script again"
  fi
  resize2fs "$device" >/dev/null || log "it could not be grown; going on with its present size"
}

mount_data_disk() {
  local device
  device=$(find_device "$K3_LAB_DATA_DISK")
  refuse_unless_spare "$device"
  format_if_blank "$device" "$DATA_LABEL"
  grow "$device" "$K3_LAB_MOUNT"
  mount_device "$device" "$K3_LAB_MOUNT"
  keep_mounted "$device" "$K3_LAB_MOUNT"
  log "data disk $device at $K3_LAB_MOUNT: $(df --human-readable --output=avail "$K3_ROOT$K3_LAB_MOUNT" | tail --lines=1 | tr --delete ' ') free"
}
