# What can't be meant: each of these variables is refused, regardless of the others.

mock_provider "google" {}

mock_provider "time" {}

run "everything_wrong" {
  command = plan

  variables {
    project            = "123456789012"
    region             = "us-central1-a"
    bucket             = "gs://mine/digits"
    operators          = ["ada@example.com"]
    self_delete        = ["x\") || (\"\" == \""]
    data               = ["gs://mine/x\") || (\"\" == \""]
    cheaper_after_days = 0
    delete_after_days  = 1.5
    soft_delete_days   = 7.5

    budget = {
      billing_account = "billingAccounts/01AB23-4C56DE-F78901"
      dollars         = 200
    }
  }

  expect_failures = [
    var.project,
    var.region,
    var.bucket,
    var.operators,
    var.self_delete,
    var.data,
    var.cheaper_after_days,
    var.delete_after_days,
    var.soft_delete_days,
    var.budget,
  ]
}

run "everything_wrong_in_another_way" {
  command = plan

  variables {
    project           = "A-Project"
    region            = "us"
    bucket            = "My Bucket"
    operators         = ["allUsers"]
    self_delete       = ["a-name-of-more-than-forty-characters-is-no-name"]
    data              = ["gs://mine/train/"]
    delete_after_days = -1
    soft_delete_days  = 3
    mtu               = 9000

    budget = {
      billing_account = "01AB23-4C56DE-F78901"
      dollars         = 0
    }
  }

  expect_failures = [
    var.project,
    var.region,
    var.bucket,
    var.operators,
    var.self_delete,
    var.data,
    var.delete_after_days,
    var.soft_delete_days,
    var.mtu,
    var.budget,
  ]
}
