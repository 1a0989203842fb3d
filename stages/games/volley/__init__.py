"""Volley, a built-in game: one-against-one volleyball on hundreds of courts simultaneously (docs/volley.md)."""

from headrace.stages.games.volley.group import VolleyGroup
from headrace.stages.games.volley.scripted import ScriptedPlayer

__all__ = ["ScriptedPlayer", "VolleyGroup"]
