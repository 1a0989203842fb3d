"""PettingZoo's multi-agent environments, parallel and turn-based (docs/pettingzoo.md)."""
