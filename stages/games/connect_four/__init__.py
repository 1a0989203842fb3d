"""Connect four on hundreds of boards at once, with the moves and observations of PettingZoo's (docs/pettingzoo.md)."""

from stages.games.connect_four.group import ConnectFourGroup
from stages.games.connect_four.play import Player, as_player, play_games
from stages.games.connect_four.players import RandomPlayer, TacticalPlayer
from stages.games.tally import Tally

__all__ = ["ConnectFourGroup", "Player", "RandomPlayer", "TacticalPlayer", "Tally", "as_player", "play_games"]
