# What is refused, and that it is refused by the rule of that very variable.

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

run "the_placeholder_is_no_project" {
  command = plan

  variables {
    project_id = "your-project-id"
  }

  expect_failures = [var.project_id]
}

run "a_project_number_is_no_id" {
  command = plan

  variables {
    project_id = "123456789012"
  }

  expect_failures = [var.project_id]
}

run "a_region_is_no_zone" {
  command = plan

  variables {
    zone = "us-central1"
  }

  expect_failures = [var.zone]
}

run "a_label_with_capitals" {
  command = plan

  variables {
    labels = { Team = "x" }
  }

  expect_failures = [var.labels]
}

run "arm_is_not_x86" {
  command = plan

  variables {
    machine_type = "t2a-standard-4"
  }

  expect_failures = [var.machine_type]
}

run "built_in_local_ssd" {
  command = plan

  variables {
    machine_type = "c3-standard-8-lssd"
  }

  expect_failures = [var.machine_type]
}

run "hyperdisk_on_e2" {
  command = plan

  variables {
    data_disk_type = "hyperdisk-balanced"
  }

  expect_failures = [var.data_disk_type]
}

run "persistent_disk_on_n4" {
  command = plan

  variables {
    machine_type   = "n4-standard-4"
    boot_disk_type = "hyperdisk-balanced"
  }

  expect_failures = [var.data_disk_type]
}

run "boot_disk_on_n4" {
  command = plan

  variables {
    machine_type   = "n4-standard-4"
    data_disk_type = "hyperdisk-balanced"
  }

  expect_failures = [var.boot_disk_type]
}

run "smaller_than_the_checkpoint" {
  command = plan

  variables {
    data_disk_gb = 1500
  }

  expect_failures = [var.data_disk_gb]
}

run "local_ssd_on_e2" {
  command = plan

  variables {
    local_ssd_count = 1
  }

  expect_failures = [var.local_ssd_count]
}

run "three_local_ssds" {
  command = plan

  variables {
    machine_type    = "n2-standard-8"
    local_ssd_count = 3
  }

  expect_failures = [var.local_ssd_count]
}

run "a_timed_stop_loses_local_ssd" {
  command = plan

  variables {
    machine_type    = "n2-standard-8"
    local_ssd_count = 1
    max_run_hours   = 24
  }

  expect_failures = [var.max_run_hours]
}

run "iops_without_hyperdisk" {
  command = plan

  variables {
    hyperdisk_iops = 5000
  }

  expect_failures = [var.hyperdisk_iops]
}

run "throughput_without_hyperdisk" {
  command = plan

  variables {
    hyperdisk_throughput = 500
  }

  expect_failures = [var.hyperdisk_throughput]
}

run "too_few_iops" {
  command = plan

  variables {
    machine_type   = "c3-standard-8"
    data_disk_type = "hyperdisk-balanced"
    hyperdisk_iops = 2999
  }

  expect_failures = [var.hyperdisk_iops]
}

run "too_little_throughput" {
  command = plan

  variables {
    machine_type         = "c3-standard-8"
    data_disk_type       = "hyperdisk-balanced"
    hyperdisk_throughput = 139
  }

  expect_failures = [var.hyperdisk_throughput]
}

run "part_of_a_currency_unit" {
  command = plan

  variables {
    budget_amount = 0.5
  }

  expect_failures = [var.budget_amount]
}

run "an_image_family_is_no_pin" {
  command = plan

  variables {
    image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
  }

  expect_failures = [var.image]
}

run "a_branch_is_no_commit" {
  command = plan

  variables {
    model_commit = "main"
  }

  expect_failures = [var.model_commit]
}

run "a_short_commit" {
  command = plan

  variables {
    model_commit = "a590ce09"
  }

  expect_failures = [var.model_commit]
}

run "a_version_range" {
  command = plan

  variables {
    k3_version = "^0.1.0"
  }

  expect_failures = [var.k3_version]
}

run "a_tag_is_no_version" {
  command = plan

  variables {
    k3_version = "latest"
  }

  expect_failures = [var.k3_version]
}

run "an_unsupported_node" {
  command = plan

  variables {
    node_version = "18.20.4"
  }

  expect_failures = [var.node_version]
}

run "a_wrong_checksum" {
  command = plan

  variables {
    node_sha256 = "abc"
  }

  expect_failures = [var.node_sha256]
}

run "everybody_is_nobody" {
  command = plan

  variables {
    ssh_members = ["allUsers"]
  }

  expect_failures = [var.ssh_members]
}

run "an_open_door" {
  command = plan

  variables {
    outbound = "open"
  }

  expect_failures = [var.outbound]
}

run "a_prompt_of_two_lines" {
  command = plan

  variables {
    prompt = "one\ntwo"
  }

  expect_failures = [var.prompt]
}

run "half_a_token" {
  command = plan

  variables {
    generate = 0.5
  }

  expect_failures = [var.generate]
}

run "a_path_as_repository" {
  command = plan

  variables {
    model_repo = "../../etc"
  }

  expect_failures = [var.model_repo]
}

