"""Pursuit, a built-in game of two against one: two pursuers chase a faster evader (docs/pettingzoo.md)."""

from stages.environment.pursuit.group import PursuitGroup
from stages.environment.pursuit.play import Player, Tally, as_player, play_games, random_player
from stages.environment.pursuit.scripted import ScriptedEvader, ScriptedPursuer

__all__ = [
    "Player",
    "PursuitGroup",
    "ScriptedEvader",
    "ScriptedPursuer",
    "Tally",
    "as_player",
    "play_games",
    "random_player",
]
