"""Volley, the built-in game: one-against-one volleyball on hundreds of courts at once (docs/volley.md)."""

from stages.environment.tally import Tally
from stages.environment.volley.group import VolleyGroup
from stages.environment.volley.play import Player, PolicyPlayer, as_player, play_games, random_player
from stages.environment.volley.scripted import ScriptedPlayer

__all__ = [
    "Player",
    "PolicyPlayer",
    "ScriptedPlayer",
    "Tally",
    "VolleyGroup",
    "as_player",
    "play_games",
    "random_player",
]
