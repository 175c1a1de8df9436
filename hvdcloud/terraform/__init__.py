"""Running Terraform for `hvdcloud setup`; the module is terraform/ in the repository, module/ here once installed."""
