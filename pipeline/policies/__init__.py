"""pipeline/policies."""
