"""On-policy training from rows to weights, as PPO and POCA share it."""
