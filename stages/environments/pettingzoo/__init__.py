"""PettingZoo environments, with many agents: parallel and turn-based ones (docs/pettingzoo.md)."""
