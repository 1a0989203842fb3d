"""Environments of all kinds, as groups that are stepped together."""
