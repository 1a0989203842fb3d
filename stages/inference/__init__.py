"""Central inference: one host decides for the agents of many actors, in batches."""

from headrace.stages.inference.decider import CentralDecider

__all__ = ["CentralDecider"]
