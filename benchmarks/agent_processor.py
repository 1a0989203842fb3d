"""Measures the agent processor's cost per agent step, including emission, against a plain copy of the columns.

    taskset -c 1 python benchmarks/agent_processor.py

The steps are created in advance. `fixed`: 64 agents, all deciding every tick, 0.5 % of their episodes ending per
step. `churn`: 64 agents, a tenth of them leaving or joining per tick, each deciding in every tick or every fifth,
so that about 64 or 14 decisions and 3 endings arrive together. The costs are per row taken in (decisions and endings)
and per row emitted. CPU time is measured, because a busy machine disturbs it less than wall-clock time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import StepBatch
from headrace.stages.agent import AgentProcessor

AGENTS = 64
HORIZON = 32
PERIOD = 5


def step_batch(
    random: np.random.Generator,
    ended: NDArray[np.int64],
    deciding: NDArray[np.int64],
    episodes: dict[int, int],
) -> StepBatch:
    """Return CartPole-like columns for these agents; the episode numbers of the ended agents increase."""
    d, n = len(deciding), len(ended) + len(deciding)
    episode_ids = [episodes.setdefault(int(agent), 0) for agent in ended]
    for agent in ended:
        episodes[int(agent)] += 1
    episode_ids += [episodes.setdefault(int(agent), 0) for agent in deciding]
    return StepBatch(
        behavior_id="CartPole",
        agent_ids=np.concatenate((ended, deciding)),
        env_ids=np.zeros(n, np.int32),
        episode_ids=np.array(episode_ids, np.int64),
        observations=(random.random((n, 4), np.float32),),
        rewards=np.ones(n, np.float32),
        ended=len(ended),
        terminated=np.ones(len(ended), np.bool_),
        truncated=np.zeros(len(ended), np.bool_),
        decisions={
            "discrete_actions": random.integers(0, 2, (d, 1), np.int32),
            "log_probs": random.random((d, 1), np.float32),
        },
        policy_versions=np.zeros(d, np.int64),
        generations=np.zeros(d, np.int32),
        learning=np.ones(d, np.bool_),
        opponents=np.full(d, -1, np.int32),
    )


def fixed(ticks: int, agents: int) -> list[StepBatch]:
    """Return steps with the same agents in every tick; some episodes end and restart within a tick."""
    random = np.random.default_rng(1)
    ids = np.arange(agents) + (7 << 32)
    episodes: dict[int, int] = {}
    return [
        step_batch(random, ids[random.random(agents) < (0.005 if tick else 0)], ids, episodes) for tick in range(ticks)
    ]


def churn(ticks: int, agents: int, period: int = PERIOD) -> list[StepBatch]:
    """Return steps in which 5 % of the agents leave and as many join per tick; each decides every `period` ticks."""
    random = np.random.default_rng(2)
    ids = np.arange(agents) + (7 << 32)
    phases = ids % period
    episodes: dict[int, int] = {}
    steps = []
    for tick in range(ticks):
        leaving = random.random(agents) < 0.05
        ended = ids[leaving]
        ids = np.where(leaving, ids + (1 << 20), ids)
        phases = np.where(leaving, tick % period, phases)
        steps.append(step_batch(random, ended, ids[phases == tick % period], episodes))
    return steps


def process(steps: Sequence[StepBatch], min_rows: int) -> tuple[float, int]:
    """Return the CPU seconds and the emitted rows of one pass through a new processor."""
    processor = AgentProcessor({"CartPole": HORIZON}, min_rows=min_rows)
    rows = 0
    start = time.process_time()
    for step in steps:
        for batch in processor.process(step):
            rows += batch.num_rows
    for batch in processor.finish():
        rows += batch.num_rows
    return time.process_time() - start, rows


def copy(steps: Sequence[StepBatch]) -> float:
    """Return the CPU seconds for copying the row columns of all steps once, into contiguous memory."""
    total = sum(len(step.agent_ids) for step in steps)
    first = steps[0]
    targets = [np.zeros((total, 4), np.float32), np.zeros(total, np.float32)]
    decided = [np.zeros((total, *values.shape[1:]), values.dtype) for values in first.decisions.values()]
    at = at_decided = 0
    start = time.process_time()
    for step in steps:
        n, d = len(step.agent_ids), len(step.policy_versions)
        targets[0][at : at + n] = step.observations[0]
        targets[1][at : at + n] = step.rewards
        for target, values in zip(decided, step.decisions.values(), strict=True):
            target[at_decided : at_decided + d] = values
        at, at_decided = at + n, at_decided + d
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ticks", type=int, default=3000)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    agents, ticks, repeats = arguments.agents, arguments.ticks, arguments.repeats
    print(f"{agents} agents, horizon {HORIZON}, median of {repeats} passes of {ticks} ticks")
    print(f"{'steps':<10}{'min_rows':>9}{'rows':>9}{'µs per row in':>15}{'µs per row out':>16}{'× one copy':>12}")
    for name, steps in {
        "fixed": fixed(ticks, agents),
        "churn, 1": churn(ticks, agents, 1),
        f"churn, {PERIOD}": churn(ticks, agents),
    }.items():
        for min_rows in (1, 256):
            passes = [(*process(steps, min_rows), copy(steps)) for _ in range(repeats)]
            seconds = statistics.median(row[0] for row in passes)
            ratio = statistics.median(row[0] / row[2] for row in passes)
            rows_in, rows_out = sum(len(step.agent_ids) for step in steps), passes[0][1]
            costs = f"{seconds / rows_in * 1e6:>15.3f}{seconds / rows_out * 1e6:>16.3f}{ratio:>12.1f}"
            print(f"{name:<10}{min_rows:>9}{rows_out:>9}{costs}")


if __name__ == "__main__":
    main()
