"""Scores for a run that only plays (`--inference`)."""
