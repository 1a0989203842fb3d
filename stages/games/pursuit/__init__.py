"""Pursuit, a built-in game of two against one: two pursuers chase a faster evader (docs/pettingzoo.md)."""

from stages.games.pursuit.group import PursuitGroup
from stages.games.pursuit.play import Player, Tally, as_player, play_games, random_player
from stages.games.pursuit.scripted import ScriptedEvader, ScriptedPursuer

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
