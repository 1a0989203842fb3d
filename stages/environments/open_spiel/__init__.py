"""OpenSpiel games: each game state acts as an instance in the group for PettingZoo's turn-based environments."""
