# Only project_id has no default. Every rule about values lives in modules/plan, where `terraform test` can reach it.

variable "project_id" {
  description = "The Google Cloud project that pays."
  type        = string
}

variable "zone" {
  description = "Zone of the machine and its disks; a disk never leaves its zone."
  type        = string
  default     = "us-central1-a"
}

variable "name" {
  description = "Prefix of every resource's name."
  type        = string
  default     = "k3-lab"
}

variable "labels" {
  description = "More labels for billing reports."
  type        = map(string)
  default     = {}
}

variable "machine_type" {
  description = "e2-standard-4 is the blog's machine. Disk limits rise with the number of vCPUs."
  type        = string
  default     = "e2-standard-4"
}

variable "machine_present" {
  description = "false removes the machine, its boot disk and the NAT, and keeps the data disk."
  type        = bool
  default     = true
}

variable "spot" {
  description = "A Spot machine: about a third of the price, can be stopped at any moment; the pipeline continues when it is started again."
  type        = bool
  default     = false
}

variable "max_run_hours" {
  description = "Google stops the machine after so many hours of running, 0 for never. Unlike a budget, this is a cap on what the machine costs; disks go on."
  type        = number
  default     = 0
}

variable "image" {
  description = "Boot image, pinned to one build."
  type        = string
  default     = "projects/ubuntu-os-cloud/global/images/ubuntu-2404-noble-amd64-v20251205"
}

variable "boot_disk_type" {
  description = "Type of the boot disk."
  type        = string
  default     = "pd-balanced"
}

variable "boot_disk_gb" {
  description = "Size of the boot disk in GiB. Nothing of the model is stored there."
  type        = number
  default     = 50
}

variable "data_disk_type" {
  description = "pd-standard, pd-balanced, pd-ssd or hyperdisk-balanced."
  type        = string
  default     = "pd-standard"
}

variable "data_disk_gb" {
  description = "Size of the data disk in GiB: the checkpoint (1.56 TB), the packed trunk and room for work."
  type        = number
  default     = 2000
}

variable "hyperdisk_iops" {
  description = "Provisioned IOPS, for hyperdisk-balanced only; 0 for Google's default."
  type        = number
  default     = 0
}

variable "hyperdisk_throughput" {
  description = "Provisioned MiB per second, for hyperdisk-balanced only; 0 for Google's default."
  type        = number
  default     = 0
}

variable "local_ssd_count" {
  description = "Local SSDs of 375 GiB for the packed trunk. THEY LOSE EVERYTHING WHEN THE MACHINE STOPS; the checkpoint stays on the data disk and the trunk is packed again."
  type        = number
  default     = 0
}

variable "outbound" {
  description = "How the machine reaches the internet: external-ip (an address that nothing can connect to; bytes in are free) or nat (no address; every byte is charged, about 65 USD for the download)."
  type        = string
  default     = "external-ip"
}

variable "ssh_members" {
  description = "Who besides the project's owners may use SSH, as IAM members (user:someone@example.com)."
  type        = list(string)
  default     = []
}

variable "budget_amount" {
  description = "Monthly budget that sends mail, in the billing account's currency; 0 for none. IT IS NO CAP: nothing stops when it is reached, and billing lags by hours."
  type        = number
  default     = 150
}

variable "pipeline" {
  description = "start: the machine begins the pipeline by itself and continues it after every boot. hold: it only sets itself up."
  type        = string
  default     = "start"
}

variable "k3_version" {
  description = "Version of @k3/cli, exact."
  type        = string
  default     = "0.1.0"
}

variable "node_version" {
  description = "Version of Node.js, exact; change it together with node_sha256."
  type        = string
  default     = "22.21.1"
}

variable "node_sha256" {
  description = "SHA-256 of node-vVERSION-linux-x64.tar.xz, from the SHASUMS256.txt of that release."
  type        = string
  default     = "680d3f30b24a7ff24b98db5e96f294c0070f8f9078df658da1bce1b9c9873c88"
}

variable "model_repo" {
  description = "Repository of the model on the Hugging Face Hub."
  type        = string
  default     = "moonshotai/Kimi-K3"
}

variable "model_commit" {
  description = "Commit of the model, 40 hexadecimal digits; never a branch."
  type        = string
  default     = "a590ce090cb049c93a33dfe8c208ec652aa20503"
}

variable "prompt" {
  description = "What the pipeline's run continues."
  type        = string
  default     = "The capital of France is"
}

variable "generate" {
  description = "Tokens that the pipeline's run generates."
  type        = number
  default     = 8
}
