resource "google_artifact_registry_repository" "images" {
  project       = var.project
  location      = var.region
  repository_id = "hvdcloud"
  description   = "managed-by=hvdcloud: images that nodes run"
  format        = "DOCKER"
  labels        = local.labels

  # Policies to keep win over policies to delete.
  cleanup_policy_dry_run = false

  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"

    # Of each image.
    most_recent_versions {
      keep_count = 10
    }
  }

  cleanup_policies {
    id     = "delete-untagged"
    action = "DELETE"

    condition {
      tag_state  = "UNTAGGED"
      older_than = "604800s"
    }
  }

  # Scanning is billed for every image that is pushed.
  vulnerability_scanning_config {
    enablement_config = "DISABLED"
  }

  depends_on = [time_sleep.apis]

  #checkov:skip=CKV_GCP_84:Google's own keys encrypt the images; a key of one's own is billed every month
}
