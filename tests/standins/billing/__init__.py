"""A stand-in of Google's price catalog: the Cloud Billing API's `services.skus.list`."""

from tests.standins.billing.server import BillingServer
from tests.standins.billing.skus import catalog_skus, sku

__all__ = ["BillingServer", "catalog_skus", "sku"]
