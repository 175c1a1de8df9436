"""Compute Engine: nodes are VMs."""
