"""Environments with the interface of ML-Agents' low-level API (`BaseEnv`), from any package."""
