resource "google_compute_network" "hvdcloud" {
  project                 = var.project
  name                    = "hvdcloud"
  description             = "managed-by=hvdcloud"
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"
  # Larger packets carry gradients with less work. Google recommends jumbo frames for machines with GPUs, "MTU settings for
  # GPU machine types"; without `mtu` a network has 1460.
  mtu = var.mtu

  depends_on = [time_sleep.apis]
}

locals {
  other_regions = { for region, range in var.other_regions : region => range if region != var.region }
}

resource "google_compute_subnetwork" "hvdcloud" {
  project       = var.project
  name          = "hvdcloud"
  description   = "managed-by=hvdcloud"
  region        = var.region
  network       = google_compute_network.hvdcloud.self_link
  ip_cidr_range = "10.10.0.0/20"

  # Nodes without an address of their own reach the bucket and the images.
  private_ip_google_access = true

  #checkov:skip=CKV_GCP_26:flow logs of gradients would cost more than the nodes' disks
  #checkov:skip=CKV_GCP_76:there is no IPv6 in this network
}

# Of the same name, so that hvdcloud finds them all by one. They cost nothing.
resource "google_compute_subnetwork" "other" {
  for_each = local.other_regions

  project                  = var.project
  name                     = google_compute_subnetwork.hvdcloud.name
  description              = "managed-by=hvdcloud"
  region                   = each.key
  network                  = google_compute_network.hvdcloud.self_link
  ip_cidr_range            = each.value
  private_ip_google_access = true

  #checkov:skip=CKV_GCP_26:flow logs of gradients would cost more than the nodes' disks
  #checkov:skip=CKV_GCP_76:there is no IPv6 in this network
}

# Who is not let in here: the internet, and nodes. hvdcloud makes two rules with each cluster, and deletes them with it: for a
# laptop's own address, and for this cluster's nodes among themselves, so that no job reaches the nodes of another.
resource "google_compute_firewall" "iap" {
  project     = var.project
  name        = "hvdcloud-iap"
  description = "managed-by=hvdcloud: SSH into the nodes' containers through Identity-Aware Proxy"
  network     = google_compute_network.hvdcloud.self_link
  direction   = "INGRESS"
  priority    = 1000
  target_tags = ["hvdcloud"]

  # https://cloud.google.com/iap/docs/using-tcp-forwarding: where IAP's connections come from.
  source_ranges = ["35.235.240.0/20"]

  allow {
    protocol = "tcp"
    ports    = ["2222"]
  }
}

resource "google_compute_router" "hvdcloud" {
  count = var.nat ? 1 : 0

  project     = var.project
  name        = "hvdcloud"
  description = "managed-by=hvdcloud"
  region      = var.region
  network     = google_compute_network.hvdcloud.self_link
}

resource "google_compute_router_nat" "hvdcloud" {
  count = var.nat ? 1 : 0

  project                            = var.project
  name                               = "hvdcloud"
  region                             = var.region
  router                             = google_compute_router.hvdcloud[0].name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  subnetwork {
    name                    = google_compute_subnetwork.hvdcloud.self_link
    source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
  }
}

resource "google_compute_router" "other" {
  for_each = var.nat ? local.other_regions : {}

  project     = var.project
  name        = "hvdcloud"
  description = "managed-by=hvdcloud"
  region      = each.key
  network     = google_compute_network.hvdcloud.self_link
}

resource "google_compute_router_nat" "other" {
  for_each = var.nat ? local.other_regions : {}

  project                            = var.project
  name                               = "hvdcloud"
  region                             = each.key
  router                             = google_compute_router.other[each.key].name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"

  subnetwork {
    name                    = google_compute_subnetwork.other[each.key].self_link
    source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
  }
}
