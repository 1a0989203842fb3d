"""Curricula: environment parameters whose lessons depend on training progress."""
