"""Vectorised Gymnasium environments as an environment group."""
