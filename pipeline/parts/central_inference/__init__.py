"""Central inference: one host chooses actions for all actors."""
