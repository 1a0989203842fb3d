"""PettingZoo environments, of many agents: parallel and turn-based ones (docs/pettingzoo.md)."""
