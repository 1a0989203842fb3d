"""Scores of a run that only plays (`--inference`)."""
