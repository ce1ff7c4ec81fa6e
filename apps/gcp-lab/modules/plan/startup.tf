# The start-up script: settings, then the functions of bootstrap/*.sh, then the files it installs, then one call.

locals {
  paths = {
    mount     = "/mnt/k3-data"
    directory = "/mnt/k3-data/k3"
    local_ssd = "/mnt/k3-local"
  }

  settings = {
    K3_LAB_DATA_DISK       = local.names.data_disk
    K3_LAB_MOUNT           = local.paths.mount
    K3_LAB_DIRECTORY       = local.paths.directory
    K3_LAB_LOCAL_SSD_COUNT = tostring(var.local_ssd_count)
    K3_LAB_LOCAL_MOUNT     = local.paths.local_ssd
    K3_LAB_NODE_VERSION    = var.node_version
    K3_LAB_NODE_SHA256     = var.node_sha256
    K3_LAB_K3_VERSION      = var.k3_version
    K3_LAB_MODEL_REPO      = var.model_repo
    K3_LAB_MODEL_COMMIT    = var.model_commit
    K3_LAB_PROMPT          = var.prompt
    K3_LAB_GENERATE        = tostring(var.generate)
  }

  # Order matters only for reading: every file but the last defines functions and runs nothing.
  bootstrap_files = ["environment", "log", "metadata", "device", "format", "mount", "local-ssd", "install", "service", "main"]

  startup_script = templatefile("${path.module}/startup.sh.tftpl", {
    # Single quotes keep every character as it is; a single quote itself is closed, escaped and opened again.
    settings = { for key, value in local.settings : key => "'${replace(value, "'", "'\\''")}'" }
    library  = [for name in local.bootstrap_files : file("${path.module}/bootstrap/${name}.sh")]
    helper   = file("${path.module}/bootstrap/k3-token")
    unit     = templatefile("${path.module}/k3-pipeline.service.tftpl", local.paths)
  })
}
