"""Connect Four on hundreds of boards simultaneously, with PettingZoo's moves and observations (docs/pettingzoo.md)."""

from headrace.stages.games.connect_four.group import ConnectFourGroup
from headrace.stages.games.connect_four.scripted import RandomPlayer, TacticalPlayer

__all__ = ["ConnectFourGroup", "RandomPlayer", "TacticalPlayer"]
