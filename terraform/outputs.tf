# hvdcloud setup writes these into hvdcloud.yaml.

output "project" {
  description = "gce.project"
  value       = var.project
}

output "region" {
  description = "Where the bucket and the images are."
  value       = var.region
}

output "regions" {
  description = "Where nodes may be."
  value       = sort(concat([var.region], keys(local.other_regions)))
}

output "network" {
  description = "gce.network"
  value       = google_compute_network.hvdcloud.self_link
}

output "subnetwork" {
  description = "gce.subnetwork: a name, which all regions have"
  value       = google_compute_subnetwork.hvdcloud.name
}

output "service_account" {
  description = "gce.service_account"
  value       = google_service_account.node.email
}

output "bucket" {
  description = "checkpoints.bucket, without the cluster's folder"
  value       = "gs://${google_storage_bucket.checkpoints.name}"
}

output "repository" {
  description = "image.repository, without the image's name"
  value       = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.images.repository_id}"
}
