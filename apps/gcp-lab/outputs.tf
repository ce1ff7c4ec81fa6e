output "ssh" {
  description = "A shell on the machine, through Identity-Aware Proxy."
  value       = module.plan.commands.ssh
}

output "log" {
  description = "What the machine is doing right now."
  value       = module.plan.commands.log
}

output "bootstrap_log" {
  description = "How the set-up went; its last line is `Bootstrap complete`."
  value       = module.plan.commands.bootstrap_log
}

output "status" {
  description = "How far the pipeline is."
  value       = module.plan.commands.status
}

output "stop" {
  description = "Stops the machine; disks go on costing."
  value       = module.plan.commands.stop
}

output "next_step" {
  description = "What to do now."
  value       = var.machine_present ? module.plan.commands.next_step : module.plan.commands.without_machine
}

output "warnings" {
  description = "What this choice of options costs or risks."
  value       = module.plan.warnings
}

output "pinned" {
  description = "What this lab is made of, for a report."
  value       = module.plan.pinned
}
