"""pipeline/common."""
