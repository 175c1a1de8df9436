"""Stand-ins of services that cannot run here: each checks every request and keeps state, as the real one does."""
