"""Connect four on hundreds of boards at once, with the moves and observations of PettingZoo's (docs/pettingzoo.md)."""

from headrace.stages.games.connect_four.group import ConnectFourGroup
from headrace.stages.games.connect_four.scripted import RandomPlayer, TacticalPlayer

__all__ = ["ConnectFourGroup", "RandomPlayer", "TacticalPlayer"]
