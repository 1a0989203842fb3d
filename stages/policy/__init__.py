"""Policies for acting. The trainable networks are in `headrace.stages.policy.network`, which imports torch."""
