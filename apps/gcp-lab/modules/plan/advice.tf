# What a person reads after `apply`.

locals {
  target = "${var.name} --project=${var.project_id} --zone=${var.zone}"
  tunnel = "gcloud compute ssh ${local.target} --tunnel-through-iap"

  # Stopping a machine that has local SSDs has to be asked for in so many words.
  stop_flags = var.local_ssd_count > 0 ? " --discard-local-ssd=true" : ""

  commands = {
    ssh             = local.tunnel
    log             = "${local.tunnel} --command='sudo journalctl --unit=k3-pipeline --follow'"
    bootstrap_log   = "${local.tunnel} --command='sudo journalctl --unit=google-startup-scripts --no-pager'"
    status          = "${local.tunnel} --command='k3 pipeline --status --dir ${local.paths.directory}'"
    stop            = "gcloud compute instances stop ${local.target}${local.stop_flags}"
    without_machine = "The data disk ${local.names.data_disk} is kept and costs money every day. Set machine_present = true and apply to go on, or follow the README's teardown."
    next_step = (
      var.pipeline == "start"
      ? "Wait a few minutes for `Bootstrap complete` in bootstrap_log, then watch `log`. The pipeline downloads 1.56 TB, verifies, packs and runs by itself."
      : "Wait a few minutes for `Bootstrap complete` in bootstrap_log, then set pipeline = \"start\" and apply, or start it by hand: sudo systemctl start k3-pipeline."
    )
  }

  warnings = compact([
    var.outbound == "nat"
    ? "outbound = nat: Cloud NAT charges for every byte through it, in too; the download alone is 1.56 TB (see the cost sheet). outbound = external-ip avoids that and still lets nobody in."
    : "",
    var.local_ssd_count > 0
    ? "LOCAL SSD LOSES EVERYTHING WHEN THE MACHINE STOPS, is pre-empted or fails. Only the packed trunk is put there; the checkpoint stays on ${local.names.data_disk}, and the trunk is packed again after a stop."
    : "",
    var.spot
    ? "spot = true: Google may stop the machine at any moment with 30 seconds' notice. Nothing starts it again by itself; when you do, the pipeline continues."
    : "",
    var.budget_amount > 0
    ? "THE BUDGET IS NO CAP: it sends mail, hours late, and stops nothing. max_run_hours stops the machine; disks cost until they are deleted."
    : "NO BUDGET ALERT: budget_amount is 0, nobody will be told what this costs.",
    var.max_run_hours == 0
    ? "max_run_hours = 0: the machine runs, and costs, until you stop it; also when the pipeline has finished."
    : "",
  ])
}

output "commands" {
  value = local.commands
}

output "warnings" {
  value = local.warnings
}
