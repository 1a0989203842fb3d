"""A run's folder: its files, lock, status and checkpoints."""
