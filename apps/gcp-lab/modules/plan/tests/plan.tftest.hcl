# What is decided for the choices that are accepted.

variables {
  project_id           = "my-project-1"
  zone                 = "us-central1-a"
  name                 = "k3-lab"
  labels               = {}
  machine_type         = "e2-standard-4"
  spot                 = false
  max_run_hours        = 0
  image                = "projects/ubuntu-os-cloud/global/images/ubuntu-2404-noble-amd64-v20251205"
  boot_disk_type       = "pd-balanced"
  boot_disk_gb         = 50
  data_disk_type       = "pd-standard"
  data_disk_gb         = 2000
  hyperdisk_iops       = 0
  hyperdisk_throughput = 0
  local_ssd_count      = 0
  outbound             = "external-ip"
  ssh_members          = []
  budget_amount        = 150
  pipeline             = "start"
  k3_version           = "0.1.0"
  node_version         = "22.21.1"
  node_sha256          = "680d3f30b24a7ff24b98db5e96f294c0070f8f9078df658da1bce1b9c9873c88"
  model_repo           = "moonshotai/Kimi-K3"
  model_commit         = "a590ce090cb049c93a33dfe8c208ec652aa20503"
  prompt               = "The capital of France is"
  generate             = 8
}

run "the_blog_machine" {
  command = plan

  assert {
    condition     = output.region == "us-central1"
    error_message = "the region is the zone without its letter"
  }

  assert {
    condition     = output.uses_external_ip && !output.uses_nat
    error_message = "the way out that does not charge for the download"
  }

  assert {
    condition = jsonencode(output.scheduling) == jsonencode({
      provisioning_model          = "STANDARD"
      preemptible                 = false
      automatic_restart           = true
      on_host_maintenance         = "MIGRATE"
      instance_termination_action = null
    })
    error_message = "an ordinary machine is restarted by Google and never stops by itself"
  }

  assert {
    condition     = output.labels == { app = "k3", lab = "k3-lab", managed-by = "terraform", model-commit = "a590ce090cb0" }
    error_message = "labels for billing reports"
  }

  assert {
    condition     = toset(keys(output.metadata)) == toset(["block-project-ssh-keys", "enable-oslogin", "serial-port-enable", "k3-pipeline", "startup-script"])
    error_message = "metadata is readable by many: every key is named here"
  }

  assert {
    condition     = output.metadata.enable-oslogin == "TRUE" && output.metadata.block-project-ssh-keys == "TRUE" && output.metadata.serial-port-enable == "FALSE"
    error_message = "logins go through OS Login only"
  }

  assert {
    condition     = length(output.startup_script) < 200000
    error_message = "Google accepts 256 KB of metadata"
  }

  assert {
    condition     = output.commands.ssh == "gcloud compute ssh k3-lab --project=my-project-1 --zone=us-central1-a --tunnel-through-iap"
    error_message = "SSH goes through Identity-Aware Proxy"
  }

  assert {
    condition     = output.commands.log == "gcloud compute ssh k3-lab --project=my-project-1 --zone=us-central1-a --tunnel-through-iap --command='sudo journalctl --unit=k3-pipeline --follow'"
    error_message = "the log command follows the unit's journal, through the tunnel"
  }

  assert {
    condition     = output.commands.status == "gcloud compute ssh k3-lab --project=my-project-1 --zone=us-central1-a --tunnel-through-iap --command='k3 pipeline --status --dir /mnt/k3-data/k3'"
    error_message = "the status command asks k3 in the pipeline's directory"
  }

  assert {
    condition     = output.commands.stop == "gcloud compute instances stop k3-lab --project=my-project-1 --zone=us-central1-a"
    error_message = "the stop command"
  }

  assert {
    condition     = strcontains(output.commands.next_step, "Bootstrap complete") && strcontains(output.commands.next_step, "`log`")
    error_message = "the next step says what to wait for and what to watch"
  }

  assert {
    condition = jsonencode(output.budget_thresholds) == jsonencode([
      { percent = 0.5, basis = "CURRENT_SPEND" },
      { percent = 0.9, basis = "CURRENT_SPEND" },
      { percent = 1.0, basis = "CURRENT_SPEND" },
      { percent = 1.0, basis = "FORECASTED_SPEND" },
    ])
    error_message = "mail at half, at nine tenths, when it is spent and when it will be"
  }

  assert {
    condition     = length([for warning in output.warnings : warning if strcontains(warning, "NO CAP")]) == 1
    error_message = "the budget's warning"
  }

  assert {
    condition     = output.data_disk.iops == null && output.data_disk.throughput == null
    error_message = "only hyperdisks are provisioned"
  }
}

run "spot" {
  command = plan

  variables {
    spot = true
  }

  assert {
    condition = jsonencode(output.scheduling) == jsonencode({
      provisioning_model          = "SPOT"
      preemptible                 = true
      automatic_restart           = false
      on_host_maintenance         = "TERMINATE"
      instance_termination_action = "STOP"
    })
    error_message = "a pre-empted machine is stopped, not deleted"
  }

  assert {
    condition     = length([for warning in output.warnings : warning if strcontains(warning, "spot = true")]) == 1
    error_message = "the warning about Spot"
  }
}

run "timed" {
  command = plan

  variables {
    max_run_hours = 48
  }

  assert {
    condition     = output.scheduling.instance_termination_action == "STOP" && output.scheduling.provisioning_model == "STANDARD"
    error_message = "a machine with a time limit is stopped, not deleted"
  }

  assert {
    condition     = length([for warning in output.warnings : warning if strcontains(warning, "max_run_hours = 0")]) == 0
    error_message = "no warning about a machine that runs for ever"
  }
}

run "local_ssd" {
  command = plan

  variables {
    machine_type    = "n2-standard-8"
    local_ssd_count = 2
  }

  assert {
    condition     = length([for warning in output.warnings : warning if startswith(warning, "LOCAL SSD LOSES EVERYTHING")]) == 1
    error_message = "the loud warning"
  }

  assert {
    condition     = strcontains(output.startup_script, "\nK3_LAB_LOCAL_SSD_COUNT='2'\n")
    error_message = "the start-up script knows of them"
  }

  assert {
    condition     = endswith(output.commands.stop, " --discard-local-ssd=true")
    error_message = "the stop command that Google asks for"
  }
}

run "on_hold" {
  command = plan

  variables {
    pipeline = "hold"
  }

  assert {
    condition     = output.metadata["k3-pipeline"] == "hold" && strcontains(output.commands.next_step, "sudo systemctl start k3-pipeline")
    error_message = "the machine is told to wait, and the person how to start it"
  }
}

run "balanced" {
  command = plan

  variables {
    data_disk_type = "pd-balanced"
  }

  assert {
    condition     = output.data_disk.iops == null
    error_message = "pd-balanced goes with the default machine, and is not provisioned"
  }
}

run "ssd" {
  command = plan

  variables {
    data_disk_type = "pd-ssd"
  }

  assert {
    condition     = output.data_disk.iops == null
    error_message = "pd-ssd goes with the default machine, and is not provisioned"
  }
}

run "hyperdisk" {
  command = plan

  variables {
    machine_type         = "c3-standard-8"
    data_disk_type       = "hyperdisk-balanced"
    hyperdisk_iops       = 6000
    hyperdisk_throughput = 800
  }

  assert {
    condition     = output.data_disk.iops == 6000 && output.data_disk.throughput == 800
    error_message = "provisioned performance is passed on"
  }
}

run "without_an_address" {
  command = plan

  variables {
    outbound = "nat"
  }

  assert {
    condition     = output.uses_nat && !output.uses_external_ip
    error_message = "without an external address there has to be a NAT"
  }

  assert {
    condition     = length([for warning in output.warnings : warning if strcontains(warning, "Cloud NAT charges")]) == 1
    error_message = "what the NAT costs is said"
  }
}

run "without_budget" {
  command = plan

  variables {
    budget_amount = 0
  }

  assert {
    condition     = !contains(output.services, "billingbudgets.googleapis.com") && contains(output.services, "iap.googleapis.com")
    error_message = "no budget, no API for it"
  }

  assert {
    condition     = length([for warning in output.warnings : warning if startswith(warning, "NO BUDGET ALERT")]) == 1
    error_message = "that nobody is told is said"
  }
}

run "a_prompt_with_quotes_stays_one_word" {
  command = plan

  variables {
    prompt = "l'été $(reboot) `id` \"x\" \\ %s"
  }

  assert {
    condition     = strcontains(output.startup_script, "\nK3_LAB_PROMPT='l'\\''été $(reboot) `id` \"x\" \\ %s'\n")
    error_message = "single quotes, and the one inside escaped"
  }
}

run "pins_reach_the_script" {
  command = plan

  assert {
    condition = alltrue([for line in [
      "K3_LAB_NODE_VERSION='22.21.1'",
      "K3_LAB_NODE_SHA256='680d3f30b24a7ff24b98db5e96f294c0070f8f9078df658da1bce1b9c9873c88'",
      "K3_LAB_K3_VERSION='0.1.0'",
      "K3_LAB_MODEL_COMMIT='a590ce090cb049c93a33dfe8c208ec652aa20503'",
      "K3_LAB_DATA_DISK='k3-lab-data'",
    ] : strcontains(output.startup_script, "\n${line}\n")])
    error_message = "pinned versions are rendered into the script"
  }

  assert {
    condition     = endswith(output.startup_script, "\nbootstrap \"$@\"\n") && startswith(output.startup_script, "#!/bin/bash\n")
    error_message = "the script begins with its interpreter and ends with the one call"
  }
}

run "the_unit_restarts_what_can_mend" {
  command = plan

  assert {
    condition = alltrue([for line in [
      "Restart=on-failure",
      "RestartPreventExitStatus=1 2 3 5",
      "SuccessExitStatus=130",
      "StartLimitIntervalSec=0",
      "ConditionPathIsMountPoint=/mnt/k3-data",
      "RequiresMountsFor=/mnt/k3-data/k3",
      "WantedBy=multi-user.target",
      "Environment=HF_TOKEN_PATH=/run/k3/hf-token",
    ] : strcontains(output.startup_script, "\n${line}\n")])
    error_message = "restart rules of the unit"
  }

  assert {
    condition     = !can(regex("hf_[A-Za-z0-9]", output.startup_script)) && !can(regex("HF_TOKEN=", output.startup_script))
    error_message = "no token in the script"
  }
}
