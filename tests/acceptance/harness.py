"""Training a case to its end in this process, and judging it by the returns of its last episodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from acceptance import acceptance_envs
from acceptance.episode_log import read_returns
from acceptance.recording import record

from headrace.config import RunConfig
from headrace.pipeline.run import RunResult, run

Plain = dict[str, Any]

LAST_EPISODES = 5
"""Episodes of each instance that a run is judged by, as ML-Agents does it with its only one."""
BESIDE = Path(acceptance_envs.__file__)
"""Configurations are read as if they lay beside the tasks."""


@dataclass(frozen=True)
class Demonstrations:
    """What a case imitates: steps of the task played perfectly, recorded before it trains."""

    steps: int = 100
    seed: int = 1


@dataclass(frozen=True)
class Case:
    """A task, how to learn it, and what has to be reached."""

    name: str
    task: str
    """A class of `acceptance_envs`, or of `group_tasks`."""
    behavior: Plain
    """The behaviour's block of the YAML. `DEMOS` in a `demo_path` stands for the recorded demonstrations."""
    threshold: float
    options: Plain
    """Of the task."""
    num_envs: int = 1
    demonstrations: Demonstrations | None = None
    fails: bool = False
    """Whether it is right to stay *below* the threshold: a control."""
    grouped: bool = False
    """Whether the task is for groups of agents: then it is judged by what they get as groups."""

    @property
    def steps(self) -> int:
        """Steps to learn it in."""
        return int(self.behavior["max_steps"])


DEMOS = "<demonstrations>"


@dataclass(frozen=True)
class Outcome:
    """What became of a case with one seed."""

    result: RunResult
    returns: list[float]
    """Of all training episodes, in order."""
    score: float
    """Mean return of the last of them."""
    accepted: bool


def train(plain: Mapping[str, Any], folder: Path, seed: int, behavior: str = "Task") -> tuple[RunResult, list[float]]:
    """Run a configuration with everything in this process.

    Args:
        plain: the configuration, without `checkpoint_settings` and `pipeline`.
        folder: where the run and the log of its episodes go.
        seed: of everything.
        behavior: whose episodes to tell of; with `:group`, whose groups.

    Returns:
        what was reached, and the returns of the behaviour's training episodes in order.
    """
    log = folder / f"episodes-{seed}.txt"
    whole = copy.deepcopy(dict(plain))
    whole["env_settings"] = {**whole.get("env_settings", {}), "seed": seed}
    whole["checkpoint_settings"] = {"results_dir": str(folder), "run_id": f"seed-{seed}"}
    whole["torch_settings"] = {"device": "cpu"}
    whole["pipeline"] = {
        "deterministic": True,
        "stages": [{"use": "episode_log:EpisodeLog", "with": {"path": str(log)}}],
    }
    result = run(RunConfig.from_plain(whole, BESIDE))
    return result, read_returns(log).get(behavior, [])


def try_case(case: Case, folder: Path, seed: int) -> Outcome:
    """Train a case with a seed, and judge it; the folder is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    behavior = "Task:group" if case.grouped else "Task"
    result, returns = train(configuration(case, folder), folder, seed, behavior)
    score = final_score(returns, case.num_envs)
    return Outcome(result, returns, score, (score > case.threshold) is not case.fails)


def passes(returns: list[float], threshold: float, num_envs: int = 1) -> bool:
    """Whether the last episodes returned more than the threshold on average."""
    return final_score(returns, num_envs) > threshold


def final_score(returns: list[float], num_envs: int = 1) -> float:
    """Mean return of the last five episodes per instance; minus infinity if there are not so many."""
    judged = LAST_EPISODES * num_envs
    return float(np.mean(returns[-judged:])) if len(returns) >= judged else -np.inf


def configuration(case: Case, folder: Path) -> Plain:
    """The configuration of a case, after recording what it imitates."""
    behavior = copy.deepcopy(case.behavior)
    if case.demonstrations is not None:
        behavior = _filled(behavior, str(_demonstrate(case, case.demonstrations, folder)))
    environment = {
        "kind": "gymnasium",
        "factory": f"{'group_tasks' if case.grouped else 'acceptance_envs'}:{case.task}",
        "num_envs": case.num_envs,
        "options": dict(case.options),
    }
    return {"environment": environment, "behaviors": {"Task": behavior}}


def _demonstrate(case: Case, wanted: Demonstrations, folder: Path) -> Path:
    group = getattr(acceptance_envs, case.task)(1, "Task", **case.options)
    path = folder / f"{case.task}.stream"
    path.unlink(missing_ok=True)
    return record(group, lambda rows: group.solve(), path, wanted.steps, wanted.seed)


def _filled(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, path) for key, inner in value.items()}
    return path if value == DEMOS else value
