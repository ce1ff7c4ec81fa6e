# A network of its own with one rule: SSH from Google's Identity-Aware Proxy. Everything else from outside meets the implied "deny".

resource "google_compute_network" "lab" {
  name                    = module.plan.names.network
  auto_create_subnetworks = false

  depends_on = [google_project_service.needed]
}

resource "google_compute_subnetwork" "lab" {
  name                     = module.plan.names.subnetwork
  region                   = module.plan.region
  network                  = google_compute_network.lab.id
  ip_cidr_range            = module.plan.subnet_range
  private_ip_google_access = true
}

resource "google_compute_firewall" "iap_ssh" {
  name          = module.plan.names.firewall
  network       = google_compute_network.lab.id
  direction     = "INGRESS"
  source_ranges = ["35.235.240.0/20"]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_router" "lab" {
  count = var.machine_present && module.plan.uses_nat ? 1 : 0

  name    = module.plan.names.router
  region  = module.plan.region
  network = google_compute_network.lab.id
}

resource "google_compute_router_nat" "lab" {
  count = var.machine_present && module.plan.uses_nat ? 1 : 0

  name                               = module.plan.names.nat
  router                             = google_compute_router.lab[0].name
  region                             = module.plan.region
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  subnetwork {
    name                    = google_compute_subnetwork.lab.id
    source_ip_ranges_to_nat = ["PRIMARY_IP_RANGE"]
  }
}
