"""League presets (docs/league-rules.md explains the rules and their sources)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "alphastar": {
        "learners": {
            "main": {
                "matches": [
                    {"match": "pfsp", "weight": 0.5, "weighting": "squared"},
                    {"match": "verify", "weight": 0.15, "against": ["main_exploiter"]},
                    {"match": "self", "weight": 0.35},
                ],
            },
            "main_exploiter": {
                "matches": [{"match": "newest", "against": ["main"]}],
                "freeze": {"first": False},
                "reset": {"probability": 1.0},
            },
            "league_exploiter": {
                "matches": [{"match": "pfsp", "weighting": "linear_capped"}],
                "freeze": {"first": False},
                "reset": {"probability": 0.25},
            },
        },
    },
    "five": {
        "iterations": 100,
        "learners": {
            "main": {
                "matches": [
                    {"match": "self", "weight": 0.8},
                    {"match": "pfsp", "weight": 0.2, "weighting": "five"},
                ],
                "freeze": {"win_rate": None},
            },
        },
    },
    "psro": {
        "payoff": "mean_return",
        "meta_solver": "nash",
        "rating": 0.1,
        "learners": {"main": {"matches": [{"match": "meta"}], "freeze": {"win_rate": None}}},
    },
}
"""The presets, keyed by name: values for keys of `league`, which the user's YAML can override."""

_SELF_PLAY: Mapping[str, Any] = {
    "hyperparameters": {
        "batch_size": 256,
        "buffer_size": 2048,
        "num_epoch": 3,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "linear",
        "beta": 1e-2,
        "beta_schedule": "linear",
        "epsilon_schedule": "constant",
        "max_grad_norm": None,
        "reward_normalization": False,
        "regularization": {"coefficient": 0.2, "anchor_steps": 30_000},
    },
    "network_settings": {"activation": "tanh", "normalize": False},
}

PRESET_LEARNING: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "alphastar": {"ppo": _SELF_PLAY},
    "five": {"ppo": _SELF_PLAY},
}
"""Defaults for a behaviour's keys, keyed by preset and by trainer: those with which the preset's rules learn well."""
