# shellcheck shell=bash
# One line an event, on standard output: the guest agent puts it into the journal and on the serial console.

log() {
  printf '%s k3-lab: %s\n' "$(date --utc +%Y-%m-%dT%H:%M:%SZ)" "$*"
}

# refuse WHAT HINT: something that only a person can decide. Exit 2, as everywhere in k3. Standard error, so that it is seen even
# from within a command substitution.
refuse() {
  log "REFUSED: $1" >&2
  log "what to do: $2" >&2
  exit 2
}

# fail CODE WHAT HINT
fail() {
  log "FAILED: $2" >&2
  log "what to do: $3" >&2
  exit "$1"
}
