"""Where a cluster can be made, and what it would cost there."""
