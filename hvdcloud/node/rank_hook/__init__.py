"""What Python imports at its start in every rank: this folder is first on the ranks' PYTHONPATH."""
