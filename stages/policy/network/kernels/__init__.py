"""Compiled passes over arrays that would take NumPy many calls."""
