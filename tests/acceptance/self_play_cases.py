"""ML-Agents' acceptance cases for self-play, with the ones that must fail: they prove that opponents really are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acceptance import acceptance_envs
from acceptance.cases import ACTIONS, PPO, changed
from acceptance.episode_log import read_returns
from acceptance.harness import final_score

from headrace.config import RunConfig
from headrace.pipeline.run import run

SYMMETRIC = ("1D?team=0", "1D?team=1")
ASYMMETRIC = ("1D?team=0", "1DOpp?team=1")
THRESHOLD = 0.9


@dataclass(frozen=True)
class SelfPlayCase:
    """Sides, how they learn, and how many of them have to be above the threshold at the end."""

    name: str
    sides: tuple[str, ...]
    actions: Mapping[str, int]
    behavior: Mapping[str, Any]
    """The block of the YAML of each behaviour."""
    solved: int
    """2: both sides; 1: exactly one of them."""


def _cases() -> list[SelfPlayCase]:
    cases = []
    for kind, actions in ACTIONS.items():
        for name, sides, steps, solved, self_play in (
            (
                "symmetric",
                SYMMETRIC,
                2500,
                2,
                {"play_against_latest_model_ratio": 1.0, "save_steps": 2000, "swap_steps": 2000},
            ),
            (
                "symmetric never swapped",
                SYMMETRIC,
                2500,
                1,
                {"play_against_latest_model_ratio": 1.0, "save_steps": 2000, "swap_steps": 4000},
            ),
            (
                "asymmetric",
                ASYMMETRIC,
                4000,
                2,
                {"play_against_latest_model_ratio": 1.0, "save_steps": 10000, "swap_steps": 10000, "team_change": 400},
            ),
            (
                "asymmetric against the first snapshot",
                ASYMMETRIC,
                3000,
                1,
                {"play_against_latest_model_ratio": 0.0, "save_steps": 5000, "swap_steps": 5000, "team_change": 2000},
            ),
        ):
            behavior = changed(PPO, max_steps=steps, self_play=self_play)
            cases.append(SelfPlayCase(f"{name} {kind}", sides, actions, behavior, solved))
    return cases


CASES = {case.name: case for case in _cases()}
"""All cases by name; settings, steps and threshold are ML-Agents' own."""


def try_self_play(case: SelfPlayCase, folder: Path, seed: int) -> tuple[bool, dict[str, float]]:
    """Train a case with a seed; whether it came out as it has to, and each side's mean return in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"episodes-{seed}.txt"
    plain = {
        "environment": {
            "kind": "gymnasium",
            "factory": "self_play_tasks:Sides",
            "behavior": "1D",
            "options": {"sides": list(case.sides), **case.actions},
        },
        "env_settings": {"seed": seed},
        "behaviors": {side.partition("?")[0]: dict(case.behavior) for side in case.sides},
        "checkpoint_settings": {"results_dir": str(folder), "run_id": f"seed-{seed}"},
        "torch_settings": {"device": "cpu"},
        "pipeline": {
            "deterministic": True,
            "stages": [{"use": "self_play_tasks:SideLog", "with": {"path": str(log)}}],
        },
    }
    run(RunConfig.from_plain(plain, Path(acceptance_envs.__file__)))
    returns = read_returns(log)
    scores = {side: final_score(returns.get(side, [])) for side in case.sides}
    return sum(score > THRESHOLD for score in scores.values()) == case.solved, scores
