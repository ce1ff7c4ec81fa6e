# The machine's own identity may write log entries and nothing else.

resource "google_service_account" "lab" {
  account_id   = module.plan.names.service_account
  display_name = "k3 lab machine"

  depends_on = [google_project_service.needed]
}

resource "google_project_iam_member" "log_writer" {
  project = var.project_id
  role    = "roles/logging.logWriter"
  member  = google_service_account.lab.member
}

# People in ssh_members: the tunnel to this machine, a login on this machine, and the right to act on a machine with its identity.

resource "google_iap_tunnel_instance_iam_member" "tunnel" {
  for_each = var.machine_present ? toset(var.ssh_members) : toset([])

  zone     = var.zone
  instance = google_compute_instance.lab[0].name
  role     = "roles/iap.tunnelResourceAccessor"
  member   = each.value
}

resource "google_compute_instance_iam_member" "login" {
  for_each = var.machine_present ? toset(var.ssh_members) : toset([])

  zone          = var.zone
  instance_name = google_compute_instance.lab[0].name
  role          = "roles/compute.osAdminLogin"
  member        = each.value
}

resource "google_service_account_iam_member" "act_as" {
  for_each = toset(var.ssh_members)

  service_account_id = google_service_account.lab.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}
