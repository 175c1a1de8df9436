# A budget sends mail. It stops nothing: that is what limits.max_run_duration in hvdcloud.yaml is for.
data "google_project" "this" {
  count = var.budget == null ? 0 : 1

  project_id = var.project

  depends_on = [time_sleep.apis]
}

resource "google_billing_budget" "hvdcloud" {
  count = var.budget == null ? 0 : 1

  billing_account = var.budget.billing_account
  display_name    = "hvdcloud ${var.project}"

  budget_filter {
    projects        = ["projects/${data.google_project.this[0].number}"]
    calendar_period = "MONTH"
  }

  # Without a currency: the billing account's, which is the only one that the API takes.
  amount {
    specified_amount {
      units = tostring(var.budget.dollars)
    }
  }

  dynamic "threshold_rules" {
    for_each = [0.5, 0.9, 1.0]

    content {
      threshold_percent = threshold_rules.value
      spend_basis       = "CURRENT_SPEND"
    }
  }

  # Without addresses, the mail goes to the billing account's administrators, as it does with them.
  dynamic "all_updates_rule" {
    for_each = length(var.budget.emails) > 0 ? [1] : []

    content {
      monitoring_notification_channels = [for channel in google_monitoring_notification_channel.budget : channel.name]
      disable_default_iam_recipients   = false
    }
  }

  depends_on = [time_sleep.apis]
}

resource "google_monitoring_notification_channel" "budget" {
  for_each = toset(var.budget == null ? [] : var.budget.emails)

  project      = var.project
  display_name = "hvdcloud budget: ${each.value}"
  type         = "email"
  labels       = { email_address = each.value }
  user_labels  = local.labels

  depends_on = [time_sleep.apis]
}
