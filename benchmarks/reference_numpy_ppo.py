"""PPO on CartPole-v1 by hand in NumPy: a reference for `benchmarks/compare.py`, without Headrace code.

    OMP_NUM_THREADS=1 python benchmarks/reference_numpy_ppo.py --steps 250000 --seed 0

Environment, forward pass, backward pass, clipping and Adam (Kingma & Ba, 2015) are array programs over preallocated
buffers. Policy and values are two towers of 2×64 tanh units with the same layout, so each layer is one stacked matmul
[2, B, ·]; the bias is a column of ones. Loss and advantages are those of Schulman et al. (2017, 2016): with p the
probability of the action taken, r = p / p_old, and Â the normalised advantage,

    L = −mean min(r Â, clip(r, 1 ± ε) Â) + ½ mean (v − R)²

    ∂L/∂logits = −[not clipped] r Â (1{action} − p) / B        ∂L/∂v = (v − R) / B

and through a layer y = tanh(x W):  ∂L/∂z = ∂L/∂y (1 − y²),  ∂L/∂W = xᵀ ∂L/∂z,  ∂L/∂x = ∂L/∂z Wᵀ.
Prints one line of JSON: the rate and the CPU time by stage after the first fifth of the steps, and when CartPole was
solved.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque

import numpy as np
from numpy.typing import NDArray

ENVS, TICKS, BATCH, EPOCHS, UNITS = 64, 32, 256, 4, 64
RATE, GAMMA, LAMBDA, CLIP, NORM, ADAM_EPSILON = 1e-3, 0.99, 0.95, 0.2, 0.5, 1e-5
SOLVED = 475.0
STAGES = ("deciding", "stepping", "update")
F = np.float32
Floats = NDArray[np.float32]


class CartPoles:
    """Many of Gymnasium's CartPole-v1 at once: Euler steps of 0.02 s, at most 500 steps, reward 1 per step."""

    def __init__(self, n: int, random: np.random.Generator) -> None:
        self._random = random
        self._state = random.uniform(-0.05, 0.05, (4, n)).astype(F)
        self._age = np.zeros(n, np.int64)
        self.finished: deque[int] = deque(maxlen=100)

    @property
    def observations(self) -> Floats:
        """Observations [n, 4]: a view that the next step changes."""
        return self._state.T

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Floats]:
        """Step; return which poles fell, which ran out of time, and the observations before any restart."""
        _, v, angle, turn = self._state
        cos, sin = np.cos(angle), np.sin(angle)
        push = (actions.astype(F) * F(20.0) - F(10.0) + F(0.05) * turn * turn * sin) / F(1.1)
        bend = (F(9.8) * sin - cos * push) / (F(0.5) * (F(4 / 3) - F(0.1 / 1.1) * cos * cos))
        change = np.stack((v, push - F(0.05 / 1.1) * bend * cos, turn, bend))
        change *= F(0.02)
        self._state = state = self._state + change
        self._age += 1
        fallen = (np.abs(state[0]) > F(2.4)) | (np.abs(state[2]) > F(12 * 2 * np.pi / 360))
        late = (self._age >= 500) & ~fallen
        ended, last = fallen | late, state.T
        if ended.any():
            last = last.copy()
            self.finished.extend(self._age[ended].tolist())
            state[:, ended] = self._random.uniform(-0.05, 0.05, (4, int(ended.sum())))
            self._age[ended] = 0
        return fallen, late, last


class Towers:
    """Towers of policy (0) and values (1), forward and backward; the value tower uses the first of its two outputs."""

    SHAPES = ((2, 5, UNITS), (2, UNITS + 1, UNITS), (2, UNITS + 1, 2))

    def __init__(self, random: np.random.Generator) -> None:
        size = sum(int(np.prod(shape)) for shape in self.SHAPES)
        self.flat, self.gradient = np.zeros(size, F), np.zeros(size, F)
        self._first, self._second, self._scratch = (np.zeros(size, F) for _ in range(3))
        self._updates = 0
        self.weights, self._gradients = self._parts(self.flat), self._parts(self.gradient)
        for weight, gains in zip(self.weights, ((2**0.5,) * 2, (2**0.5,) * 2, (0.01, 1.0)), strict=True):
            for tower, gain in enumerate(gains):
                u, _, v = np.linalg.svd(random.standard_normal(weight[tower, :-1].shape), full_matrices=False)
                weight[tower, :-1] = gain * u @ v  # orthogonal
        self.weights[2][1, :, 1] = 0.0  # unused, so its gradient is 0
        self._buffers: dict[int, list[Floats]] = {}

    def _parts(self, flat: Floats) -> list[Floats]:
        ends = np.cumsum([np.prod(shape) for shape in self.SHAPES])
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), self.SHAPES, strict=True)]

    def forward(self, observations: Floats) -> Floats:
        """Return outputs [2, B, 2] for observations [B, 4]: logits, and (value, unused); valid until the next call."""
        n = len(observations)
        if n not in self._buffers:
            widths = (5, UNITS + 1, UNITS + 1, 2, UNITS, UNITS)
            self._buffers[n] = [np.ones((1 if k == 0 else 2, n, width), F) for k, width in enumerate(widths)]
        x, first, second, out, z, _ = self._buffers[n]
        x[0, :, :4] = observations
        np.tanh(np.matmul(x, self.weights[0], out=z), out=first[..., :UNITS])
        np.tanh(np.matmul(first, self.weights[1], out=z), out=second[..., :UNITS])
        return np.matmul(second, self.weights[2], out=out)

    def backward(self, n: int, slope: Floats) -> None:
        """Compute weight gradients from the loss's gradient [2, n, 2] at the outputs of the last `forward`."""
        x, first, second, _, z, y = self._buffers[n]
        np.matmul(second.transpose(0, 2, 1), slope, out=self._gradients[2])
        np.matmul(slope, self.weights[2][:, :-1].transpose(0, 2, 1), out=z)
        for layer, below, out in ((1, first, second), (0, x, first)):
            np.multiply(out[..., :UNITS], out[..., :UNITS], out=y)
            np.subtract(F(1.0), y, out=y)
            z *= y
            np.matmul(below.transpose(0, 2, 1), z, out=self._gradients[layer])
            if layer:
                np.matmul(z, self.weights[1][:, :-1].transpose(0, 2, 1), out=y)
                z, y = y, z

    def descend(self) -> None:
        """Clip the gradient norm and take one Adam step."""
        gradient, scratch = self.gradient, self._scratch
        norm = float(np.sqrt(gradient @ gradient))
        if norm > NORM:
            gradient *= F(NORM / norm)
        self._updates += 1
        self._first += np.multiply(np.subtract(gradient, self._first, out=scratch), F(0.1), out=scratch)
        gradient *= gradient
        self._second += np.multiply(np.subtract(gradient, self._second, out=scratch), F(0.001), out=scratch)
        grown = (1 - 0.999**self._updates) ** 0.5
        np.sqrt(self._second, out=scratch)
        scratch += F(ADAM_EPSILON * grown)
        np.divide(self._first, scratch, out=scratch)
        scratch *= F(RATE * grown / (1 - 0.9**self._updates))
        self.flat -= scratch


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities [B, A]."""
    z = logits - logits.max(axis=1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    return z


def slope_of(out: Floats, taken: Floats, old: Floats, advantages: Floats, returns: Floats) -> Floats:
    """Return ∂L/∂out [2, B, 2]; `taken` is the one-hot action."""
    n = len(old)
    log_p = log_softmax(out[0])
    ratio = np.exp((log_p * taken).sum(axis=1) - old)
    advantages = (advantages - advantages.mean()) / (advantages.std() + F(1e-8))
    free = np.where(advantages > 0, ratio < F(1 + CLIP), ratio > F(1 - CLIP))
    slope = np.zeros_like(out)
    slope[0] = (taken - np.exp(log_p)) * (ratio * advantages * free * F(-1 / n))[:, None]
    slope[1, :, 0] = (out[1, :, 0] - returns) * F(1 / n)
    return slope


class Record:
    """Records the rate and the CPU time after the first fifth of the steps, and when CartPole was solved.

    Args:
        what: the program's description; the arguments are those of the command line.
    """

    def __init__(self, what: str | None) -> None:
        parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--steps", type=int, default=250_000)
        parser.add_argument("--seed", type=int, default=0)
        args = parser.parse_args()
        self.seed: int = args.seed
        self._most: int = args.steps
        self._step = 0
        self._solved: int | None = None
        self._mark: tuple[int, float, float] | None = None
        self.stages = dict.fromkeys(STAGES, 0.0)
        """CPU seconds by stage."""
        self._began = time.perf_counter()

    def goes_on(self) -> bool:
        """Return True while steps remain; the measurements start after the first fifth."""
        if self._mark is None and self._step >= self._most // 5:
            self._mark = (self._step, time.perf_counter(), time.process_time())
            self.stages = dict.fromkeys(STAGES, 0.0)
        return self._step < self._most

    def add(self, envs: CartPoles) -> None:
        """Count one rollout's steps, and note if CartPole is solved."""
        self._step += ENVS * TICKS
        if self._solved is None and len(envs.finished) == 100 and np.mean(envs.finished) >= SOLVED:
            self._solved = self._step

    def print(self, envs: CartPoles) -> None:
        """Print the record as one line of JSON."""
        assert self._mark is not None, "there are steps"
        counted = self._step - self._mark[0]
        told = {
            "steps": counted,
            "seconds": time.perf_counter() - self._mark[1],
            "cpu_s": time.process_time() - self._mark[2],
            "stages": {name: 1e6 * seconds / counted for name, seconds in self.stages.items()},
            "solved_at": self._solved,
            "score": float(np.mean(envs.finished)),
            "whole_s": time.perf_counter() - self._began,
        }
        print(json.dumps(told))


def advantages_of(rewards: Floats, values: Floats, ended: Floats) -> Floats:
    """Return advantages [TICKS, ENVS], given rewards, values [TICKS + 1, ENVS] and where episodes ended."""
    goes_on, found = (1 - ended) * F(GAMMA), np.zeros_like(rewards)
    deltas, running = rewards + goes_on * values[1:] - values[:-1], np.zeros(ENVS, F)
    for tick in reversed(range(TICKS)):
        found[tick] = running = deltas[tick] + F(LAMBDA) * goes_on[tick] * running
    return found


def main() -> None:
    """Train and print the measurements."""
    record = Record(__doc__)
    random = np.random.default_rng(record.seed)
    envs, net = CartPoles(ENVS, random), Towers(random)
    obs, values = np.zeros((TICKS, ENVS, 4), F), np.zeros((TICKS + 1, ENVS), F)
    log_probs, rewards, ended = (np.zeros((TICKS, ENVS), F) for _ in range(3))
    taken, which, both = np.zeros((TICKS, ENVS, 2), F), np.arange(ENVS), np.eye(2, dtype=F)
    while record.goes_on():
        for tick in range(TICKS):
            t0 = time.process_time()
            obs[tick] = envs.observations
            out = net.forward(obs[tick])
            log_p, values[tick] = log_softmax(out[0]), out[1, :, 0]
            actions = (np.exp(log_p[:, 0]) < random.random(ENVS, F)).astype(np.int64)
            log_probs[tick], taken[tick] = log_p[which, actions], both[actions]
            t1 = time.process_time()
            fallen, late, last = envs.step(actions)
            ended[tick] = fallen | late
            rewards[tick] = 1.0
            record.stages["deciding"] += t1 - t0
            record.stages["stepping"] += time.process_time() - t1
            if late.any():  # truncated, not terminated: bootstrap from the critic's value
                rewards[tick, late] += F(GAMMA) * net.forward(last)[1, late, 0]
        t0 = time.process_time()
        values[TICKS] = net.forward(envs.observations)[1, :, 0]
        advantages = advantages_of(rewards, values, ended)
        flat_obs, flat_taken = obs.reshape(-1, 4), taken.reshape(-1, 2)
        flat_old, flat_advantages = log_probs.reshape(-1), advantages.reshape(-1)
        returns = flat_advantages + values[:-1].reshape(-1)
        for _ in range(EPOCHS):
            for rows in random.permutation(ENVS * TICKS).reshape(-1, BATCH):
                out = net.forward(flat_obs[rows])
                slope = slope_of(out, flat_taken[rows], flat_old[rows], flat_advantages[rows], returns[rows])
                net.backward(BATCH, slope)
                net.descend()
        record.stages["update"] += time.process_time() - t0
        record.add(envs)
    record.print(envs)


if __name__ == "__main__":
    main()
