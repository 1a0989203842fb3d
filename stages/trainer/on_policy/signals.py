"""The reward signals of a behaviour: their rewards over a buffer, their learning beside the policy's, statistics.

With the environment's own reward alone, nothing of this costs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.errors import StageError
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.agent_table import AgentTable, Chains, add_to_episodes
from headrace.stages.trainer.on_policy.critic_values import rows_per_pass
from headrace.stages.trainer.on_policy.rollout_buffer import BufferTransitions, RolloutBuffer
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards import make_signals
from headrace.stages.trainer.rewards.extrinsic import Extrinsic


class Signals:
    """All S reward signals of a behaviour, in the order of its settings.

    Attributes:
        names: [S]
        gammas: [S] discounts.
        strengths: [S] factors on rewards.
        ignore_termination: [S] true where a signal's value goes on beyond the end of an episode that terminated.
        sums: the rewards so far, by all signals but the environment's, of each agent in the middle of an episode; None
            if there are no others.

    Raises:
        StageError: if a signal can't be made.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._signals = make_signals(context)
        self.names = [signal.name for signal in self._signals]
        self.gammas = np.array([signal.gamma for signal in self._signals])
        self.strengths = np.array([signal.strength for signal in self._signals])
        self.ignore_termination = np.array([signal.ignores_termination for signal in self._signals])
        self._others = [at for at, signal in enumerate(self._signals) if not isinstance(signal, Extrinsic)]
        self.sums = AgentTable(len(self._others), "float64") if self._others else None
        self._losses: dict[str, list[float]] = {}

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Show all signals the vector observations [n, V] of new steps."""
        for signal in self._signals:
            signal.observe(vectors)

    def transitions(self, buffer: RolloutBuffer, layout: ObservationLayout) -> BufferTransitions | None:
        """The rows of a full buffer as signals take them in; None if there is only the environment's reward."""
        if not self._others:
            return None
        return BufferTransitions(self._context.spec, layout, buffer, self._context.device)

    def rewards(self, extrinsic: NDArray[np.float32], transitions: BufferTransitions | None) -> NDArray[np.float64]:
        """Rewards [N, S] of all rows, times strength.

        Args:
            extrinsic: [N] the environment's.
            transitions: `transitions()` of the same rows.

        Raises:
            NotFiniteError: if one is NaN or infinite.
        """
        rewards: NDArray[np.float64] = extrinsic.astype(np.float64)[:, None] * self.strengths
        if transitions is None:
            return rewards
        block = rows_per_pass(self._context.spec)
        for start in range(0, len(rewards), block):
            rows = np.arange(start, min(start + block, len(rewards)))
            some = transitions.take(rows)
            for at in self._others:
                rewards[rows, at] = self._signals[at].rewards(some) * self.strengths[at]
        return rewards

    def learner(self, transitions: BufferTransitions | None) -> Callable[[Tensor], None] | None:
        """A function that lets the signals learn from some of the rows; None if there is nothing to learn."""
        if transitions is None:
            return None
        self._losses = {}

        def learn(rows: Tensor) -> None:
            some = transitions.take(rows.numpy())
            for at in self._others:
                for name, loss in self._signals[at].learn(some).items():
                    self._losses.setdefault(name, []).append(loss)

        return learn

    def report(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains | None, update: int) -> None:
        """Report losses, and the sums of rewards over episodes that ended in the buffer.

        Args:
            buffer: the rows that were learned from.
            rewards: [N, S] of these rows.
            chains: which trajectory continues which.
            update: number of the update, rising.
        """
        if self.sums is None or chains is None:
            return
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
            np.add.reduceat(rewards[:, self._others], np.cumsum(lengths) - lengths),
            update,
            chains,
        )
        for column, at in enumerate(self._others):
            if len(finished):
                extend(behavior, f"Policy/{self.names[at].capitalize()} Reward", finished[:, column].tolist(), "mean")

    def state_dict(self) -> dict[str, Any]:
        """The signals' states by name, and the running sums."""
        return {
            "signals": {signal.name: signal.state_dict() for signal in self._signals},
            "sums": None if self.sums is None else self.sums.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if it belongs to other signals, or other networks; the message names the tensor.
        """
        found = state["signals"]
        if set(found) != set(self.names):
            raise StageError(
                f"reward_signals: the saved state was made with {', '.join(sorted(found))}, "
                f"but now there are {', '.join(sorted(self.names))}; a resumed run needs the same"
            )
        for signal in self._signals:
            signal.load_state_dict(found[signal.name])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
