"""pipeline/main."""
