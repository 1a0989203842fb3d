"""SAC's replay memory: what a sample costs, and how much of an image is stored twice.

    python benchmarks/replay_memory.py

Fills a memory of a million transitions of 17 numbers and 6 actions (HalfCheetah's) and times samples of 256; then adds
images of 84×84×4 bytes in pieces of different lengths, and counts what is stored for each transition.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.sac.replay_memory import ReplayMemory

VECTORS = BehaviorSpec("Cheetah", (ObservationSpec("vector", (17,)),), ActionSpec(continuous_size=6))
IMAGES = BehaviorSpec("Pong", (ObservationSpec("screen", (4, 84, 84), "uint8"),), ActionSpec(discrete_branches=(6,)))


def pieces(spec: BehaviorSpec, agents: int, length: int, random: np.random.Generator) -> TrajectoryBatch:
    """A piece of `length` steps of each agent; nobody's episode ends."""
    n, actions = agents * length, spec.actions
    rows = {"rewards": random.random(n, np.float32), "log_probs": np.zeros((n, actions.log_prob_size), np.float32)}
    (observed,) = spec.observations
    kind = np.dtype(observed.dtype)
    rows["obs_0"] = random.integers(0, 200, (n, *observed.shape)).astype(kind)
    if actions.continuous_size:
        rows["continuous_actions"] = random.random((n, actions.continuous_size), np.float32)
    else:
        rows["discrete_actions"] = random.integers(0, 6, (n, 1)).astype(np.int32)
    return TrajectoryBatch(
        spec.behavior_id,
        0,
        rows,
        {
            "lengths": np.full(agents, length, np.int32),
            "agent_ids": np.arange(agents),
            "episode_ids": np.zeros(agents, np.int64),
            "terminated": np.zeros(agents, np.bool_),
            "truncated": np.zeros(agents, np.bool_),
            "next_obs_0": rows["obs_0"][:agents],
            "credits": np.full(agents, length, np.int32),
        },
    )


def fill(memory: ReplayMemory, layout: ObservationLayout, batch: TrajectoryBatch, rows: int) -> float:
    """Add a batch over and over until there are so many rows; returns seconds."""
    encoded = layout.encode_columns(batch.rows)
    finals = layout.encode_columns(batch.trajectories, "next_obs_")
    began = time.perf_counter()
    for _ in range(-(-rows // batch.num_rows)):
        memory.add(batch, encoded, finals)
    return time.perf_counter() - began


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=400)
    asked = parser.parse_args()
    random, layout = np.random.default_rng(0), ObservationLayout(VECTORS)
    memory = ReplayMemory(VECTORS, layout, asked.rows)
    took = fill(memory, layout, pieces(VECTORS, 64, 8, random), asked.rows)
    times = []
    for _ in range(asked.samples):
        began = time.perf_counter()
        memory.sample(256, random)
        times.append(time.perf_counter() - began)
    print(f"{len(memory):,} transitions of 17 numbers: adding {took / asked.rows * 1e6:.2f} µs each")
    print(f"sampling 256 of them: median {median(times) * 1e3:.3f} ms, worst {max(times) * 1e3:.3f} ms")
    layout = ObservationLayout(IMAGES)
    for length in (1, 8, 64):
        memory = ReplayMemory(IMAGES, layout, 4096)
        fill(memory, layout, pieces(IMAGES, 8, length, random), 4096)
        stored = memory.observations.touched / 4096
        print(f"images in pieces of {length:2d} steps: {stored:.3f} images stored for each transition (1 is the least)")


if __name__ == "__main__":
    main()
