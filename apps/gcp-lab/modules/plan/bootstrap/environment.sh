# shellcheck shell=bash
# What the tests replace: a folder for the root of every path that is written, a metadata server on loopback, loop devices.
# On a machine none of these is set.

: "${K3_ROOT:=}"
: "${K3_METADATA_URL:=http://metadata.google.internal/computeMetadata/v1}"
: "${K3_BY_ID:=/dev/disk/by-id}"
: "${K3_DEVICE_WAIT:=120}"
: "${K3_NODE_MIRROR:=https://nodejs.org/dist}"
: "${K3_CURL_PROTOCOLS:==https}"
: "${K3_USER:=k3}"
: "${K3_FINDMNT:=findmnt}"
: "${K3_MKFS:=mkfs.ext4}"
: "${K3_MDADM:=mdadm}"
: "${K3_ARRAY:=/dev/md/k3-local}"
: "${K3_SYSTEMCTL:=systemctl}"

# shellcheck disable=SC2034 # used in other files
# The label of our file system on the data disk, and of the one on local SSD.
readonly DATA_LABEL=k3-data LOCAL_LABEL=k3-local
