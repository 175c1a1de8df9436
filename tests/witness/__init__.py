"""Programs that nobody here wrote, against our stand-ins and our own requests; skipped where they are not installed."""
