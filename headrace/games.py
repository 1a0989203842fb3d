"""The built-in games for scripts: groups of matches, players, and video recording."""

from __future__ import annotations

from headrace.stages.exhibition.volley_clip import write_clip
from headrace.stages.games.connect_four import ConnectFourGroup, TacticalPlayer
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.pursuit import PursuitGroup, ScriptedEvader, ScriptedPursuer
from headrace.stages.games.volley import ACTIONS, ScriptedPlayer, VolleyGroup

__all__ = [
    "ACTIONS",
    "ConnectFourGroup",
    "PolicyPlayer",
    "PursuitGroup",
    "ScriptedEvader",
    "ScriptedPlayer",
    "ScriptedPursuer",
    "TacticalPlayer",
    "VolleyGroup",
    "write_clip",
]
