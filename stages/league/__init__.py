"""Leagues: several learners of one behaviour, and the pool of frozen policies that they play against."""
