output "region" {
  value = local.region
}

output "names" {
  value = local.names
}

output "labels" {
  value = local.labels
}

output "services" {
  description = "Google APIs that have to be switched on."
  value = toset(concat(
    [
      "cloudresourcemanager.googleapis.com",
      "compute.googleapis.com",
      "iam.googleapis.com",
      "iap.googleapis.com",
      "oslogin.googleapis.com",
    ],
    var.budget_amount > 0 ? ["billingbudgets.googleapis.com"] : [],
  ))
}

output "subnet_range" {
  value = "10.78.0.0/28"
}

output "uses_nat" {
  value = var.outbound == "nat"
}

output "uses_external_ip" {
  value = var.outbound == "external-ip"
}

output "data_disk" {
  value = {
    iops       = var.hyperdisk_iops > 0 ? var.hyperdisk_iops : null
    throughput = var.hyperdisk_throughput > 0 ? var.hyperdisk_throughput : null
  }
}

output "scheduling" {
  value = {
    provisioning_model          = var.spot ? "SPOT" : "STANDARD"
    preemptible                 = var.spot
    automatic_restart           = !var.spot
    on_host_maintenance         = var.spot ? "TERMINATE" : "MIGRATE"
    instance_termination_action = local.stops_by_itself ? "STOP" : null
  }
}

output "metadata" {
  description = "Everything that is written into the machine's metadata, which anyone who may see the machine can read."
  value = {
    block-project-ssh-keys = "TRUE"
    enable-oslogin         = "TRUE"
    serial-port-enable     = "FALSE"
    k3-pipeline            = var.pipeline
    startup-script         = local.startup_script
  }
}

output "startup_script" {
  value = local.startup_script
}

output "budget_thresholds" {
  value = [
    { percent = 0.5, basis = "CURRENT_SPEND" },
    { percent = 0.9, basis = "CURRENT_SPEND" },
    { percent = 1.0, basis = "CURRENT_SPEND" },
    { percent = 1.0, basis = "FORECASTED_SPEND" },
  ]
}

output "pinned" {
  value = {
    image        = var.image
    node         = var.node_version
    k3           = var.k3_version
    model_repo   = var.model_repo
    model_commit = var.model_commit
  }
}
