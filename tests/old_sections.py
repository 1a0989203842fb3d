"""Sections of old, flat configuration files."""

from __future__ import annotations

from typing import Any


def flat(trainer: str, more: str = "") -> str:
    """A flat section of a trainer with all keys that its version asked for; `more` goes before them."""
    common = {
        "batch_size": 64,
        "hidden_units": 32,
        "learning_rate": 4e-4,
        "max_steps": 9000,
        "normalize": "true",
        "num_layers": 1,
        "time_horizon": 16,
        "sequence_length": 8,
        "summary_freq": 700,
        "use_recurrent": "false",
        "memory_size": 24,
        "reward_signals": "{extrinsic: {strength: 0.5, gamma: 0.9}}",
    }
    own: dict[str, dict[str, Any]] = {
        "ppo": {"beta": 2e-3, "buffer_size": 640, "epsilon": 0.3, "lambd": 0.8, "num_epoch": 5},
        "sac": {"buffer_size": 6400, "buffer_init_steps": 10, "init_entcoef": 0.4, "num_update": 1, "tau": 0.02},
    }
    said = {"trainer": trainer, **common, **own[trainer]}
    for line in filter(None, more.split("\n")):
        key, _, value = line.partition(": ")
        said[key] = value
    return "{" + ", ".join(f"{key}: {value}" for key, value in said.items() if value != "-") + "}"
