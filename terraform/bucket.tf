resource "google_storage_bucket" "checkpoints" {
  project                     = var.project
  name                        = coalesce(var.bucket, "${var.project}-hvdcloud")
  location                    = upper(var.region)
  storage_class               = "STANDARD"
  labels                      = local.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  # No plan deletes or replaces the bucket of checkpoints; force_destroy is for one in which this was taken out.
  force_destroy = false

  lifecycle {
    prevent_destroy = true
  }

  # What is deleted or overwritten can be restored for so long, and is billed so long.
  soft_delete_policy {
    retention_duration_seconds = var.soft_delete_days * 86400
  }

  # Nearline is billed for 30 days at least, and reading costs: it is for runs that were pulled long ago.
  dynamic "lifecycle_rule" {
    for_each = var.cheaper_after_days == null ? [] : [var.cheaper_after_days]

    content {
      action {
        type          = "SetStorageClass"
        storage_class = "NEARLINE"
      }

      condition {
        age                   = lifecycle_rule.value
        matches_storage_class = ["STANDARD"]
      }
    }
  }

  dynamic "lifecycle_rule" {
    for_each = var.delete_after_days == null ? [] : [var.delete_after_days]

    content {
      action {
        type = "Delete"
      }

      condition {
        age = lifecycle_rule.value
      }
    }
  }

  # Parts of uploads that were never finished aren't listed, but billed.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }

    condition {
      age = 7
    }
  }

  depends_on = [time_sleep.apis]

  #checkov:skip=CKV_GCP_62:access logs need a second bucket; who reads checkpoints is in Cloud Audit Logs where that is on
  #checkov:skip=CKV_GCP_78:nodes cannot replace checkpoints, and what else is deleted can be restored (soft delete)
}
