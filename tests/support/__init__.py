"""What several tests use. No test imports a test."""
