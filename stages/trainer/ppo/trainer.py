"""Proximal policy optimisation with ML-Agents' semantics, as a `Trainer`.

Data: `rollout_buffer`; advantages: `advantages`; the update itself: `update`. Where it differs from ML-Agents
is told in docs/differences.md: the ratio is of the joint action, and ready means at least `buffer_size` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from config import PPOHyperparameters
from queues.messages import Array, PolicyUpdate, TrajectoryBatch
from stages.errors import NotFiniteError, StageError
from stages.policy.encoders import ObservationEncoder
from stages.policy.layout import MASK_PENALTY, policy_layout
from stages.policy.network import ActorCritic
from stages.policy.normalizer import Normalizer
from stages.trainer.ppo.advantages import advantages, normalized
from stages.trainer.ppo.minibatch import Rollout
from stages.trainer.ppo.rollout_buffer import RolloutBuffer
from stages.trainer.ppo.update import Coefficients, Losses, PPOUpdate
from stages.trainer.protocol import Trainer, TrainerContext
from stages.trainer.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule

_VALUE_ROWS = 4096
"""Rows per forward pass of the critic over a rollout: bounds memory, and stays in the processor's cache."""


class PPOTrainer(Trainer):
    """Learns one behaviour from whole buffers of on-policy trajectories.

    Raises:
        StageError: if the behaviour can't be trained so: unknown reward signals, no actions, an observation
        that no
            encoder takes.
    """

    def __init__(self, context: TrainerContext) -> None:
        settings = context.settings
        self._context = context
        self._spec = context.spec
        # A subclass named as `module:Class` gets its hyperparameters as the YAML has them.
        given = settings.hyperparameters
        self._hyperparameters = PPOHyperparameters.model_validate(given)
        self._check()
        # SFC64 rather than NumPy's default, because its state is an array of 64-bit words, which streams can
        # hold.
        self._random = np.random.Generator(np.random.SFC64(context.seed))
        self._encoder = ObservationEncoder(self._spec)
        self._normalizer = Normalizer(self._encoder.size) if settings.network_settings.normalize else None
        self._layout = policy_layout(self._spec, settings.network_settings)
        self._signals = list(settings.reward_signals)
        self._gammas = np.array([settings.reward_signals[name].gamma for name in self._signals])
        self._strengths = np.array([settings.reward_signals[name].strength for name in self._signals])
        self._network = ActorCritic(
            self._spec,
            settings.network_settings,
            len(self._signals),
            self._hyperparameters.shared_critic,
            self._random,
            context.device,
        )
        self._update = PPOUpdate(self._network, self._spec, self._hyperparameters)
        self._buffer = RolloutBuffer(self._spec, self._encoder.size, self._hyperparameters.buffer_size)
        self._step = 0
        self._version = 0
        h, steps = self._hyperparameters, settings.max_steps
        self._learning_rate = Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps)
        self._epsilon = Schedule(h.epsilon_schedule, h.epsilon, EPSILON_FLOOR, steps)
        self._beta = Schedule(h.beta_schedule, h.beta, BETA_FLOOR, steps)

    @property
    def step(self) -> int:
        """Agent steps added so far."""
        return self._step

    @property
    def version(self) -> int:
        """Updates made so far."""
        return self._version

    @property
    def rows_per_update(self) -> int:
        """`buffer_size`."""
        return self._hyperparameters.buffer_size

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normaliser.

        Raises:
            NotFiniteError: naming agent, column and step, if what would be trained on is NaN or infinite; the
            batch
                is then not taken.
        """
        if not batch.num_rows:
            return
        inputs = self._encode(batch.rows, "obs_", batch.num_rows)
        next_inputs = self._encode(batch.trajectories, "next_obs_", batch.num_trajectories)
        # The observation after a terminated episode is not trained on, and simulators that blew up give NaN
        # there.
        next_inputs[batch.terminated] = 0.0
        self._check_finite(batch, inputs, next_inputs)
        if self._normalizer is not None:
            self._normalizer.update(inputs)
        self._buffer.rows.append({**batch.rows, "inputs": inputs})
        self._buffer.trajectories.append({**batch.trajectories, "next_inputs": next_inputs})
        self._step += batch.num_rows

    def ready(self) -> bool:
        """Whether the buffer holds at least `buffer_size` rows."""
        return len(self._buffer) >= self._hyperparameters.buffer_size

    def learn(self) -> int:
        """One update from the whole buffer, which is then empty; returns the rows used.

        Raises:
            NotFiniteError: if a loss became NaN or infinite; weights, optimizer and buffer are then as
            before.
        """
        coefficients = Coefficients(
            self._learning_rate.at(self._step), self._epsilon.at(self._step), self._beta.at(self._step)
        )
        rollout, values = self._rollout()
        losses = self._update.run(rollout, coefficients, self._random, self._step)
        rows = len(self._buffer)
        self._buffer.clear()
        self._version += 1
        self._report(losses, coefficients, values)
        return rows

    def policy(self) -> PolicyUpdate:
        """The actor's weights and the normaliser's state."""
        tensors = self._network.acting_tensors()
        if self._normalizer is not None:
            tensors["normalizer.mean"], tensors["normalizer.inverse_std"] = self._normalizer.tensors()
        weights = np.concatenate([tensors[name].reshape(-1) for name, _ in self._layout])
        return PolicyUpdate(self._context.behavior, self._version, weights, self._layout, self._step)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, counters, randomness, and the rows that wait in the buffer."""
        state = self._random.bit_generator.state
        return {
            "step": self._step,
            "version": self._version,
            "weights": self._network.state_dict(),
            "optimizer": self._update.state_dict(),
            "normalizer": None if self._normalizer is None else self._normalizer.state_dict(),
            "random": {
                "words": state["state"]["state"].copy(),
                "has_uint32": int(state["has_uint32"]),
                "uinteger": int(state["uinteger"]),
            },
            "buffer": self._buffer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to another network or spec; the message names the tensor.
        """
        if (self._normalizer is None) != (state["normalizer"] is None):
            now, then = ("true", "false") if self._normalizer is not None else ("false", "true")
            raise StageError(
                f"{self._context.behavior}: network_settings.normalize is {now}, "
                f"but the saved state was made with {then}"
            )
        try:
            self._network.load(state["weights"])
            self._update.load_state_dict(state["optimizer"])
            if self._normalizer is not None:
                self._normalizer.load_state_dict(state["normalizer"])
            self._buffer.load_state_dict(state["buffer"])
        except StageError as error:
            raise StageError(f"{self._context.behavior}: {error}") from error
        self._random.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.array(state["random"]["words"], np.uint64)},
            "has_uint32": state["random"]["has_uint32"],
            "uinteger": state["random"]["uinteger"],
        }
        self._step = int(state["step"])
        self._version = int(state["version"])

    def _rollout(self) -> tuple[Rollout, NDArray[np.float64]]:
        """The buffer with advantages and returns, on the device; and the values [N, S] of its rows."""
        rows, trajectories = self._buffer.rows, self._buffer.trajectories
        inputs = self._normalized(rows["inputs"])
        values = self._values(np.concatenate([inputs, self._normalized(trajectories["next_inputs"])]))
        values_t, final_values = values[: len(rows)], values[len(rows) :]
        per_signal = advantages(
            rows["rewards"].astype(np.float64)[:, None] * self._strengths,
            values_t,
            final_values,
            trajectories["lengths"],
            trajectories["terminated"],
            self._gammas,
            self._hyperparameters.lambd,
        )
        n, actions = len(rows), self._spec.actions
        log_probs = rows["log_probs"]
        if not self._hyperparameters.ratio_per_dimension:
            log_probs = log_probs.sum(axis=1, keepdims=True)
        columns: list[Array] = [
            inputs,
            rows["continuous_actions"] if actions.continuous_size else np.empty((n, 0), np.float32),
            np.where(rows["action_masks"], np.float32(0), MASK_PENALTY) if actions.masked else np.empty((n, 0)),
            log_probs,
            normalized(per_signal.mean(axis=1))[:, None],
            per_signal + values_t,
        ]
        choices = rows["discrete_actions"] if actions.discrete_branches else np.empty((n, 0), np.int32)
        return Rollout(columns, choices, self._context.device), values_t

    def _values(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        with torch.no_grad():
            blocks = torch.split(torch.from_numpy(inputs).to(self._context.device), _VALUE_ROWS)
            values = torch.cat([self._network(block)[1] for block in blocks])
        return values.cpu().numpy().astype(np.float64)

    def _normalized(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        return inputs if self._normalizer is None else self._normalizer.apply(inputs)

    def _encode(self, columns: Mapping[str, Array], prefix: str, count: int) -> NDArray[np.float32]:
        inputs = np.empty((count, self._encoder.size), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # found and named by _check_finite
            self._encoder.write(tuple(columns[f"{prefix}{i}"] for i in range(len(self._spec.observations))), inputs)
        return inputs

    def _report(self, losses: Losses, coefficients: Coefficients, values: NDArray[np.float64]) -> None:
        add, behavior = self._context.statistics.add, self._context.behavior
        add(behavior, "Losses/Policy Loss", losses.policy)
        add(behavior, "Losses/Value Loss", losses.value)
        add(behavior, "Policy/Entropy", losses.entropy)
        add(behavior, "Policy/Learning Rate", coefficients.learning_rate)
        add(behavior, "Policy/Epsilon", coefficients.epsilon)
        add(behavior, "Policy/Beta", coefficients.beta)
        for signal, mean in zip(self._signals, values.mean(axis=0), strict=True):
            add(behavior, f"Policy/{signal.capitalize()} Value Estimate", float(mean))

    def _check(self) -> None:
        behavior, settings, h = self._context.behavior, self._context.settings, self._hyperparameters
        unknown = sorted(set(settings.reward_signals) - {"extrinsic"})
        if unknown or not settings.reward_signals:
            found = ", ".join(unknown) or "none"
            raise StageError(f"{behavior}: reward_signals: ppo can use extrinsic only so far, got {found}")
        if not self._spec.actions.log_prob_size:
            raise StageError(f"{behavior}: the behaviour has neither continuous nor discrete actions to learn")
        if h.buffer_size < h.batch_size:
            raise StageError(
                f"{behavior}: hyperparameters.buffer_size: {h.buffer_size} is smaller than batch_size "
                f"({h.batch_size}); raise buffer_size or lower batch_size"
            )

    def _check_finite(
        self, batch: TrajectoryBatch, inputs: NDArray[np.float32], next_inputs: NDArray[np.float32]
    ) -> None:
        columns: dict[str, Array] = {
            "obs": inputs,
            "rewards": batch.rewards,
            "log_probs": batch.rows["log_probs"],
        }
        if self._spec.actions.continuous_size:
            columns["continuous_actions"] = batch.rows["continuous_actions"]
        for name, column in columns.items():
            if not np.isfinite(column).all():
                row = _first_bad_row(column)
                ends = np.cumsum(batch.lengths)
                k = int(np.searchsorted(ends, row, side="right"))
                first = int(ends[k] - batch.lengths[k])
                at = f"step {row - first} of its trajectory of {batch.lengths[k]} steps"
                self._refuse(batch, k, name, column[row], at)
        if not np.isfinite(next_inputs).all():
            k = _first_bad_row(next_inputs)
            self._refuse(batch, k, "next_obs", next_inputs[k], f"the end of its trajectory of {batch.lengths[k]} steps")

    def _refuse(self, batch: TrajectoryBatch, k: int, name: str, value: Array, at: str) -> None:
        agent, episode = (int(batch.trajectories[column][k]) for column in ("agent_ids", "episode_ids"))
        raise NotFiniteError(
            f"{batch.behavior_id}: agent {agent}, episode {episode}: {name} is not finite at {at}: "
            f"{value.tolist()} (after {self._step} steps of training); nothing was learned from it"
        )


def _first_bad_row(column: Array) -> int:
    return int(np.flatnonzero(~np.isfinite(column).reshape(len(column), -1).all(axis=1))[0])
