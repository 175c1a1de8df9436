# Each variable, and what it changes.

mock_provider "google" {
  mock_resource "google_project_iam_custom_role" {
    defaults = { name = "projects/a-project/roles/hvdcloudSelfDelete" }
  }
}

mock_provider "time" {}

variables {
  project = "a-project"
}

run "another_region_and_bucket" {
  variables {
    region = "europe-west4"
    bucket = "mine"
  }

  assert {
    condition     = google_storage_bucket.checkpoints.name == "mine" && google_storage_bucket.checkpoints.location == "EUROPE-WEST4" && output.bucket == "gs://mine"
    error_message = "the bucket isn't the one that was asked for"
  }

  assert {
    condition     = google_compute_subnetwork.hvdcloud.region == "europe-west4" && google_artifact_registry_repository.images.location == "europe-west4" && output.repository == "europe-west4-docker.pkg.dev/a-project/hvdcloud"
    error_message = "something stayed in another region"
  }
}

run "other_regions" {
  variables {
    nat           = true
    other_regions = { us-east1 = "10.10.16.0/20", us-central1 = "10.10.32.0/20" }
  }

  assert {
    condition     = { for region, each in google_compute_subnetwork.other : region => each.ip_cidr_range } == { us-east1 = "10.10.16.0/20" } && google_compute_subnetwork.other["us-east1"].name == output.subnetwork && google_compute_subnetwork.other["us-east1"].private_ip_google_access
    error_message = "each other region has one subnetwork of the same name"
  }

  assert {
    condition     = google_compute_router_nat.other["us-east1"].region == "us-east1" && one(google_compute_router_nat.other["us-east1"].subnetwork).name == google_compute_subnetwork.other["us-east1"].self_link
    error_message = "nodes in another region have no NAT"
  }

  assert {
    condition     = output.regions == tolist(["us-central1", "us-east1"]) && google_storage_bucket.checkpoints.location == "US-CENTRAL1"
    error_message = "the bucket moved"
  }
}

run "nat" {
  variables {
    nat = true
  }

  assert {
    condition     = google_compute_router.hvdcloud[0].network == google_compute_network.hvdcloud.self_link && google_compute_router.hvdcloud[0].region == "us-central1"
    error_message = "the router is for another network"
  }

  assert {
    condition     = google_compute_router_nat.hvdcloud[0].router == "hvdcloud" && google_compute_router_nat.hvdcloud[0].nat_ip_allocate_option == "AUTO_ONLY" && one(google_compute_router_nat.hvdcloud[0].subnetwork).name == google_compute_subnetwork.hvdcloud.self_link
    error_message = "Cloud NAT isn't for the subnetwork"
  }
}

run "checkpoints_that_stay_as_they_are" {
  command = plan

  variables {
    cheaper_after_days = null
  }

  assert {
    condition     = [for rule in google_storage_bucket.checkpoints.lifecycle_rule : one(rule.action).type] == ["AbortIncompleteMultipartUpload"]
    error_message = "a rule touches finished checkpoints"
  }
}

run "checkpoints_that_are_deleted" {
  command = plan

  variables {
    cheaper_after_days = 14
    delete_after_days  = 90
  }

  assert {
    condition = {
      for rule in google_storage_bucket.checkpoints.lifecycle_rule : one(rule.action).type => one(rule.condition).age
    } == { SetStorageClass = 14, Delete = 90, AbortIncompleteMultipartUpload = 7 }
    error_message = "the bucket doesn't do what was asked for"
  }
}

run "self_delete" {
  variables {
    self_delete = ["digits", "digits-2"]
  }

  assert {
    condition     = toset(google_project_iam_custom_role.self_delete.permissions) == toset(["compute.instances.delete"])
    error_message = "nodes may do more than delete VMs"
  }

  assert {
    condition     = keys(google_project_iam_member.self_delete) == ["digits", "digits-2"]
    error_message = "not each cluster in self_delete has its binding"
  }

  assert {
    condition = alltrue([
      for binding in google_project_iam_member.self_delete :
      binding.role == google_project_iam_custom_role.self_delete.name && binding.member == "serviceAccount:${google_service_account.node.email}" && length(binding.condition) == 1
    ])
    error_message = "the right to delete VMs goes to another account, or without a condition"
  }

  assert {
    condition     = one(google_project_iam_member.self_delete["digits"].condition).expression == "resource.type == \"compute.googleapis.com/Instance\" && resource.name.extract(\"/instances/{name}\").startsWith(\"digits-\") && resource.name.extract(\"/instances/digits-{number}-\") == \"\""
    error_message = "nodes may delete other VMs than those of their cluster"
  }
}

run "nothing_to_restore" {
  command = plan

  variables {
    soft_delete_days = 0
  }

  assert {
    condition     = one(google_storage_bucket.checkpoints.soft_delete_policy).retention_duration_seconds == 0
    error_message = "what is deleted is billed for longer than was asked for"
  }
}

run "operators" {
  variables {
    operators = ["user:ada@example.com", "group:ci@example.com"]
  }

  assert {
    condition = toset([for each in google_project_iam_member.operator : "${each.member} ${each.role}"]) == toset(flatten([
      for who in ["user:ada@example.com", "group:ci@example.com"] : [
        "${who} roles/cloudbuild.builds.editor",
        "${who} roles/compute.instanceAdmin.v1",
        "${who} roles/compute.securityAdmin",
        "${who} roles/iap.tunnelResourceAccessor",
        "${who} roles/serviceusage.serviceUsageConsumer",
      ]
    ]))
    error_message = "operators have other roles in the project than they need"
  }

  assert {
    condition     = { for who, each in google_storage_bucket_iam_member.operator : who => "${each.member} ${each.role}" } == { for who in var.operators : who => "${who} roles/storage.objectUser" }
    error_message = "operators don't read and write checkpoints, or may do more than that"
  }

  assert {
    condition     = { for who, each in google_artifact_registry_repository_iam_member.operator : who => "${each.member} ${each.role}" } == { for who in var.operators : who => "${who} roles/artifactregistry.writer" }
    error_message = "operators don't push images, or may do more than that"
  }

  assert {
    condition     = { for who, each in google_service_account_iam_member.operator : who => "${each.member} ${each.role}" } == { for who in var.operators : who => "${who} roles/iam.serviceAccountUser" }
    error_message = "operators can't make VMs with the nodes' account, or may do more than that"
  }

  assert {
    condition     = alltrue([for each in google_service_account_iam_member.operator : each.service_account_id == google_service_account.node.name])
    error_message = "operators may act as another account than the nodes'"
  }
}

run "budget" {
  variables {
    budget = {
      billing_account = "01AB23-4C56DE-F78901"
      dollars         = 200
      emails          = ["ada@example.com"]
    }
  }

  assert {
    condition     = contains(keys(google_project_service.api), "billingbudgets") && contains(keys(google_project_service.api), "monitoring")
    error_message = "the Budget API stays off"
  }

  assert {
    condition     = google_billing_budget.hvdcloud[0].billing_account == "01AB23-4C56DE-F78901" && one(one(google_billing_budget.hvdcloud[0].amount).specified_amount).units == "200"
    error_message = "the budget is another one"
  }

  assert {
    condition     = one(google_billing_budget.hvdcloud[0].budget_filter).projects == toset(["projects/${data.google_project.this[0].number}"])
    error_message = "the budget counts other projects"
  }

  assert {
    condition     = toset([for rule in google_billing_budget.hvdcloud[0].threshold_rules : rule.threshold_percent]) == toset([0.5, 0.9, 1.0])
    error_message = "the mails come at other shares"
  }

  assert {
    condition     = google_monitoring_notification_channel.budget["ada@example.com"].type == "email" && google_monitoring_notification_channel.budget["ada@example.com"].labels["email_address"] == "ada@example.com"
    error_message = "the mail goes to another address"
  }

  assert {
    condition     = length(one(google_billing_budget.hvdcloud[0].all_updates_rule).monitoring_notification_channels) == 1 && try(one(google_billing_budget.hvdcloud[0].all_updates_rule).pubsub_topic, null) == null
    error_message = "the budget does something else than send mail"
  }
}

run "a_budget_without_addresses" {
  command = plan

  variables {
    budget = {
      billing_account = "01AB23-4C56DE-F78901"
      dollars         = 200
    }
  }

  assert {
    condition     = length(google_billing_budget.hvdcloud[0].all_updates_rule) == 0 && length(google_monitoring_notification_channel.budget) == 0
    error_message = "there is a channel without an address"
  }
}

run "data" {
  variables {
    data = ["gs://open-data", "gs://theirs/imagenet/train", "gs://a-project-hvdcloud/data"]
  }

  assert {
    condition     = toset(keys(google_storage_bucket_iam_member.node_reads_data)) == toset(["gs://open-data", "gs://theirs/imagenet/train"])
    error_message = "nodes read what was not named, or are granted what they have"
  }

  assert {
    condition     = alltrue([for grant in google_storage_bucket_iam_member.node_reads_data : grant.role == "roles/storage.objectViewer"])
    error_message = "nodes may do more than read"
  }

  assert {
    condition     = length(google_storage_bucket_iam_member.node_reads_data["gs://open-data"].condition) == 0 && strcontains(one(google_storage_bucket_iam_member.node_reads_data["gs://theirs/imagenet/train"].condition).expression, "/buckets/theirs/objects/imagenet/train/")
    error_message = "a folder is not a folder alone"
  }
}
