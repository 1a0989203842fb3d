"""Compiled passes over arrays, for what NumPy computes in many calls."""
