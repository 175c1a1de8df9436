"""A stand-in of Google's price catalog: the Cloud Billing API's `services.skus.list`, among the emulator's paths."""
