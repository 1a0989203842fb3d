"""PettingZoo environments, of many agents: parallel and turn-based ones (docs/pettingzoo.md)."""

from headrace.stages.environment.pettingzoo.group import PettingZooGroup
from headrace.stages.environment.pettingzoo.instances import api_of, instance_of
from headrace.stages.environment.pettingzoo.making import make_instances, maker_of

__all__ = ["PettingZooGroup", "api_of", "instance_of", "make_instances", "maker_of"]
