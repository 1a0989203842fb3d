"""Evaluation: a host that plays each new policy deterministically, and saves the best one."""
