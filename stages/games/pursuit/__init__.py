"""Pursuit, a built-in two-against-one game: two pursuers chase a faster evader (docs/pettingzoo.md)."""

from headrace.stages.games.pursuit.group import PursuitGroup
from headrace.stages.games.pursuit.scripted import ScriptedEvader, ScriptedPursuer

__all__ = ["PursuitGroup", "ScriptedEvader", "ScriptedPursuer"]
