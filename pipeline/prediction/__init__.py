"""Using a trained policy from Python: `load_policy`, with inputs and outputs in the environment's own spaces."""
