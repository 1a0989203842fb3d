"""Games of OpenSpiel: their states as instances of the group for PettingZoo's turn-based environments."""
