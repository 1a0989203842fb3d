"""Asking a trained policy from Python: `load_policy`, and what it reads and returns in the environment's own terms."""
