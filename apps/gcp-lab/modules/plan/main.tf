locals {
  region = join("-", slice(split("-", var.zone), 0, 2))
  family = split("-", var.machine_type)[0]

  # Which families take which disks, after Google's table of machine series and disk types. All of them are x86-64.
  persistent_disk_families = ["c2", "c2d", "c3", "c3d", "e2", "n1", "n2", "n2d", "t2d"]
  hyperdisk_families       = ["c3", "c3d", "c4", "c4d", "n4"]
  local_ssd_families       = ["c2", "c2d", "n1", "n2", "n2d"]
  known_families           = sort(distinct(concat(local.persistent_disk_families, local.hyperdisk_families)))

  disk_types = concat(
    contains(local.persistent_disk_families, local.family) ? ["pd-standard", "pd-balanced", "pd-ssd"] : [],
    contains(local.hyperdisk_families, local.family) ? ["hyperdisk-balanced"] : [],
  )

  # GiB: 1,453 for the checkpoint, 72 for the packed trunk, the rest for journals, results and the file system.
  least_data_gb = 1600

  labels = merge(var.labels, {
    app          = "k3"
    lab          = var.name
    managed-by   = "terraform"
    model-commit = substr(var.model_commit, 0, 12)
  })

  names = {
    machine         = var.name
    boot_disk       = "${var.name}-boot"
    data_disk       = "${var.name}-data"
    network         = "${var.name}-network"
    subnetwork      = "${var.name}-subnet"
    firewall        = "${var.name}-iap-ssh"
    router          = "${var.name}-router"
    nat             = "${var.name}-nat"
    service_account = "${var.name}-vm"
    budget          = "${var.name} (an alert, no cap)"
  }

  stops_by_itself = var.spot || var.max_run_hours > 0
}
