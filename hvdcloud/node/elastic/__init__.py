"""Elastic runs: nodes leave and join while the run trains."""
