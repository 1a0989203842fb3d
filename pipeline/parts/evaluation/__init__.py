"""Evaluation: a host that plays each new policy deterministically, and keeps the best policy."""
