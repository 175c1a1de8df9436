variable "project" {
  description = "Project ID."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project is a project's ID: 6 to 30 lower-case letters, digits and hyphens, and a letter first."
  }
}

variable "region" {
  description = "Where the bucket and the images are, and nodes may be. Between regions, traffic costs."
  type        = string
  default     = "us-central1"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is a region such as us-central1, not a zone."
  }
}

variable "other_regions" {
  description = "More regions that nodes may be in, each with the range of its subnetwork: { us-east1 = \"10.10.16.0/20\" }."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for region in keys(var.other_regions) : can(regex("^[a-z]+-[a-z]+[0-9]+$", region))])
    error_message = "Each key of other_regions is a region such as us-east1, not a zone."
  }

  validation {
    # 10.10.0.0/20 is the subnetwork of region.
    condition     = alltrue([for range in values(var.other_regions) : can(cidrhost(range, 0)) && range != "10.10.0.0/20"])
    error_message = "Each value of other_regions is a range of its own, such as 10.10.16.0/20."
  }
}

variable "mtu" {
  description = "Bytes of the network's largest packet. VMs that run when it changes may keep the old one."
  type        = number
  default     = 8896

  validation {
    condition     = var.mtu >= 1300 && var.mtu <= 8896
    error_message = "mtu is from 1300 to 8896, the range of VPC networks."
  }
}

variable "bucket" {
  description = "Name of the bucket for checkpoints; null: PROJECT-hvdcloud."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null || can(regex("^[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket is a bucket's name, without gs:// and without a folder."
  }
}

variable "operators" {
  description = "Who uses hvdcloud without being an owner of the project: user:NAME@DOMAIN, group:…, serviceAccount:…"
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for who in var.operators : can(regex("^(user|group|serviceAccount|domain|principal|principalSet):.+$", who))])
    error_message = "Each of operators begins with its kind, such as user:NAME@DOMAIN; allUsers is refused."
  }
}

variable "nat" {
  description = "Cloud NAT: VMs without an address of their own reach the internet. Billed while VMs use it."
  type        = bool
  default     = false
}

variable "self_delete" {
  description = "Names of clusters whose nodes may delete themselves when they are done; else they switch themselves off."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for name in var.self_delete : can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", name))])
    error_message = "Each of self_delete is a cluster's name: at most 40 lower-case letters, digits and hyphens, and a letter first."
  }

  validation {
    # https://cloud.google.com/iam/quotas: bindings of one role to one member with different conditions.
    condition     = length(var.self_delete) <= 20
    error_message = "IAM takes at most 20 clusters in self_delete; hvdcloud.tfvars can say which."
  }
}

variable "data" {
  description = "Data sets that nodes may read: gs://BUCKET or gs://BUCKET/FOLDER, of any project."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for url in var.data : can(regex("^gs://[a-z0-9][a-z0-9_.-]{1,220}[a-z0-9](/[^/\"\\\\]+)*$", url))])
    error_message = "Each of data is gs://BUCKET or gs://BUCKET/FOLDER, without a slash at its end."
  }

  validation {
    # https://cloud.google.com/iam/quotas: bindings of one role to one member with different conditions.
    condition     = length(var.data) <= 20
    error_message = "IAM takes at most 20 folders in data."
  }
}

variable "cheaper_after_days" {
  description = "Age at which checkpoints move to Nearline, which costs half and bills reading; null: never."
  type        = number
  default     = 30

  validation {
    condition     = var.cheaper_after_days == null || try(var.cheaper_after_days >= 1 && floor(var.cheaper_after_days) == var.cheaper_after_days, false)
    error_message = "cheaper_after_days is a number of days, 1 or more, or null."
  }
}

variable "delete_after_days" {
  description = "Age at which checkpoints are deleted, whether they were pulled or not; null: never."
  type        = number
  default     = null

  validation {
    condition     = var.delete_after_days == null || try(var.delete_after_days >= 1 && floor(var.delete_after_days) == var.delete_after_days, false)
    error_message = "delete_after_days is a number of days, 1 or more, or null."
  }
}

variable "soft_delete_days" {
  description = "How long what is deleted in the bucket can be restored, and is billed: 7 to 90 days; 0: not at all."
  type        = number
  default     = 7

  validation {
    # https://cloud.google.com/storage/docs/soft-delete
    condition     = var.soft_delete_days == 0 || try(var.soft_delete_days >= 7 && var.soft_delete_days <= 90 && floor(var.soft_delete_days) == var.soft_delete_days, false)
    error_message = "soft_delete_days is 0, or 7 to 90 days."
  }
}

variable "budget" {
  description = "E-mail when the project's bill of a month reaches 50, 90 and 100 % of this many dollars (or units of the billing account's currency). It ends nothing."
  type = object({
    billing_account = string
    dollars         = number
    emails          = optional(list(string), [])
  })
  default = null

  validation {
    condition     = var.budget == null || can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.budget.billing_account))
    error_message = "budget.billing_account looks like 01AB23-4C56DE-F78901: gcloud billing accounts list."
  }

  validation {
    condition     = var.budget == null || try(var.budget.dollars >= 1 && floor(var.budget.dollars) == var.budget.dollars, false)
    error_message = "budget.dollars is a whole number, 1 or more."
  }

  validation {
    condition     = var.budget == null || try(length(var.budget.emails) <= 5, false)
    error_message = "A budget has at most 5 addresses in emails."
  }
}
