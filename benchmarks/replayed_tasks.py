"""What `impala` forgets of a task while it learns another one, with replay and without: CLEAR's experiment.

    python benchmarks/replayed_tasks.py --seeds 0 1 2 3 4 --out docs

Two tasks A and B of one shape, A, B and A again, each for a third of the run (Rolnick et al. 2019, "Experience Replay
for Continual Learning"). Both are CartPole-v1, cut at 200 steps, with a fifth number that tells them apart: -1 in A and
1 in B, where the two pushes are swapped. A policy for both exists, but one that has to learn B alone may turn all of
its weights around. Of each policy that the run exports, the score is the mean return of deterministic episodes in A and
in B. Writes the scores to replayed-tasks.csv and draws them in replayed-tasks.svg.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import gymnasium
import numpy as np
import torch
from curves import Panel, draw
from trained import exports_of, steps_of

from config import RunConfig
from pipeline.policies.export import load_acting_policy
from pipeline.run import run

STEPS = 100_000
"""Of each of the three stretches."""
EVERY, EPISODES, LONGEST = 5_000, 50, 200
UNROLLS = {"learning_rate": 1e-3, "learning_rate_schedule": "constant", "beta": 0.2}
"""With an entropy bonus by which a policy of A still tries what B asks for."""
FRESH = 16
REPLAYED = {"batch_size": 2 * FRESH, "batch_size_from_replay": FRESH}
WAYS: dict[str, dict[str, Any]] = {
    "replay and cloning": {**REPLAYED, "policy_cloning_cost": 0.5, "value_cloning_cost": 0.25},
    "replay alone": {**REPLAYED, "policy_cloning_cost": 0.0, "value_cloning_cost": 0.0},
    "no replay": {"batch_size": FRESH},
}
"""Each learns from as many fresh unrolls in an update."""
KEPT = 0.8

Scores = dict[int, tuple[float, float]]
"""By step, the scores in A and in B."""


class Carts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 as A, or where the option `swapped` is 1 as B."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=LONGEST, disable_env_checker=True))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self._swapped = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the task that the parameter says."""
        self._swapped = bool((options or {}).get("swapped"))
        observation, info = self.env.reset(seed=seed)
        return with_cue(observation, self._swapped), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the cart."""
        observation, reward, terminated, truncated, info = self.env.step(int(action) ^ self._swapped)
        return with_cue(observation, self._swapped), float(reward), terminated, truncated, info


def with_cue(observations: Any, swapped: bool) -> Any:
    """Observations [..., 4] with the number that tells the task, [..., 5]."""
    cue = np.full((*observations.shape[:-1], 1), 1.0 if swapped else -1.0, np.float32)
    return np.concatenate([observations, cue], axis=-1)


def configuration(way: str, seed: int, results: str, changes: Mapping[str, Any]) -> RunConfig:
    """The run: on one thread, in one process, the same again with the same seed."""
    lessons = [
        {"name": name, "value": value, **({"completion_criteria": _after(third)} if third < 3 else {})}
        for third, (name, value) in enumerate((("A", 0), ("B", 1), ("A again", 0)), 1)
    ]
    return RunConfig.from_plain(
        {
            "environment": {"kind": "gymnasium", "factory": "replayed_tasks:Carts", "num_envs": 32, "behavior": "Cart"},
            "environment_parameters": {"swapped": {"curriculum": lessons}},
            "env_settings": {"seed": seed},
            "behaviors": {
                "Cart": {
                    "trainer_type": "impala",
                    "hyperparameters": {**UNROLLS, **WAYS[way], **changes},
                    "network_settings": {"num_layers": 2, "hidden_units": 64, "activation": "tanh"},
                    "reward_signals": {"extrinsic": {"gamma": 0.99, "strength": 0.1}},
                    "max_steps": 3 * STEPS,
                    "summary_freq": EVERY,
                    "checkpoint_interval": EVERY,
                    "keep_checkpoints": 1000,
                }
            },
            "checkpoint_settings": {"run_id": "run", "results_dir": results},
            "pipeline": {"deterministic": True},
        },
        Path(__file__),
    )


def _after(third: int) -> dict[str, Any]:
    return {
        "behavior": "Cart",
        "measure": "progress",
        "threshold": third / 3,
        "min_lesson_length": 0,
        "require_reset": True,
    }


def learned(way: str, seed: int, changes: Mapping[str, Any]) -> Scores:
    """Train, and judge each policy that was exported."""
    with tempfile.TemporaryDirectory() as results:
        folder = run(configuration(way, seed, results, changes)).folder
        return {steps_of(path): scores(path) for path in exports_of(folder, "Cart")}


def scores(export: Path) -> tuple[float, float]:
    """The mean returns of a policy in A and in B, over the same starts."""
    policy, random = load_acting_policy(export), np.random.default_rng(0)
    found = []
    for swapped in (False, True):
        envs = gymnasium.make_vec("CartPole-v1", num_envs=EPISODES)
        observations, _ = envs.reset(seed=10_000)
        playing, returns = np.ones(EPISODES, bool), np.zeros(EPISODES)
        for _ in range(LONGEST):
            actions = policy.act((with_cue(observations, swapped),), None, random, deterministic=True).actions
            observations, rewards, terminated, truncated, _ = envs.step(actions.discrete[:, 0] ^ swapped)
            returns += rewards * playing
            playing &= ~(terminated | truncated)
        envs.close()
        found.append(float(returns.mean()))
    return found[0], found[1]


def kept(found: Scores) -> tuple[float, float, float, float]:
    """The best score in A before B, and that after B; the score in B then; the share of A's that is kept."""
    peak = max(a for step, (a, _) in found.items() if step <= STEPS + EVERY)
    after, in_b = next(both for step, both in sorted(found.items()) if step >= 2 * STEPS)
    return peak, after, in_b, after / peak


def main() -> None:
    """Run all ways with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=NUMBER", help="changes a hyperparameter")
    parser.add_argument("--out", type=Path, help="folder for the files; without it nothing is written")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    changes = {key: float(value) for key, _, value in (each.partition("=") for each in asked.set)}
    found: dict[str, list[Scores]] = {}
    for way in asked.ways:
        for seed in asked.seeds:
            one = learned(way, seed, changes)
            found.setdefault(way, []).append(one)
            peak, after, in_b, share = kept(one)
            print(f"{way} {seed}: A {peak:.0f}, after B {after:.0f} ({share:.0%}), B {in_b:.0f}", flush=True)
        shares = [kept(each)[3] for each in found[way]]
        print(f"{way}: {sum(share >= KEPT for share in shares)} of {len(shares)} keep {KEPT:.0%}; {median(shares):.0%}")
    if asked.out is not None:
        write(asked.out / "replayed-tasks.csv", asked.seeds, found)
        (asked.out / "replayed-tasks.svg").write_text(draw(panels(found)))


def write(path: Path, seeds: Sequence[int], found: Mapping[str, Sequence[Scores]]) -> None:
    """Write a line for each policy that was judged."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("way", "seed", "step", "score in A", "score in B"))
        for way, runs in found.items():
            for seed, one in zip(seeds, runs, strict=True):
                lines.writerows((way, seed, step, f"{a:.1f}", f"{b:.1f}") for step, (a, b) in sorted(one.items()))


def panels(found: Mapping[str, Sequence[Scores]]) -> list[Panel]:
    """A diagram for each task; steps are rounded, as each run has its own."""
    spans = {"learns A": (0, STEPS), "learns B": (STEPS, 2 * STEPS), "learns A again": (2 * STEPS, 3 * STEPS)}
    return [
        Panel(
            f"score in {task}: mean of {EPISODES} episodes",
            {way: _by_step(runs, which) for way, runs in found.items()},
            "steps",
            float(LONGEST),
            spans=spans,
        )
        for which, task in enumerate("AB")
    ]


def _by_step(runs: Sequence[Scores], which: int) -> dict[float, list[float]]:
    rounded: dict[float, list[float]] = {}
    for one in runs:
        near: dict[float, list[float]] = {}
        for step, both in one.items():
            near.setdefault(float(EVERY * round(step / EVERY)), []).append(both[which])
        for at, values in near.items():
            rounded.setdefault(at, []).append(mean(values))
    return rounded


if __name__ == "__main__":
    main()
