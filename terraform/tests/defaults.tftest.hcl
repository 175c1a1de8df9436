# What the defaults make: only a project is named.

mock_provider "google" {}

mock_provider "time" {}

variables {
  project = "a-project"
}

run "promises" {
  command = plan

  assert {
    condition     = alltrue([for api in google_project_service.api : api.disable_on_destroy == false && api.disable_dependent_services == false])
    error_message = "terraform destroy turns off an API that others may use"
  }

  assert {
    condition     = length(setsubtract(["compute", "artifactregistry", "storage", "iam", "iap", "logging", "cloudresourcemanager", "serviceusage"], keys(google_project_service.api))) == 0
    error_message = "an API that hvdcloud needs stays off"
  }

  assert {
    condition     = time_sleep.apis.create_duration == "60s"
    error_message = "what needs an API does not wait until it is on everywhere"
  }

  assert {
    condition     = google_compute_network.hvdcloud.mtu == 8896
    error_message = "the network's packets are small"
  }

  assert {
    condition     = google_compute_network.hvdcloud.auto_create_subnetworks == false
    error_message = "the network makes a subnetwork in every region"
  }

  assert {
    condition     = google_compute_subnetwork.hvdcloud.private_ip_google_access == true && google_compute_subnetwork.hvdcloud.region == "us-central1"
    error_message = "nodes without an address of their own don't reach Google's APIs"
  }

  assert {
    condition     = toset(google_compute_firewall.iap.source_ranges) == toset(["35.235.240.0/20"]) && toset(google_compute_firewall.iap.target_tags) == toset(["hvdcloud"])
    error_message = "SSH is open to others than Identity-Aware Proxy, or into other machines"
  }

  assert {
    condition     = [for rule in google_compute_firewall.iap.allow : { protocol = rule.protocol, ports = tolist(rule.ports) }] == [{ protocol = "tcp", ports = tolist(["2222"]) }]
    error_message = "Identity-Aware Proxy reaches more than the containers' sshd"
  }

  assert {
    condition     = google_compute_firewall.iap.direction == "INGRESS"
    error_message = "a rule isn't for what comes in"
  }

  assert {
    condition     = google_storage_bucket.checkpoints.uniform_bucket_level_access == true && google_storage_bucket.checkpoints.public_access_prevention == "enforced"
    error_message = "checkpoints can be made public"
  }

  assert {
    condition     = one(google_storage_bucket.checkpoints.soft_delete_policy).retention_duration_seconds == 604800
    error_message = "what a job or a person deletes is gone for good"
  }

  assert {
    condition     = google_storage_bucket.checkpoints.force_destroy == false
    error_message = "terraform destroy deletes checkpoints"
  }

  assert {
    condition     = google_storage_bucket.checkpoints.name == "a-project-hvdcloud" && google_storage_bucket.checkpoints.location == "US-CENTRAL1"
    error_message = "the bucket isn't where the nodes are"
  }

  assert {
    condition = {
      for rule in google_storage_bucket.checkpoints.lifecycle_rule : one(rule.action).type => one(rule.condition).age
    } == { SetStorageClass = 30, AbortIncompleteMultipartUpload = 7 }
    error_message = "the bucket has other rules than to make old checkpoints cheaper and to end unfinished uploads"
  }

  assert {
    condition     = [for rule in google_storage_bucket.checkpoints.lifecycle_rule : one(rule.action).storage_class if one(rule.action).type == "SetStorageClass"] == ["NEARLINE"]
    error_message = "old checkpoints don't move to Nearline"
  }

  assert {
    condition     = google_artifact_registry_repository.images.format == "DOCKER" && google_artifact_registry_repository.images.location == "us-central1"
    error_message = "images aren't where the nodes are"
  }

  assert {
    condition     = google_artifact_registry_repository.images.cleanup_policy_dry_run == false
    error_message = "the clean-up policies are only tried"
  }

  assert {
    condition     = [for policy in google_artifact_registry_repository.images.cleanup_policies : one(policy.most_recent_versions).keep_count if policy.action == "KEEP"] == [10]
    error_message = "the newest images aren't kept"
  }

  assert {
    condition = [
      for policy in google_artifact_registry_repository.images.cleanup_policies : {
        state = one(policy.condition).tag_state, older = one(policy.condition).older_than
      } if policy.action == "DELETE"
    ] == [{ state = "UNTAGGED", older = "604800s" }]
    error_message = "other images are deleted than those that lost their tag a week ago"
  }

  assert {
    condition     = one(google_artifact_registry_repository.images.vulnerability_scanning_config).enablement_config == "DISABLED"
    error_message = "every image that is pushed is scanned, and billed"
  }

  assert {
    condition     = google_storage_bucket.checkpoints.labels["managed-by"] == "hvdcloud" && google_artifact_registry_repository.images.labels["managed-by"] == "hvdcloud"
    error_message = "what has labels isn't labelled"
  }
}

run "accounts_and_outputs" {
  assert {
    condition = {
      for each in [google_storage_bucket_iam_member.node_adds, google_storage_bucket_iam_member.node_reads, google_storage_bucket_iam_member.node_rewrites] : each.role => "${each.bucket} ${length(each.condition)}"
      } == {
      "roles/storage.objectCreator" = "a-project-hvdcloud 0"
      "roles/storage.objectViewer"  = "a-project-hvdcloud 0"
      "roles/storage.objectUser"    = "a-project-hvdcloud 1"
    }
    error_message = "nodes don't add and read checkpoints, or may delete and replace more than a run's records"
  }

  assert {
    condition     = google_artifact_registry_repository_iam_member.node.role == "roles/artifactregistry.reader" && google_artifact_registry_repository_iam_member.node.repository == "hvdcloud"
    error_message = "nodes don't read images, or may do more than that"
  }

  assert {
    condition     = google_project_iam_member.node_logs.role == "roles/logging.logWriter"
    error_message = "nodes may do something else in the project than write logs"
  }

  assert {
    condition = toset([
      google_storage_bucket_iam_member.node_adds.member,
      google_storage_bucket_iam_member.node_reads.member,
      google_storage_bucket_iam_member.node_rewrites.member,
      google_artifact_registry_repository_iam_member.node.member,
      google_project_iam_member.node_logs.member,
    ]) == toset(["serviceAccount:${google_service_account.node.email}"])
    error_message = "a role goes to another account than the nodes'"
  }

  assert {
    condition     = length(google_project_iam_member.self_delete) == 0
    error_message = "nodes may delete VMs"
  }

  assert {
    condition     = length(google_project_iam_member.operator) + length(google_storage_bucket_iam_member.operator) + length(google_artifact_registry_repository_iam_member.operator) + length(google_service_account_iam_member.operator) == 0
    error_message = "a member gets something that no variable names"
  }

  assert {
    condition     = length(google_compute_router.hvdcloud) + length(google_compute_router_nat.hvdcloud) + length(google_billing_budget.hvdcloud) + length(google_monitoring_notification_channel.budget) == 0
    error_message = "something is made that was not asked for"
  }

  assert {
    condition     = output.project == "a-project" && output.region == "us-central1" && output.bucket == "gs://a-project-hvdcloud" && output.repository == "us-central1-docker.pkg.dev/a-project/hvdcloud"
    error_message = "an output isn't what hvdcloud.yaml takes"
  }

  assert {
    condition     = output.network == google_compute_network.hvdcloud.self_link && output.subnetwork == google_compute_subnetwork.hvdcloud.name && output.service_account == google_service_account.node.email
    error_message = "an output names something else than what was made"
  }
}
