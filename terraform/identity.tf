# What the nodes are. It has no key; VMs get its tokens from the metadata server.
resource "google_service_account" "node" {
  project      = var.project
  account_id   = "hvdcloud"
  display_name = "hvdcloud nodes"
  description  = "managed-by=hvdcloud"

  depends_on = [time_sleep.apis]
}

locals {
  node_member = "serviceAccount:${google_service_account.node.email}"
}

# Nodes run other people's code. They add checkpoints and read them; they neither replace nor delete one, of no experiment.
resource "google_storage_bucket_iam_member" "node_adds" {
  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectCreator"
  member = local.node_member
}

resource "google_storage_bucket_iam_member" "node_reads" {
  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectViewer"
  member = local.node_member
}

# What they rewrite: the manifests, which say what a run has, and what is known of it. A checkpoint that a manifest no
# longer names is there all the same.
resource "google_storage_bucket_iam_member" "node_rewrites" {
  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectUser"
  member = local.node_member

  condition {
    title       = "hvdcloud-run-records"
    description = "CLUSTER/RUN/.hvdcloud/: manifests, samples, events, state and log; and the proofs of nodes"

    # https://cloud.google.com/iam/docs/conditions-attribute-reference
    expression = join(" || ", [
      "resource.name.extract(\"/.hvdcloud/{file}\").startsWith(\"manifest-\")",
      "resource.name.extract(\"/.hvdcloud/{file}\").startsWith(\"samples-\")",
      "resource.name.extract(\"/.hvdcloud/{file}\").startsWith(\"proof-\")",
      "resource.name.endsWith(\"/.hvdcloud/events.jsonl\")",
      "resource.name.endsWith(\"/.hvdcloud/state.json\")",
      "resource.name.endsWith(\"/.hvdcloud/log\")",
    ])
  }
}

# Data sets are in buckets of anybody's. Of a folder, nodes read the objects; listing is asked of the bucket, so that they can
# list the names of the others too. The bucket of checkpoints they read already.
# https://cloud.google.com/storage/docs/access-control/iam-permissions
locals {
  data_grants = {
    for url in var.data : url => {
      bucket = split("/", url)[2]
      folder = join("/", slice(split("/", url), 3, length(split("/", url))))
    } if split("/", url)[2] != coalesce(var.bucket, "${var.project}-hvdcloud")
  }
}

resource "google_storage_bucket_iam_member" "node_reads_data" {
  for_each = local.data_grants

  bucket = each.value.bucket
  role   = "roles/storage.objectViewer"
  member = local.node_member

  dynamic "condition" {
    for_each = each.value.folder == "" ? [] : [each.value.folder]

    content {
      title       = "hvdcloud-data ${substr(condition.value, 0, 80)}"
      description = "the data set in gs://${each.value.bucket}/${substr(condition.value, 0, 150)}"

      expression = join(" || ", [
        "resource.type != \"storage.googleapis.com/Object\"",
        "resource.name.startsWith(\"projects/_/buckets/${each.value.bucket}/objects/${condition.value}/\")",
      ])
    }
  }
}

resource "google_artifact_registry_repository_iam_member" "node" {
  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.repository_id
  role       = "roles/artifactregistry.reader"
  member     = local.node_member
}

resource "google_project_iam_member" "node_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = local.node_member
}

# -- nodes that delete themselves: off unless self_delete names their cluster ------------------------------------------

resource "google_project_iam_custom_role" "self_delete" {
  project     = var.project
  role_id     = "hvdcloudSelfDelete"
  title       = "hvdcloud: delete VMs"
  description = "managed-by=hvdcloud: given only with a condition on the VM's name"
  permissions = ["compute.instances.delete"]

  depends_on = [time_sleep.apis]
}

# A node may delete the nodes of its own cluster, which are named NAME-0, NAME-1 and so on. The nodes of all clusters are one
# account, though: what one cluster in the list may, every other may too.
locals {
  # IAM's part of CEL has no regular expressions. extract() gives "" where its template doesn't match, so the last line
  # leaves out a name with one more hyphen: digits-2-0, of the cluster digits-2, also begins with "digits-". What is
  # left over is a VM named digits- and something other than a number.
  # https://cloud.google.com/iam/docs/conditions-attribute-reference
  vms_of = {
    for name in var.self_delete : name => join(" && ", [
      "resource.type == \"compute.googleapis.com/Instance\"",
      "resource.name.extract(\"/instances/{name}\").startsWith(\"${name}-\")",
      "resource.name.extract(\"/instances/${name}-{number}-\") == \"\"",
    ])
  }
}

resource "google_project_iam_member" "self_delete" {
  for_each = local.vms_of

  project = var.project
  role    = google_project_iam_custom_role.self_delete.name
  member  = local.node_member

  condition {
    title       = "hvdcloud-${each.key}"
    description = "VMs of the cluster ${each.key}"
    expression  = each.value
  }
}

# -- people and CI jobs that use hvdcloud ------------------------------------------------------------------------------

locals {
  operator_roles = [
    "roles/cloudbuild.builds.editor",
    "roles/compute.instanceAdmin.v1",
    "roles/compute.securityAdmin", # firewall rules come and go with clusters
    "roles/iap.tunnelResourceAccessor",
    "roles/serviceusage.serviceUsageConsumer",
  ]
}

resource "google_project_iam_member" "operator" {
  for_each = { for pair in setproduct(toset(var.operators), local.operator_roles) : "${pair[0]} ${pair[1]}" => pair }

  project = var.project
  member  = each.value[0]
  role    = each.value[1]

  depends_on = [time_sleep.apis]
}

resource "google_storage_bucket_iam_member" "operator" {
  for_each = toset(var.operators)

  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectUser"
  member = each.value
}

resource "google_artifact_registry_repository_iam_member" "operator" {
  for_each = toset(var.operators)

  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.repository_id
  role       = "roles/artifactregistry.writer"
  member     = each.value
}

# To make a VM with an account, a user must be allowed to act as it.
resource "google_service_account_iam_member" "operator" {
  for_each = toset(var.operators)

  service_account_id = google_service_account.node.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

