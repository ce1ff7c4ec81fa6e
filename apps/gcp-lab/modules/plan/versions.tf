# No provider on purpose: `terraform test` runs here without a network.
terraform {
  required_version = ">= 1.9, < 2.0"
}
