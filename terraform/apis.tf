locals {
  labels = { managed-by = "hvdcloud" }

  apis = concat(
    [
      "artifactregistry",
      "cloudbilling", # today's prices
      "cloudbuild",   # hvdcloud build --remote
      "cloudresourcemanager",
      "compute",
      "iam",
      "iap",
      "logging",
      "serviceusage",
      "storage",
    ],
    var.budget == null ? [] : ["billingbudgets", "monitoring"],
  )
}

resource "google_project_service" "api" {
  for_each = toset(local.apis)

  project = var.project
  service = "${each.value}.googleapis.com"

  # Others in the project may use it too.
  disable_on_destroy         = false
  disable_dependent_services = false
}

# An API that is switched on takes a minute to reach all of Google's servers.
resource "time_sleep" "apis" {
  create_duration = "60s"
  triggers        = { apis = join(" ", local.apis) }

  depends_on = [google_project_service.api]
}
