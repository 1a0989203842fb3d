"""Compiled functions for array passes that would take many NumPy calls."""
