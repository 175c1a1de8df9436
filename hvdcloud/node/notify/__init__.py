"""Telling a person who does not watch a run that it has ended, or what it costs."""
