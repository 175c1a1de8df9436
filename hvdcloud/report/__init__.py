"""A run as one HTML page: `record` is what is known of it, `metrics` what its log says, `page` and `plot` its looks."""
