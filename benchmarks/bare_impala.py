"""The actor-learner on one page of plain PyTorch, and beside it the pipeline with `impala`, and with `ppo`.

CartPole with 64 environments, 2×64 tanh for the policy and as much for the values, unrolls of 20 steps of which an
update takes 32: V-trace with ρ̄ = c̄ = 1, losses summed, one step of Adam, one thread.

    python benchmarks/bare_impala.py page --seeds 0 1 2
    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/bare_impala.py updates
    python benchmarks/bare_impala.py runs --pairs 5

`page` trains by the page alone. `updates` compares the CPU time of an update, trainers without a pipeline: taking rows
in, learning, and making the policy. `runs` trains by page, `impala` and `ppo` in turn, with default hosts and lag, so
that all meet the same machine: the ratios count. PPO has one epoch of one minibatch of as many rows, and else its
defaults. Rates of runs are steady-state, between two counts of steps; a learner's CPU time is that of its whole
process, of the page that of its updates. µs are per step.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import psutil
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from update import rows_of

from headrace.config import BehaviorSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.trainer import Trainer, TrainerContext
from headrace.stages.trainer.factory import make_trainer

ROOT = Path(__file__).resolve().parent.parent
ENVS, LENGTH, BATCH = 64, 20, 32
GAMMA, RATE, ENTROPY, BASELINE, NORM = 0.99, 6e-4, 0.01, 0.5, 40.0
FROM_STEP, TO_STEP = 40_000, 400_000


class Measured(NamedTuple):
    """What a run brought."""

    steps_per_s: float
    learner_us: float
    """CPU time of the learner per step."""
    update_us: float
    """Time of updates per step."""
    last_100: float
    """Mean return of the last 100 training episodes."""

    @property
    def learned_per_cpu_s(self) -> float:
        """Steps per CPU second of the learner."""
        return 1e6 / self.learner_us


# The page. ---------------------------------------------------------------------------------------------------------


def tower(outputs: int) -> nn.Sequential:
    """Two hidden layers of 64 and a head."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Unrolls(NamedTuple):
    """Unrolls of T steps of E environments; observations [T + 1, E, 4], all else [T, E]."""

    observations: Tensor
    actions: Tensor
    acted: Tensor
    """Log-probabilities of the actions under the policy that acted."""
    rewards: Tensor
    discounts: Tensor
    valid: Tensor
    """0 where an environment is reset, which it is instead of the step after an ending: no decision was made."""


def page(seed: int) -> Measured:
    """Train on one thread, collecting and learning in turn."""
    torch.manual_seed(seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVS)
    observations, _ = envs.reset(seed=seed)
    valid, returns, finished = np.ones(ENVS, bool), np.zeros(ENVS), deque[float](maxlen=100)
    actor, critic = tower(2), tower(1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], RATE)
    steps, learning_s, begun, begun_at = 0, 0.0, 0.0, 0

    def tick() -> list[Any]:
        nonlocal observations, valid
        with torch.no_grad():
            log_probs = actor(torch.from_numpy(observations)).log_softmax(1)
            actions = log_probs.exp().multinomial(1)
        before, decided = observations.copy(), valid
        observations, rewards, terminated, truncated, _ = envs.step(actions[:, 0].numpy())
        valid = ~(terminated | truncated)
        returns[:] += rewards
        finished.extend(returns[~valid & decided])
        returns[~valid] = 0.0
        return [before, actions[:, 0], log_probs.gather(1, actions)[:, 0], rewards, GAMMA * ~terminated, decided]

    while steps < TO_STEP:
        if not begun and steps >= FROM_STEP:
            learning_s, begun, begun_at = 0.0, time.perf_counter(), steps
        columns = list(zip(*(tick() for _ in range(LENGTH)), strict=True))
        columns[0] = (*columns[0], observations)
        stacked = [torch.as_tensor(np.stack(column)) for column in columns]
        unrolls = Unrolls(*stacked[:3], *(column.float() for column in stacked[3:]))
        for first in range(0, ENVS, BATCH):
            began = time.process_time()
            learn(actor, critic, optimizer, Unrolls(*(column[:, first : first + BATCH] for column in unrolls)))
            learning_s += time.process_time() - began
        steps += int(unrolls.valid.sum())
    envs.close()
    learned, took = steps - begun_at, time.perf_counter() - begun
    us = 1e6 * learning_s / learned
    return Measured(learned / took, us, us, float(np.mean(finished)))


def learn(actor: nn.Module, critic: nn.Module, optimizer: torch.optim.Adam, unrolls: Unrolls) -> None:
    """One gradient step. A row of no decision has no loss, and its V-trace target is its value."""
    values = critic(unrolls.observations)[:, :, 0]
    log_probs = actor(unrolls.observations[:-1]).log_softmax(2)
    taken = log_probs.gather(2, unrolls.actions[:, :, None])[:, :, 0]
    with torch.no_grad():
        ratios = (taken - unrolls.acted).exp().clamp(max=1.0) * unrolls.valid
        deltas = ratios * (unrolls.rewards + unrolls.discounts * values[1:] - values[:-1])
        traces, beyond = unrolls.discounts * ratios, torch.zeros_like(deltas[0])
        targets = values.clone()
        for t in reversed(range(LENGTH)):
            beyond = deltas[t] + traces[t] * beyond
            targets[t] += beyond
        advantages = ratios * (unrolls.rewards + unrolls.discounts * targets[1:] - values[:-1])
    policy_gradient = -(advantages * taken).sum()
    baseline = 0.5 * ((values - targets)[:-1].square() * unrolls.valid).sum()
    entropy = -((log_probs.exp() * log_probs).sum(2) * unrolls.valid).sum()
    optimizer.zero_grad()
    (policy_gradient + BASELINE * baseline - ENTROPY * entropy).backward()
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], NORM)
    optimizer.step()


# The pipeline. -----------------------------------------------------------------------------------------------------

IMPALA = {
    "unroll_length": LENGTH,
    "batch_size": BATCH,
    "learning_rate": RATE,
    "learning_rate_schedule": "constant",
    "adam_beta1": 0.9,
    "beta": ENTROPY,
    "baseline_cost": BASELINE,
    "max_grad_norm": NORM,
}
PPO = {"buffer_size": BATCH * LENGTH, "batch_size": BATCH * LENGTH, "num_epoch": 1, "max_grad_norm": 0.5}


def block(trainer: str) -> dict[str, Any]:
    """The behaviour's block."""
    return {
        "trainer_type": trainer,
        "hyperparameters": IMPALA if trainer == "impala" else PPO,
        "network_settings": {"num_layers": 2, "hidden_units": 64, "activation": "tanh"},
        "reward_signals": {"extrinsic": {"gamma": GAMMA}},
        **({"time_horizon": LENGTH} if trainer == "ppo" else {}),
        "max_steps": TO_STEP + FROM_STEP,
        "summary_freq": FROM_STEP,
    }


def pipeline(trainer: str, seed: int) -> Measured:
    """Train by the pipeline, with processes."""
    options = {
        "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": ENVS},
        "behaviors": {"CartPole": block(trainer)},
        "env_settings": {"seed": seed},
    }
    with tempfile.TemporaryDirectory() as results:
        file = Path(results) / "cartpole.yaml"
        file.write_text(yaml.safe_dump(options))
        command = [str(ROOT / "bin/run-pipeline"), str(file), "--run-id", "bench", "--results-dir", results]
        with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            used = _sampled(process)
            assert process.stdout is not None
            output = process.stdout.read().decode()
        if process.returncode:
            raise SystemExit(f"the pipeline ended with status {process.returncode}: {output}")
        events = EventAccumulator(str(Path(results) / "bench" / "CartPole"))
        events.Reload()
    at = {scalar.step: scalar.wall_time for scalar in events.Scalars("Pipeline/Update Duration")}
    took, rows = (
        mean(scalar.value for scalar in events.Scalars(name) if FROM_STEP < scalar.step <= TO_STEP)
        for name in ("Pipeline/Update Duration", "Pipeline/Update Experiences")
    )
    begin, end = at[FROM_STEP], at[TO_STEP]
    inside = [seconds for when, seconds in used if begin <= when <= end]
    learned = TO_STEP - FROM_STEP
    returned = events.Scalars("Environment/Cumulative Reward")[-1].value
    return Measured(learned / (end - begin), 1e6 * (inside[-1] - inside[0]) / learned, 1e6 * took / rows, returned)


def _sampled(process: subprocess.Popen[bytes]) -> list[tuple[float, float]]:
    """Times, and CPU times of the learner by then."""
    samples, learner = [], None
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            if learner is None:
                children = psutil.Process(process.pid).children()
                learner = next((child for child in children if "learner-CartPole" in child.cmdline()), None)
            else:
                times = learner.cpu_times()
                samples.append((time.time(), times.user + times.system))
        time.sleep(0.02)
    return samples


def updates(count: int) -> None:
    """Make updates of random rows in turn, and print the medians of their CPU times."""
    spec = BehaviorSpec("CartPole", (ObservationSpec("o", (4,)),), ActionSpec(discrete_branches=(2,)))
    batch = rows_of(spec, BATCH * LENGTH, 0, np.random.default_rng(0), LENGTH)
    actor, critic = tower(2), tower(1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], RATE)
    shape = (LENGTH, BATCH)
    columns = (
        torch.zeros(shape, dtype=torch.int64),
        torch.full(shape, -1.4),
        torch.rand(shape),
        torch.full(shape, GAMMA),
    )
    unrolls = Unrolls(torch.rand(LENGTH + 1, BATCH, 4), *columns, torch.ones(shape))
    works: dict[str, Callable[[], object]] = {"page": lambda: learn(actor, critic, optimizer, unrolls)}
    for kind in ("impala", "ppo"):
        settings = BehaviorSettings.model_validate(block(kind))
        works[kind] = partial(_updated, make_trainer(TrainerContext("CartPole", settings, spec)), batch)
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(count):
        for name, work in works.items():
            began = time.process_time()
            work()
            took[name].append(time.process_time() - began)
    us = {name: 1e6 * median(each) / (BATCH * LENGTH) for name, each in took.items()}
    print(", ".join(f"{name} {each:.2f} µs" for name, each in us.items()))
    for other in ("page", "ppo"):
        print(f"impala / {other}: {us[other] / us['impala']:.2f} times the steps per CPU second")


def _updated(trainer: Trainer, batch: TrajectoryBatch) -> None:
    trainer.add(batch)
    trainer.learn()
    trainer.policy()


def compare(pairs: int) -> None:
    """Run the three in turn, and print each run and the medians of the ratios."""
    sides: dict[str, Callable[[int], Measured]] = {
        "page": page,
        "impala": lambda seed: pipeline("impala", seed),
        "ppo": lambda seed: pipeline("ppo", seed),
    }
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for pair in range(pairs):
        names = list(sides) if pair % 2 == 0 else list(reversed(sides))  # so that a drift favours nobody
        for name in names:
            found[name].append(sides[name](pair))
            report(name, pair, found[name][-1])
    for other in ("page", "ppo"):
        speed, cpu, updates = (
            median(of(a) / of(b) for a, b in zip(found["impala"], found[other], strict=True))
            for of in (
                lambda each: each.steps_per_s,
                lambda each: each.learned_per_cpu_s,
                lambda each: 1.0 / each.update_us,
            )
        )
        print(
            f"impala / {other}, medians: steps/s {speed:.2f}, steps per CPU second of the learner {cpu:.2f}, "
            f"steps per second of updates {updates:.2f}"
        )


def report(name: str, seed: int, run: Measured) -> None:
    """Print a run."""
    print(
        f"{name:>7} {seed}: {run.steps_per_s:>8,.0f} steps/s, learner {run.learner_us:>5.2f} µs, updates "
        f"{run.update_us:>5.2f} µs, last returns {run.last_100:>5.0f}",
        flush=True,
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("page", "updates", "runs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of `page`")
    parser.add_argument("--pairs", type=int, default=5, help="of `runs`")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.what == "runs":
        compare(asked.pairs)
    elif asked.what == "updates":
        updates(500)
    else:
        for seed in asked.seeds:
            report("page", seed, page(seed))


if __name__ == "__main__":
    main()
