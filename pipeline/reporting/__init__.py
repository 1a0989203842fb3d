"""pipeline/reporting."""
