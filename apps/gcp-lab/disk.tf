# The checkpoint took hours to arrive. Terraform refuses to destroy it; the README's teardown says how to do it on purpose.

resource "google_compute_disk" "data" {
  name   = module.plan.names.data_disk
  zone   = var.zone
  type   = var.data_disk_type
  size   = var.data_disk_gb
  labels = module.plan.labels

  provisioned_iops       = module.plan.data_disk.iops
  provisioned_throughput = module.plan.data_disk.throughput

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.needed]
}
