"""PettingZoo environments, of many agents: parallel and turn-based ones (docs/pettingzoo.md)."""

from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import api_of, instance_of
from headrace.stages.environments.pettingzoo.making import make_instances, maker_of

__all__ = ["PettingZooGroup", "api_of", "instance_of", "make_instances", "maker_of"]
