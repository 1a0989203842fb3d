"""pipeline/control."""
