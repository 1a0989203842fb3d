"""Environments with the interface of ML-Agents' low-level API (`BaseEnv`), whoever made them."""
