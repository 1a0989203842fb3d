"""A run's live page and its HTTP API, and the same page for finished runs."""
