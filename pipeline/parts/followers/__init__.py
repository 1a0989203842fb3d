"""Replicas of a trainer: followers that learn together with their learner."""
