# What is decided is in modules/plan, which needs no provider and is tested by itself; what is created is in the files beside this one.

module "plan" {
  source = "./modules/plan"

  project_id           = var.project_id
  zone                 = var.zone
  name                 = var.name
  labels               = var.labels
  machine_type         = var.machine_type
  spot                 = var.spot
  max_run_hours        = var.max_run_hours
  image                = var.image
  boot_disk_type       = var.boot_disk_type
  boot_disk_gb         = var.boot_disk_gb
  data_disk_type       = var.data_disk_type
  data_disk_gb         = var.data_disk_gb
  hyperdisk_iops       = var.hyperdisk_iops
  hyperdisk_throughput = var.hyperdisk_throughput
  local_ssd_count      = var.local_ssd_count
  outbound             = var.outbound
  ssh_members          = var.ssh_members
  budget_amount        = var.budget_amount
  pipeline             = var.pipeline
  k3_version           = var.k3_version
  node_version         = var.node_version
  node_sha256          = var.node_sha256
  model_repo           = var.model_repo
  model_commit         = var.model_commit
  prompt               = var.prompt
  generate             = var.generate
}

data "google_project" "lab" {
  project_id = var.project_id
}

resource "google_project_service" "needed" {
  for_each = module.plan.services

  service            = each.value
  disable_on_destroy = false
}
