# Meanings and defaults are in the root module's variables.tf; here are the rules.

variable "project_id" {
  type = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id)) && var.project_id != "your-project-id"
    error_message = "project_id must be the id of your project (6 to 30 of a-z, 0-9 and -), not its name or number."
  }
}

variable "zone" {
  type = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", var.zone))
    error_message = "zone must look like us-central1-a."
  }
}

variable "name" {
  type = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{2,20}[a-z0-9]$", var.name))
    error_message = "name must be 4 to 22 of a-z, 0-9 and -, beginning with a letter and not ending with -."
  }
}

variable "labels" {
  type = map(string)

  validation {
    condition = alltrue([
      for key, value in var.labels :
      can(regex("^[a-z][a-z0-9_-]{0,62}$", key)) && can(regex("^[a-z0-9_-]{0,63}$", value))
    ])
    error_message = "labels may hold only a-z, 0-9, _ and -, at most 63 of them, and a key begins with a letter."
  }
}

variable "machine_type" {
  type = string

  validation {
    condition     = contains(local.known_families, split("-", var.machine_type)[0]) && !endswith(var.machine_type, "lssd")
    error_message = "machine_type must be of a family this lab knows, all x86-64: ${join(", ", local.known_families)}. Types with built-in local SSD (-lssd, z3) are not supported; use local_ssd_count."
  }
}

variable "spot" {
  type = bool
}

variable "max_run_hours" {
  type = number

  validation {
    condition     = var.max_run_hours >= 0 && floor(var.max_run_hours) == var.max_run_hours && var.max_run_hours <= 2880
    error_message = "max_run_hours must be a whole number of hours from 0 (never stopped) to 2880."
  }

  validation {
    condition     = var.max_run_hours == 0 || var.local_ssd_count == 0
    error_message = "max_run_hours stops the machine, and a stop loses what is on local SSD: choose one of the two."
  }
}

variable "image" {
  type = string

  validation {
    condition     = can(regex("^projects/ubuntu-os-cloud/global/images/ubuntu-2404-noble-amd64-v[0-9]{8}[a-z]?$", var.image))
    error_message = "image must name one build of Ubuntu 24.04 for amd64 (projects/ubuntu-os-cloud/global/images/ubuntu-2404-noble-amd64-vDATE), not a family: the start-up script is tested on that."
  }
}

variable "boot_disk_type" {
  type = string

  validation {
    condition     = contains(local.disk_types, var.boot_disk_type)
    error_message = "boot_disk_type ${var.boot_disk_type} does not go with ${var.machine_type}: use one of ${join(", ", local.disk_types)}."
  }
}

variable "boot_disk_gb" {
  type = number

  validation {
    condition     = var.boot_disk_gb >= 20 && floor(var.boot_disk_gb) == var.boot_disk_gb
    error_message = "boot_disk_gb must be a whole number, 20 or more."
  }
}

variable "data_disk_type" {
  type = string

  validation {
    condition     = contains(local.disk_types, var.data_disk_type)
    error_message = "data_disk_type ${var.data_disk_type} does not go with ${var.machine_type}: use one of ${join(", ", local.disk_types)}."
  }
}

variable "data_disk_gb" {
  type = number

  validation {
    condition     = var.data_disk_gb >= local.least_data_gb && floor(var.data_disk_gb) == var.data_disk_gb
    error_message = "data_disk_gb must be a whole number, ${local.least_data_gb} or more: the checkpoint is 1.56 TB (1,453 GiB) and the packed trunk comes on top."
  }
}

variable "hyperdisk_iops" {
  type = number

  validation {
    condition     = var.hyperdisk_iops == 0 || (var.data_disk_type == "hyperdisk-balanced" && var.hyperdisk_iops >= 3000)
    error_message = "hyperdisk_iops is for hyperdisk-balanced, 3000 or more; leave it 0 for every other type."
  }
}

variable "hyperdisk_throughput" {
  type = number

  validation {
    condition     = var.hyperdisk_throughput == 0 || (var.data_disk_type == "hyperdisk-balanced" && var.hyperdisk_throughput >= 140)
    error_message = "hyperdisk_throughput is for hyperdisk-balanced, 140 MiB per second or more; leave it 0 for every other type."
  }
}

variable "local_ssd_count" {
  type = number

  validation {
    condition     = contains([0, 1, 2, 4, 8, 16, 24], var.local_ssd_count)
    error_message = "local_ssd_count must be 0, 1, 2, 4, 8, 16 or 24."
  }

  validation {
    condition     = var.local_ssd_count == 0 || contains(local.local_ssd_families, local.family)
    error_message = "${var.machine_type} takes no local SSD: use a machine of ${join(", ", local.local_ssd_families)}."
  }
}

variable "outbound" {
  type = string

  validation {
    condition     = contains(["nat", "external-ip"], var.outbound)
    error_message = "outbound must be nat or external-ip."
  }
}

variable "ssh_members" {
  type = list(string)

  validation {
    condition     = alltrue([for member in var.ssh_members : can(regex("^(user|group|serviceAccount|domain):[^:\\s]+$", member))])
    error_message = "ssh_members are IAM members such as user:someone@example.com; allUsers and allAuthenticatedUsers are refused."
  }
}

variable "budget_amount" {
  type = number

  validation {
    condition     = var.budget_amount >= 0 && floor(var.budget_amount) == var.budget_amount
    error_message = "budget_amount must be a whole number, or 0 for no budget."
  }
}

variable "pipeline" {
  type = string

  validation {
    condition     = contains(["start", "hold"], var.pipeline)
    error_message = "pipeline must be start or hold."
  }
}

variable "k3_version" {
  type = string

  validation {
    condition     = can(regex("^[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?$", var.k3_version))
    error_message = "k3_version must be one exact version, not a range or a tag."
  }
}

variable "node_version" {
  type = string

  validation {
    condition     = can(regex("^(20|22|24)\\.[0-9]+\\.[0-9]+$", var.node_version))
    error_message = "node_version must be one exact version of Node.js 20, 22 or 24."
  }
}

variable "node_sha256" {
  type = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.node_sha256))
    error_message = "node_sha256 must be 64 lower-case hexadecimal digits."
  }
}

variable "model_repo" {
  type = string

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$", var.model_repo))
    error_message = "model_repo must look like owner/name."
  }
}

variable "model_commit" {
  type = string

  validation {
    condition     = can(regex("^[0-9a-f]{40}$", var.model_commit))
    error_message = "model_commit must be a full commit of 40 hexadecimal digits: a branch could change between two boots."
  }
}

variable "prompt" {
  type = string

  validation {
    condition     = length(var.prompt) > 0 && !can(regex("[[:cntrl:]]", var.prompt))
    error_message = "prompt must be one line of text, not empty."
  }
}

variable "generate" {
  type = number

  validation {
    condition     = var.generate >= 1 && floor(var.generate) == var.generate
    error_message = "generate must be a whole number, 1 or more."
  }
}
