"""Central inference: one host decides for all actors."""
