"""Applies a behaviour's reward signals to a full buffer.

Axis letters: N rows of K trajectories; S reward signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.on_policy.critic import Floats, rows_per_pass
from headrace.stages.trainer.on_policy.rollout import RolloutBuffer, arrays_of
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards import make_signals, reward_scale
from headrace.stages.trainer.rewards.signal import Extrinsic
from headrace.stages.trainer.trajectories import AgentTable, Chains, add_to_episodes


class Signals:
    """A behaviour's S reward signals, in the order of its settings.

    If the environment's reward is the only signal, the other signals' work is skipped.

    Args:
        context: the trainer's context.
        hyperparameters: the trainer's hyperparameters. They are a separate argument because, for a subclass named as
            `module:Class`, the context has them only as plain data.

    Attributes:
        names: [S] the signals' names.
        gammas: [S] the signals' discounts.
        strengths: [S] the factors on the signals' rewards.
        ignore_termination: [S] true if a signal's value continues beyond the end of a terminated episode.
        others: the indices of all signals except the environment's reward.
        sums: for each agent in the middle of an episode, the sums of rewards so far from all signals except the
            environment's; None if there are no other signals.

    Raises:
        StageError: if a signal can't be made.
    """

    def __init__(self, context: TrainerContext, hyperparameters: object) -> None:
        self._context = context
        self._signals = make_signals(context)
        self.names = [signal.name for signal in self._signals]
        self.gammas = np.array([signal.gamma for signal in self._signals])
        self.strengths = np.array([signal.strength for signal in self._signals])
        self.ignore_termination = np.array([signal.ignores_termination for signal in self._signals])
        self.others = [at for at, signal in enumerate(self._signals) if not isinstance(signal, Extrinsic)]
        self.sums = AgentTable(len(self.others), "float64") if self.others else None
        self._losses: dict[str, list[float]] = {}
        self.scale = reward_scale(self._signals, hyperparameters)
        """Scales the environment's rewards; None if they are not scaled."""

    @property
    def follows_agents(self) -> bool:
        """True if the signals need each agent's data from its earlier trajectories."""
        return self.sums is not None or self.scale is not None

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Pass the vector observations [n, V] of new steps to all signals except the environment's reward."""
        for at in self.others:
            self._signals[at].observe(vectors)

    def transitions(self, buffer: RolloutBuffer) -> BufferTransitions | None:
        """Return a full buffer's rows in the signals' form; None if the environment's reward is the only signal."""
        if not self.others:
            return None
        return BufferTransitions(self._context.spec, buffer, self._context.device)

    def rewards(self, extrinsic: NDArray[np.float32], transitions: BufferTransitions | None) -> NDArray[np.float64]:
        """Return the rewards [N, S] of all rows, times the signals' strengths.

        Args:
            extrinsic: [N] the environment's rewards.
            transitions: the result of `transitions()` for the same rows.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
        """
        scaled = extrinsic.astype(np.float64) if self.scale is None else self.scale.apply(extrinsic)
        rewards: NDArray[np.float64] = scaled[:, None] * self.strengths
        if transitions is None:
            return rewards
        block = rows_per_pass(self._context.spec)
        for start in range(0, len(rewards), block):
            rows = np.arange(start, min(start + block, len(rewards)))
            some = transitions.take(rows)
            for at in self.others:
                rewards[rows, at] = self._signals[at].rewards(some) * self.strengths[at]
        return rewards

    def learner(self, transitions: BufferTransitions | None) -> Callable[[Tensor], None] | None:
        """Return a function that trains the signals on given rows; None if no signal learns."""
        if transitions is None:
            return None
        self._losses = {}

        def learn(rows: Tensor) -> None:
            some = transitions.take(rows.numpy())
            for at in self.others:
                for name, loss in self._signals[at].learn(some).items():
                    self._losses.setdefault(name, []).append(loss)

        return learn

    def report(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains, update: int) -> None:
        """Report the losses of all signals except the environment's reward, and their sums over the ended episodes.

        Args:
            buffer: the rows that were learned from.
            rewards: [N, S] the rewards of these rows.
            chains: which trajectory continues which.
            update: the update's number, ascending.
        """
        assert self.sums is not None, "called only if there are other signals"
        add, extend, behavior = self._context.statistics.add, self._context.statistics.extend, self._context.behavior
        for name, losses in self._losses.items():
            add(behavior, name, float(np.mean(losses)))
        trajectories = buffer.trajectories
        lengths = trajectories["lengths"]
        finished = add_to_episodes(
            self.sums,
            trajectories["agent_ids"],
            trajectories["episode_ids"],
            buffer.ended,
            np.add.reduceat(rewards[:, self.others], np.cumsum(lengths) - lengths),
            update,
            chains,
        )
        for column, at in enumerate(self.others):
            if len(finished):
                extend(behavior, f"Policy/{self.names[at].capitalize()} Reward", finished[:, column].tolist(), "mean")

    def value_statistics(self, estimates: Mapping[str, Floats], values: Floats, targets: Floats) -> dict[str, float]:
        """Return statistics of the critic's named estimates [N, S], and of its values and value targets [N, S]."""
        statistics = dict[str, float]()
        explained = explained_variances(values, targets).tolist()
        for at, name in enumerate(self.names):
            for estimate, of_rows in estimates.items():
                statistics[f"Policy/{name.capitalize()} {estimate}"] = float(of_rows[:, at].mean())
            if isfinite(explained[at]):  # if targets are constant, there is no variance to explain
                statistics[f"Policy/{name.capitalize()} Explained Variance"] = explained[at]
        return statistics

    def state_dict(self) -> dict[str, Any]:
        """Return the signals' states, keyed by name, and the running sums."""
        return {
            "signals": {signal.name: signal.state_dict() for signal in self._signals},
            "sums": None if self.sums is None else self.sums.state_dict(),
            "scale": None if self.scale is None else self.scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if the state belongs to different signals or networks; the message names the tensor.
        """
        states = state["signals"]
        if set(states) != set(self.names):
            raise StageError(
                f"reward_signals: the saved state was made with {', '.join(sorted(states))}, but the configuration has "
                f"{', '.join(sorted(self.names))}; a resumed run needs the same signals"
            )
        for signal in self._signals:
            signal.load_state_dict(states[signal.name])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
        if self.scale is not None and (scale := state.get("scale")) is not None:
            self.scale.load_state_dict(scale)


class BufferTransitions:
    """A buffer's rows in the form that reward signals take: not normalised, with each row's next observation.

    Args:
        spec: observations and actions.
        buffer: a full buffer, which must not change while this object is in use.
        device: the device that signals compute on.
    """

    def __init__(self, spec: BehaviorSpec, buffer: RolloutBuffer, device: str) -> None:
        rows, trajectories = buffer.rows, buffer.trajectories
        self._device = device
        self._observations, self._finals = buffer.observations(), buffer.final_observations()
        lengths = trajectories["lengths"]
        self._trajectory = np.full(len(rows), -1, np.int64)  # index of the trajectory that ends with the row
        self._trajectory[np.cumsum(lengths) - 1] = np.arange(len(lengths))
        drawn, choices = buffer.actions()
        self._continuous = environment_actions(spec.actions, drawn, buffer.squashed)
        self._choices = choices.astype(np.int64)
        self._rewards = rows["rewards"]
        self._ended = trajectories["terminated"]

    def __len__(self) -> int:
        return len(self._rewards)

    def take(self, rows: NDArray[np.int64]) -> Transitions:
        """Return the transitions for the selected rows."""
        trajectory = self._trajectory[rows]
        last = np.flatnonzero(trajectory >= 0)
        finals = trajectory[last]
        terminated = np.zeros(len(rows), np.float32)
        terminated[last] = self._ended[finals]
        following = np.minimum(rows + 1, len(self) - 1)
        next_arrays = []
        for row, final in zip(arrays_of(self._observations), arrays_of(self._finals), strict=True):
            array = row[following]
            array[last] = final[finals]
            next_arrays.append(array)
        vectors, *others = next_arrays
        here, *seen = (array[rows] for array in arrays_of(self._observations))
        return Transitions(
            Inputs.from_encoded(EncodedObservations(here, tuple(seen)), self._device),
            Inputs.from_encoded(EncodedObservations(vectors, tuple(others)), self._device),
            *(
                torch.from_numpy(array).to(self._device)
                for array in (self._continuous[rows], self._choices[rows], self._rewards[rows], terminated)
            ),
        )


def explained_variances(values: Floats, targets: Floats) -> Floats:
    """Return 1 - Var(target - value) / Var(target) [S] for values and targets [N, S]; NaN if the targets do not vary.

    The result is 1 for a perfect critic, 0 for a critic that predicts the mean, and negative for a worse critic.
    """
    spread = targets.var(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, 1.0 - (targets - values).var(axis=0) / spread, np.nan)
