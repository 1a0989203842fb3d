"""Trained policies in Python code: `load_policy`, with observations and actions in the environment's own spaces."""
