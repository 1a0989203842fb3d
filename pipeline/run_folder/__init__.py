"""pipeline/run_folder."""
