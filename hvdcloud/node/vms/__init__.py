"""The machines of the cluster, as its own nodes make, delete and switch them off."""
