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
