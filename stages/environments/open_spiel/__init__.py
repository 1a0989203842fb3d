"""Games of OpenSpiel: their states as instances of the group that PettingZoo's turn-based environments are."""
