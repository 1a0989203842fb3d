"""All reward signals of a behaviour, a full buffer in the form that they take, and the advantages of its rows.

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
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.on_policy.rollout_buffer import RolloutBuffer, arrays_of
from headrace.stages.trainer.on_policy.values import CriticValues, Floats, rows_per_pass
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards import make_signals, reward_scale
from headrace.stages.trainer.rewards.signal import Extrinsic
from headrace.stages.trainer.trajectories import AgentTable, Chains, add_to_episodes


class Signals:
    """All S reward signals of a behaviour, in the order of its settings.

    If the environment's reward is the only one, none of this costs anything.

    Args:
        context: the trainer's.
        hyperparameters: the trainer's; for a subclass named as `module:Class`, the context has them only as plain data.

    Attributes:
        names: [S]
        gammas: [S] discounts.
        strengths: [S] factors on rewards.
        ignore_termination: [S] true if a signal's value continues beyond the end of a terminated episode.
        sums: the rewards so far, by all signals except the environment's, of each agent in the middle of an episode;
            None if there are no others.

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
        self._others = [at for at, signal in enumerate(self._signals) if not isinstance(signal, Extrinsic)]
        self.sums = AgentTable(len(self._others), "float64") if self._others else None
        self._losses: dict[str, list[float]] = {}
        self.scale = reward_scale(self._signals, hyperparameters)
        """Divides the environment's rewards; None if they are not scaled."""

    @property
    def follows_agents(self) -> bool:
        """Whether the signals keep data of each agent from trajectory to trajectory."""
        return self.sums is not None or self.scale is not None

    def see(self, extrinsic: NDArray[np.float32], buffer: RolloutBuffer, chains: Chains | None, update: int) -> None:
        """Count the environment's rewards [N] of a full buffer, once, if they are scaled."""
        if self.scale is not None:
            lengths, agents, episodes = (buffer.trajectories[name] for name in ("lengths", "agent_ids", "episode_ids"))
            self.scale.see(extrinsic, lengths, agents, episodes, buffer.ended, update, chains)

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Show the vector observations [n, V] of new steps to all signals but the environment's reward."""
        for at in self._others:
            self._signals[at].observe(vectors)

    def transitions(self, buffer: RolloutBuffer) -> BufferTransitions | None:
        """The rows of a full buffer in the signals' form; None if the environment's reward is the only one."""
        if not self._others:
            return None
        return BufferTransitions(self._context.spec, buffer, self._context.device)

    def rewards(self, extrinsic: NDArray[np.float32], transitions: BufferTransitions | None) -> NDArray[np.float64]:
        """Rewards [N, S] of all rows, times strength.

        Args:
            extrinsic: [N] the environment's.
            transitions: `transitions()` of the same rows.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
        """
        own = extrinsic.astype(np.float64) if self.scale is None else self.scale.apply(extrinsic)
        rewards: NDArray[np.float64] = own[:, None] * self.strengths
        if transitions is None:
            return rewards
        block = rows_per_pass(self._context.spec)
        for start in range(0, len(rewards), block):
            rows = np.arange(start, min(start + block, len(rewards)))
            some = transitions.take(rows)
            for at in self._others:
                rewards[rows, at] = self._signals[at].rewards(some) * self.strengths[at]
        return rewards

    def advantages(
        self, rewards: Floats, values: CriticValues, lengths: NDArray[np.integer], over: NDArray[np.bool_], lambd: float
    ) -> Floats:
        """GAE [N, S] from rewards [N, S], and the trajectories [K] whose end no reward of the task can follow."""
        valueless = over[:, None] & ~self.ignore_termination
        return advantages(rewards, values.values, values.final_values, lengths, valueless, self.gammas, lambd)

    def learner(self, transitions: BufferTransitions | None) -> Callable[[Tensor], None] | None:
        """A function that trains the signals on the given rows; None if no signal learns."""
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
            update: the update's number, ascending.
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

    def value_statistics(self, estimates: Mapping[str, Floats], values: Floats, targets: Floats) -> dict[str, float]:
        """Statistics of the critic's estimates [N, S], by their names, and of its values and their targets [N, S]."""
        named = [name.capitalize() for name in self.names]
        found = {
            f"Policy/{signal} {estimate}": float(mean)
            for estimate, each in estimates.items()
            for signal, mean in zip(named, each.mean(axis=0), strict=True)
        }
        for signal, share in zip(named, explained_variances(values, targets).tolist(), strict=True):
            if isfinite(share):  # constant targets have no variance to explain
                found[f"Policy/{signal} Explained Variance"] = share
        return found

    def state_dict(self) -> dict[str, Any]:
        """The signals' states by name, and the running sums."""
        return {
            "signals": {signal.name: signal.state_dict() for signal in self._signals},
            "sums": None if self.sums is None else self.sums.state_dict(),
            "scale": None if self.scale is None else self.scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if it belongs to other signals, or other networks; the message names the tensor.
        """
        found = state["signals"]
        if set(found) != set(self.names):
            raise StageError(
                f"reward_signals: the saved state was made with {', '.join(sorted(found))}, but the configuration has "
                f"{', '.join(sorted(self.names))}; a resumed run needs the same signals"
            )
        for signal in self._signals:
            signal.load_state_dict(found[signal.name])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
        if self.scale is not None and (scale := state.get("scale")) is not None:
            self.scale.load_state_dict(scale)


class BufferTransitions:
    """The rows of a buffer as reward signals take them: not normalised, with the observation after each.

    Args:
        spec: observations and actions.
        buffer: a full buffer, which must not change meanwhile.
        device: the device that signals compute on.
    """

    def __init__(self, spec: BehaviorSpec, buffer: RolloutBuffer, device: str) -> None:
        rows, trajectories = buffer.rows, buffer.trajectories
        self._device = device
        self._observations, self._finals = buffer.observations(), buffer.final_observations()
        lengths = trajectories["lengths"]
        self._trajectory = np.full(len(rows), -1, np.int64)  # the trajectory that ends with the row
        self._trajectory[np.cumsum(lengths) - 1] = np.arange(len(lengths))
        drawn, choices = buffer.actions()
        self._continuous = environment_actions(spec.actions, drawn, buffer.squashed)
        self._choices = choices.astype(np.int64)
        self._rewards = rows["rewards"]
        self._ended = trajectories["terminated"]

    def __len__(self) -> int:
        return len(self._rewards)

    def take(self, rows: NDArray[np.int64]) -> Transitions:
        """The transitions of the selected rows."""
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


# Generalised advantage estimation over packed trajectories.


def advantages(
    rewards: Floats,
    values_t: Floats,
    final_values: Floats,
    lengths: NDArray[np.integer],
    valueless: NDArray[np.bool_],
    gammas: Floats,
    lambd: float,
) -> Floats:
    """GAE(γ, λ) of Schulman et al. (2015), "High-Dimensional Continuous Control Using GAE", eq. 16.

    δ_t = r_t + γ V_{t+1} - V_t and A_t = Σ_k (γλ)^k δ_{t+k} within a trajectory. V after the last row is 0 if
    the episode terminated there; it is the value of the final next observation if the trajectory was truncated or
    cut, or if the signal continues beyond termination.

    Args:
        rewards: [N, S] received after the action of the row, scaled by the signal's strength.
        values_t: [N, S] critic's value of the row's observation.
        final_values: [K, S] critic's value of the observation after the last row; ignored if it is valueless.
        lengths: [K] rows of each trajectory, at least 1.
        valueless: [K, S] true if no reward can follow the last step: the episode terminated, and the signal ends
            with it.
        gammas: [S] discount of each signal.
        lambd: λ.

    Returns:
        [N, S] advantages; the returns (value targets) are advantages + values_t.
    """
    values_tp1 = next_values(values_t, final_values, lengths, valueless)
    return accumulated(rewards + gammas * values_tp1 - values_t, gammas * lambd, lengths)


def next_values(
    values_t: Floats, final_values: Floats, lengths: NDArray[np.integer], valueless: NDArray[np.bool_]
) -> Floats:
    """The value [N, S] after each row: the next row's, or the final one; 0 if that is valueless."""
    values_tp1 = np.empty_like(values_t)
    values_tp1[:-1] = values_t[1:]
    values_tp1[np.cumsum(lengths) - 1] = np.where(valueless, 0.0, final_values)
    return values_tp1


def accumulated(terms: Floats, decay: Floats, lengths: NDArray[np.integer]) -> Floats:
    """Sums x_t = term_t + decay_t x_{t+1} [N, S] within each trajectory, of terms [N, S] and decays [N, S] or [S]."""
    if compiled.kernels is not None and terms.dtype == np.float64:
        sums = np.empty(terms.shape)
        decays = np.ascontiguousarray(np.broadcast_to(decay, terms.shape))
        compiled.kernels.accumulate(np.ascontiguousarray(terms), decays, lengths.astype(np.int64), sums)
        return sums
    order, active = _backward_order(lengths, np.cumsum(lengths) - 1)
    # Rows sorted by distance from the end: all last rows, all rows before them, …; longest trajectories first. The rows
    # at one distance are then one slice, and the rows of longer trajectories at the next distance match a prefix of it.
    sums = terms[order]
    decays = np.broadcast_to(decay, terms.shape) if decay.ndim == 1 else decay[order]
    start = 0
    for distance in range(1, len(active)):
        here = start + active[distance - 1]
        n = active[distance]
        sums[here : here + n] += decays[here : here + n] * sums[start : start + n]
        start = here
    result = np.empty_like(sums)
    result[order] = sums
    return result


def normalized(values: Floats) -> Floats:
    """Values [N] minus their mean, divided by their standard deviation (over a whole buffer, as in ML-Agents)."""
    centred: Floats = values - values.mean()
    deviation = float(values.std())
    return centred / (deviation + 1e-10)


def explained_variances(values: Floats, targets: Floats) -> Floats:
    """1 - Var(target - value) / Var(target) [S], from values and targets [N, S]; NaN if targets do not vary.

    A perfect critic has 1; a critic that predicts the mean has 0; a worse one is negative.
    """
    spread = targets.var(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, 1.0 - (targets - values).var(axis=0) / spread, np.nan)


def _backward_order(lengths: NDArray[np.integer], last: NDArray[np.integer]) -> tuple[NDArray[np.intp], list[int]]:
    """Row indices by distance from their trajectory's end, and the number of trajectories that reach each distance."""
    ranks = np.argsort(-lengths, kind="stable")
    counts = np.bincount(lengths)[::-1].cumsum()[::-1][1:]  # [longest] trajectories with at least 1, 2, … rows
    distances = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(distances)) - np.repeat(np.cumsum(counts) - counts, counts)
    return last[ranks][within] - distances, counts.tolist()
