"""Gymnasium environments, vectorised, as a group."""
