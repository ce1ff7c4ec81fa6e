# shellcheck shell=bash
# Finding a block device and knowing what is on it, without changing anything.

# find_device NAME: the device that Google attached under this name. udev may need a moment after boot.
find_device() {
  local link=$K3_BY_ID/google-$1 waited=0 device
  until [[ -e $link ]]; do
    ((waited < K3_DEVICE_WAIT)) ||
      fail 5 "no disk is attached as $1 ($link does not exist)" "attach it (terraform apply) and boot again"
    sleep 1
    waited=$((waited + 1))
  done
  device=$(readlink --canonicalize "$link")
  [[ -b $device ]] || refuse "$link leads to $device, which is no block device" "detach it and look what it is"
  printf '%s' "$device"
}

# whole_disks NAME: the kernel names of the whole disks under a block device, through partitions, device mapper and RAID.
whole_disks() {
  local node=/sys/class/block/$1 slave
  if [[ -e $node/partition ]]; then
    whole_disks "$(basename "$(dirname "$(readlink --canonicalize "$node")")")"
  elif [[ -n $(ls "$node/slaves" 2>/dev/null) ]]; then
    for slave in "$node"/slaves/*; do
      whole_disks "$(basename "$slave")"
    done
  else
    printf '%s\n' "$1"
  fi
}

# The numbers, not the name: on Ubuntu the root file system may be listed as /dev/root, which does not exist.
boot_disks() {
  local numbers
  numbers=$("$K3_FINDMNT" --noheadings --output MAJ:MIN --target /)
  numbers=${numbers//[[:space:]]/}
  [[ -e /sys/dev/block/$numbers ]] ||
    refuse "the disk of the root file system ($numbers) cannot be found out" "nothing is formatted without knowing it"
  whole_disks "$(basename "$(readlink --canonicalize "/sys/dev/block/$numbers")")"
}

# refuse_unless_spare DEVICE: ends the script for the boot disk, a partition, a read-only disk or one that something uses.
refuse_unless_spare() {
  local device=$1 name boot
  name=$(basename "$device")
  boot=$(boot_disks)
  if grep --quiet --line-regexp --fixed-strings "$name" <<<"$boot" ||
    whole_disks "$name" | grep --quiet --line-regexp --fixed-strings --file=<(printf '%s\n' "$boot"); then
    refuse "$device is the boot disk" "check which disk is attached under which name; nothing was changed"
  fi
  [[ ! -e /sys/class/block/$name/partition ]] ||
    refuse "$device is a partition" "attach a whole disk; nothing was changed"
  [[ $(blockdev --getro "$device") == 0 ]] ||
    refuse "$device is read-only" "attach it with mode READ_WRITE"
  [[ -z $(ls "/sys/class/block/$name/holders" 2>/dev/null) ]] ||
    refuse "$device belongs to another device (RAID, LVM or encryption)" "nothing was changed"
  if swapon --show=NAME --noheadings | grep --quiet --line-regexp --fixed-strings "$device"; then
    refuse "$device is used for swap" "nothing was changed"
  fi
}

# signature DEVICE: one line `type label uuid` of what blkid finds, empty for nothing. A contradiction counts as something.
signature() {
  local found status=0 partitions
  # blkid answers 2 for "nothing", 8 for "several that contradict each other".
  found=$(blkid --probe --output export "$1") || status=$?
  case $status in
    0) field() { sed --quiet "s/^$1=//p" <<<"$found" | head --lines=1; } ;;
    2) field() { :; } ;;
    *) printf 'ambiguous - -' && return ;;
  esac
  if [[ $status == 0 ]]; then
    partitions=$(field PTTYPE)
    if [[ -n $partitions ]]; then
      printf 'partition-table-%s - -' "$partitions"
    else
      printf '%s %s %s' "$(field TYPE)" "$(field LABEL)" "$(field UUID)"
    fi
    return
  fi
  found=$(wipefs --no-act --noheadings --output TYPE "$1") || found=unreadable
  [[ -z $found ]] || printf '%s - -' "$(head --lines=1 <<<"$found")"
}

# all_zero DEVICE OFFSET LENGTH (bytes)
all_zero() {
  cmp --silent --bytes="$3" --ignore-initial="$2:0" "$1" /dev/zero
}

# is_blank DEVICE: no signature, no partitions, and nothing but zeros at the head, at the tail and at places in between.
is_blank() {
  local device=$1 size edge=$((16 << 20)) sample=$((1 << 20)) part
  [[ -z $(signature "$device") ]] || return 1
  [[ -z $(lsblk --noheadings --raw --output TYPE "$device" | sed 1d) ]] || return 1
  size=$(blockdev --getsize64 "$device")
  ((size >= edge)) || edge=$size
  all_zero "$device" 0 "$edge" || return 1
  all_zero "$device" $((size - edge)) "$edge" || return 1
  ((size > 4 * edge)) || return 0
  for part in {1..31}; do
    all_zero "$device" $((size * part / 32)) "$sample" || return 1
  done
}
