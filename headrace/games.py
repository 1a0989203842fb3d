"""The built-in games for scripts: groups of matches, players, and video recording."""

from __future__ import annotations

from headrace.stages.exhibition.volley_clip import write_clip as write_clip
from headrace.stages.games.connect_four import ConnectFourGroup as ConnectFourGroup
from headrace.stages.games.connect_four import TacticalPlayer as TacticalPlayer
from headrace.stages.games.policy_player import PolicyPlayer as PolicyPlayer
from headrace.stages.games.pursuit import PursuitGroup as PursuitGroup
from headrace.stages.games.pursuit import ScriptedEvader as ScriptedEvader
from headrace.stages.games.pursuit import ScriptedPursuer as ScriptedPursuer
from headrace.stages.games.volley import ACTIONS as ACTIONS
from headrace.stages.games.volley import ScriptedPlayer as ScriptedPlayer
from headrace.stages.games.volley import VolleyGroup as VolleyGroup

__all__ = [name for name in dir() if name[0] != "_" and name != "annotations"]
