# What the nodes are. It has no key; VMs get its tokens from the metadata server.
resource "google_service_account" "node" {
  project      = var.project
  account_id   = "hvdcloud"
  display_name = "hvdcloud nodes"
  description  = "managed-by=hvdcloud"

  depends_on = [google_project_service.api]
}

# Heads that replace lost nodes may make VMs, which no other node may: they are another account, and the same otherwise.
resource "google_service_account" "head" {
  count = length(var.self_replace) > 0 ? 1 : 0

  project      = var.project
  account_id   = "hvdcloud-head"
  display_name = "hvdcloud heads that replace nodes"
  description  = "managed-by=hvdcloud"

  depends_on = [google_project_service.api]
}

locals {
  node_members = merge(
    { node = "serviceAccount:${google_service_account.node.email}" },
    { for head in google_service_account.head : "head" => "serviceAccount:${head.email}" },
  )
}

# Nodes run other people's code. They add checkpoints and read them; they neither replace nor delete one, of no experiment.
resource "google_storage_bucket_iam_member" "node_adds" {
  for_each = local.node_members

  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectCreator"
  member = each.value
}

resource "google_storage_bucket_iam_member" "node_reads" {
  for_each = local.node_members

  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectViewer"
  member = each.value
}

# What they rewrite: the manifests, which say what a run has, and what is known of it. A checkpoint that a manifest no
# longer names is there all the same.
resource "google_storage_bucket_iam_member" "node_rewrites" {
  for_each = local.node_members

  bucket = google_storage_bucket.checkpoints.name
  role   = "roles/storage.objectUser"
  member = each.value

  condition {
    title       = "hvdcloud-run-records"
    description = "CLUSTER/RUN/.hvdcloud/: manifests, samples, events, state and log"

    # https://cloud.google.com/iam/docs/conditions-attribute-reference
    expression = join(" || ", [
      "resource.name.extract(\"/.hvdcloud/{file}\").startsWith(\"manifest-\")",
      "resource.name.extract(\"/.hvdcloud/{file}\").startsWith(\"samples-\")",
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
    for pair in setproduct(keys(local.node_members), var.data) : "${pair[0]} ${pair[1]}" => {
      member = local.node_members[pair[0]]
      bucket = split("/", pair[1])[2]
      folder = join("/", slice(split("/", pair[1]), 3, length(split("/", pair[1]))))
    } if split("/", pair[1])[2] != coalesce(var.bucket, "${var.project}-hvdcloud")
  }
}

resource "google_storage_bucket_iam_member" "node_reads_data" {
  for_each = local.data_grants

  bucket = each.value.bucket
  role   = "roles/storage.objectViewer"
  member = each.value.member

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
  for_each = local.node_members

  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.repository_id
  role       = "roles/artifactregistry.reader"
  member     = each.value
}

resource "google_project_iam_member" "node_logs" {
  for_each = local.node_members

  project = var.project
  role    = "roles/logging.logWriter"
  member  = each.value
}

# So that what existed before there was a second account stays as it is.
moved {
  from = google_artifact_registry_repository_iam_member.node
  to   = google_artifact_registry_repository_iam_member.node["node"]
}

moved {
  from = google_project_iam_member.node_logs
  to   = google_project_iam_member.node_logs["node"]
}

# -- nodes that delete themselves: off unless self_delete names their cluster ------------------------------------------

resource "google_project_iam_custom_role" "self_delete" {
  count = length(var.self_delete) > 0 ? 1 : 0

  project     = var.project
  role_id     = "hvdcloudSelfDelete"
  title       = "hvdcloud: delete VMs"
  description = "managed-by=hvdcloud: given only with a condition on the VM's name"
  permissions = ["compute.instances.delete"]

  depends_on = [google_project_service.api]
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
  role    = google_project_iam_custom_role.self_delete[0].name
  member  = local.node_members["node"]

  condition {
    title       = "hvdcloud-${each.key}"
    description = "VMs of the cluster ${each.key}"
    expression  = each.value
  }
}

# A head of an account of its own ends its cluster too.
resource "google_project_iam_member" "self_delete_by_head" {
  for_each = { for name, condition in local.vms_of : name => condition if contains(var.self_replace, name) }

  project = var.project
  role    = google_project_iam_custom_role.self_delete[0].name
  member  = local.node_members["head"]

  condition {
    title       = "hvdcloud-${each.key}"
    description = "VMs of the cluster ${each.key}"
    expression  = each.value
  }
}

# -- heads that replace lost nodes: off unless self_replace names their cluster ----------------------------------------

# What a bulkInsert asks for, how its end and the new node's host key are seen, and the deletion of what is half-made.
# https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
resource "google_project_iam_custom_role" "self_replace" {
  count = length(var.self_replace) > 0 ? 1 : 0

  project     = var.project
  role_id     = "hvdcloudSelfReplace"
  title       = "hvdcloud: replace lost VMs"
  description = "managed-by=hvdcloud: given only with a condition on the VM's name"

  permissions = [
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.setTags",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
  ]

  depends_on = [google_project_service.api]
}

# Names as with self_delete, of VMs and of their disks. What is neither, such as the subnetwork, has no name that would
# tell the cluster; and where Compute Engine asks the project, not the VM, for the right to make one, the name does not matter.
resource "google_project_iam_member" "self_replace" {
  for_each = toset(var.self_replace)

  project = var.project
  role    = google_project_iam_custom_role.self_replace[0].name
  member  = local.node_members["head"]

  condition {
    title       = "hvdcloud-${each.value}"
    description = "VMs of the cluster ${each.value}"

    expression = join(" || ", [
      "(resource.type != \"compute.googleapis.com/Instance\" && resource.type != \"compute.googleapis.com/Disk\")",
      "(resource.name.extract(\"/instances/{name}\").startsWith(\"${each.value}-\") && resource.name.extract(\"/instances/${each.value}-{number}-\") == \"\")",
      "(resource.name.extract(\"/disks/{name}\").startsWith(\"${each.value}-\") && resource.name.extract(\"/disks/${each.value}-{number}-\") == \"\")",
    ])
  }
}

# A new node has the account of the existing ones, not the head's.
resource "google_service_account_iam_member" "self_replace" {
  count = length(var.self_replace) > 0 ? 1 : 0

  service_account_id = google_service_account.node.name
  role               = "roles/iam.serviceAccountUser"
  member             = local.node_members["head"]
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

  depends_on = [google_project_service.api]
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

resource "google_service_account_iam_member" "operator_head" {
  for_each = toset(length(var.self_replace) > 0 ? var.operators : [])

  service_account_id = google_service_account.head[0].name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}
