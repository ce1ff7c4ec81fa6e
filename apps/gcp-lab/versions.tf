terraform {
  required_version = ">= 1.9, < 2.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "6.50.0"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = module.plan.region
  zone    = var.zone

  # Budgets are billed to a quota project; with a person's own login that has to be said.
  user_project_override = true
  billing_project       = var.project_id
}
