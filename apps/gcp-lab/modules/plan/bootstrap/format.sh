# shellcheck shell=bash
# Formatting a blank disk so that an interruption can be told from a disk that holds somebody's data.
#
# Before mkfs a record goes into the last 4096 bytes, outside the file system to come; after it, the record is wiped. A disk without
# any signature whose tail is that record was blank when we began, and no file system has been on it since.

format_record() {
  printf 'k3-lab: blank disk of %s bytes, formatting as %s began' "$(blockdev --getsize64 "$1")" "$2"
}

record_offset() {
  printf '%s' $(($(blockdev --getsize64 "$1") / 4096 - 1))
}

formatting_began() {
  local tail
  tail=$(dd if="$1" bs=4096 count=1 skip="$(record_offset "$1")" status=none | tr --delete '\0')
  [[ $tail == "$(format_record "$1" "$2")" ]]
}

# format_blank DEVICE LABEL: the caller has made sure that the device is blank, or was when formatting began.
format_blank() {
  local device=$1 label=$2 blocks
  # A mebibyte stays free at the end for the record.
  blocks=$((($(blockdev --getsize64 "$device") - (1 << 20)) / 4096))
  log "formatting $device as $label"
  format_record "$device" "$label" |
    dd of="$device" bs=4096 count=1 seek="$(record_offset "$device")" iflag=fullblock conv=notrunc,fsync,sync status=none
  # No --force: mkfs itself then refuses a device that is in use. One inode per mebibyte and no reserve: few files, all of them large.
  "$K3_MKFS" -q -b 4096 -m 0 -T largefile -E nodiscard -L "$label" "$device" "$blocks" </dev/null
  sync "$device"
  dd if=/dev/zero of="$device" bs=4096 count=1 seek="$(record_offset "$device")" conv=notrunc,fsync status=none
}

# format_if_blank DEVICE LABEL: afterwards the device holds our ext4 of that label; every other disk is refused, untouched.
format_if_blank() {
  local device=$1 label=$2 found type found_label
  found=$(signature "$device")
  if [[ -z $found ]]; then
    if formatting_began "$device" "$label"; then
      log "formatting of $device was interrupted; beginning again"
    elif ! is_blank "$device"; then
      refuse "$device has no file system, but it is not blank: there are bytes other than zero on it" \
        "if nothing on it is needed: sudo blkdiscard --zeroout $device, or attach another disk; nothing was changed"
    fi
    format_blank "$device" "$label"
    found=$(signature "$device")
  fi
  read -r type found_label _ <<<"$found"
  [[ $type == ext4 && $found_label == "$label" ]] ||
    refuse "$device holds ${type} with label \"${found_label:--}\", not ours" \
      "attach a blank disk, or if it is yours and ext4: sudo e2label $device $label; nothing was changed"
}
