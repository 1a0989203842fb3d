"""OpenSpiel games: each game state is an instance of the group for PettingZoo's turn-based environments."""
