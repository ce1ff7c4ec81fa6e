resource "google_compute_instance" "lab" {
  count = var.machine_present ? 1 : 0

  name                      = module.plan.names.machine
  zone                      = var.zone
  machine_type              = var.machine_type
  labels                    = module.plan.labels
  metadata                  = module.plan.metadata
  allow_stopping_for_update = true
  can_ip_forward            = false

  boot_disk {
    auto_delete = true
    device_name = module.plan.names.boot_disk

    initialize_params {
      image  = var.image
      type   = var.boot_disk_type
      size   = var.boot_disk_gb
      labels = module.plan.labels
    }
  }

  attached_disk {
    source      = google_compute_disk.data.id
    device_name = module.plan.names.data_disk
    mode        = "READ_WRITE"
  }

  dynamic "scratch_disk" {
    for_each = range(var.local_ssd_count)

    content {
      interface = "NVME"
    }
  }

  network_interface {
    subnetwork = google_compute_subnetwork.lab.id

    dynamic "access_config" {
      for_each = module.plan.uses_external_ip ? ["outbound only"] : []

      content {
        network_tier = "PREMIUM"
      }
    }
  }

  service_account {
    email  = google_service_account.lab.email
    scopes = ["https://www.googleapis.com/auth/logging.write"]
  }

  scheduling {
    provisioning_model          = module.plan.scheduling.provisioning_model
    preemptible                 = module.plan.scheduling.preemptible
    automatic_restart           = module.plan.scheduling.automatic_restart
    on_host_maintenance         = module.plan.scheduling.on_host_maintenance
    instance_termination_action = module.plan.scheduling.instance_termination_action

    dynamic "max_run_duration" {
      for_each = var.max_run_hours > 0 ? [var.max_run_hours * 3600] : []

      content {
        seconds = max_run_duration.value
      }
    }
  }

  shielded_instance_config {
    enable_secure_boot          = true
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  # Without its way out the machine would wait for Node.js in vain.
  depends_on = [google_compute_router_nat.lab]
}
