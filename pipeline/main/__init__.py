"""A run's main process: starts, connects, supervises and ends hosts."""
