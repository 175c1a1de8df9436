terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 8.2.0, < 9.0.0"
    }

    time = {
      source  = "hashicorp/time"
      version = ">= 0.12.0, < 1.0.0"
    }
  }
}

provider "google" {
  project = var.project
  region  = var.region

  # The Budget API refuses a user's own credentials unless a project is named that the requests count against.
  user_project_override = var.budget != null
  billing_project       = var.project
}
