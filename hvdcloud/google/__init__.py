"""What every client of Google's services shares: credentials, HTTP with retries, errors and what they mean."""
