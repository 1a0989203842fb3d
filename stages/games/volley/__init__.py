"""Volley, the built-in game: one-against-one volleyball on hundreds of courts at once (docs/volley.md)."""

from stages.games.tally import Tally
from stages.games.volley.group import VolleyGroup
from stages.games.volley.play import Player, PolicyPlayer, as_player, play_games, random_player
from stages.games.volley.scripted import ScriptedPlayer

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
