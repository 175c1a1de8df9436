"""What `hvdcloud doctor` checks before VMs are made."""
