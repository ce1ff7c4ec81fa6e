# shellcheck shell=bash
# Reads the machine's metadata. https://cloud.google.com/compute/docs/metadata

# metadata PATH [DEFAULT]: prints the value; the default when there is none (404). Any other failure ends the script after retries.
metadata() {
  local answer status
  answer=$(curl --silent --show-error --max-time 10 --retry 8 --retry-delay 1 --retry-connrefused --retry-max-time 120 \
    --header 'Metadata-Flavor: Google' --write-out '\n%{http_code}' "$K3_METADATA_URL/$1") ||
    fail 6 "the metadata server does not answer" "start the script again: sudo google_metadata_script_runner startup"
  status=${answer##*$'\n'}
  case $status in
    200) printf '%s' "${answer%$'\n'*}" ;;
    404) printf '%s' "${2-}" ;;
    *) fail 6 "the metadata server answered $status for $1" "start the script again: sudo google_metadata_script_runner startup" ;;
  esac
}

# Metadata can be read by everyone who may see the machine, and by every process on it.
refuse_tokens_in_metadata() {
  local scope name
  for scope in instance project; do
    while read -r name; do
      case ${name,,} in
        *hf?token* | *hugging*token*)
          refuse "the $scope metadata has an attribute $name: a token there is readable by anyone who may see this machine" \
            "delete the attribute, revoke that token, and give a new one with: sudo k3-token"
          ;;
      esac
    done < <(metadata "$scope/attributes/")
  done
}

log_machine() {
  local type zone spot
  type=$(metadata instance/machine-type unknown)
  zone=$(metadata instance/zone unknown)
  spot=$(metadata instance/scheduling/preemptible FALSE)
  log "machine ${type##*/} in ${zone##*/}, spot $spot"
}
