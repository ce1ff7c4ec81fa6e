# A budget sends mail. IT IS NO CAP: nothing is stopped when it is reached, and the bill lags behind by hours.

resource "google_billing_budget" "lab" {
  count = var.budget_amount > 0 ? 1 : 0

  billing_account = data.google_project.lab.billing_account
  display_name    = module.plan.names.budget

  budget_filter {
    projects = ["projects/${data.google_project.lab.number}"]
  }

  amount {
    # Without a currency code the amount is in the billing account's own currency.
    specified_amount {
      units = tostring(var.budget_amount)
    }
  }

  dynamic "threshold_rules" {
    for_each = module.plan.budget_thresholds

    content {
      threshold_percent = threshold_rules.value.percent
      spend_basis       = threshold_rules.value.basis
    }
  }

  depends_on = [google_project_service.needed]
}
