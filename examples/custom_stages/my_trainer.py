"""A custom trainer, used by trainer.yaml in this folder: REINFORCE with a baseline.

Williams (1992), "Simple Statistical Gradient-Following Algorithms"; the baseline is the network's value head. There is
one gradient step per buffer, and no correction for old policies, so set `pipeline.max_policy_lag: 0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import PolicyUpdate, StageError, Trainer, TrainerContext, TrajectoryBatch
from headrace.training import ActorCritic, Adam, Inputs, design_of, policy_layout

Arrays = dict[str, Any]


class Reinforce(Trainer):
    """Learns a behaviour with one vector observation and one discrete branch.

    Raises:
        StageError: if the behaviour has other observations or actions, or a hyperparameter is missing.
    """

    def __init__(self, context: TrainerContext) -> None:
        spec, settings = context.spec, context.settings
        if len(spec.observations) != 1 or len(spec.actions.discrete_branches) != 1 or spec.actions.continuous_size:
            raise StageError(f"{context.behavior}: Reinforce needs one observation and one discrete branch, got {spec}")
        # A custom trainer receives its hyperparameters as a plain dict, and must check them itself.
        given: Any = settings.hyperparameters
        try:
            self._buffer_size = int(given["buffer_size"])
            self._learning_rate = float(given["learning_rate"])
        except KeyError as error:
            where = f"behaviors.{context.behavior}.hyperparameters"
            raise StageError(f"{where}: {error} is missing, got {given}") from error
        self._context = context
        self._gamma = settings.signals["extrinsic"].gamma
        design = design_of(spec, settings, context.folder)
        self._layout = policy_layout(design)
        random = np.random.default_rng(context.seed)
        self._network = ActorCritic(design, 1, True, random, context.device)
        self._adam = Adam(self._network.values, self._network.gradients)
        self._batches: list[Arrays] = []
        self._step = self._version = 0

    @property
    def step(self) -> int:
        """Number of agent steps added so far."""
        return self._step

    @property
    def version(self) -> int:
        """Number of updates so far."""
        return self._version

    @property
    def rows_per_update(self) -> int:
        """Number of steps per update, which is `buffer_size`."""
        return self._buffer_size

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories, because the memory of the batch's arrays is reused."""
        rows = ("obs_0", "discrete_actions", "rewards")
        kept = {name: batch.rows[name].copy() for name in rows}
        kept |= {name: batch.trajectories[name].copy() for name in ("lengths", "terminated", "next_obs_0")}
        self._batches.append(kept)
        self._step += batch.num_rows

    def ready(self) -> bool:
        """Return True if the buffer is full."""
        return self._rows() >= self._buffer_size

    def learn(self) -> int:
        """Take one gradient step on all added rows; return the number of rows."""
        data = {name: np.concatenate([batch[name] for batch in self._batches]) for name in self._batches[0]}
        inputs = Inputs(torch.from_numpy(data["obs_0"].astype(np.float32)))
        actions = torch.from_numpy(data["discrete_actions"][:, 0].astype(np.int64))
        with torch.no_grad():
            _, after = self._network(Inputs(torch.from_numpy(data["next_obs_0"].astype(np.float32))))
        bootstraps = np.where(data["terminated"], 0.0, after[:, 0].numpy())
        returns = torch.from_numpy(discounted_returns(data["rewards"], data["lengths"], bootstraps, self._gamma))
        logits, values = self._network(inputs)
        advantages = returns - values[:, 0].detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        chosen = torch.log_softmax(logits, 1).gather(1, actions[:, None])[:, 0]
        # Divided by the returns' variance, the baseline's loss has the same order of magnitude as the policy's.
        baseline_loss = (returns - values[:, 0]).square().mean() / (returns.var() + 1e-8)
        loss = -(advantages * chosen).mean() + 0.5 * baseline_loss
        self._network.gradients.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step(self._learning_rate)
        self._version += 1
        self._context.statistics.add(self._context.behavior, "Losses/Policy Loss", loss.item())
        used = self._rows()
        self._batches = []
        return used

    def policy(self) -> PolicyUpdate:
        """Return the acting tensors, concatenated in the order that actors expect."""
        tensors = self._network.acting_tensors()
        weights = np.concatenate([tensors[name].ravel() for name, _ in self._layout])
        return PolicyUpdate(self._context.behavior, self._version, weights, self._layout, self._step)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that influences future learning, including the rows in the buffer."""
        return {
            "step": self._step,
            "version": self._version,
            "weights": self._network.state_dict(),
            "adam": self._adam.state_dict(self._network.named_views),
            "batches": [dict(batch) for batch in self._batches],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._network.load(state["weights"])
        self._adam.load_state_dict(self._network.named_views, state["adam"])
        self._batches = [{name: np.array(array) for name, array in batch.items()} for batch in state["batches"]]
        self._step, self._version = int(state["step"]), int(state["version"])

    def _rows(self) -> int:
        return sum(len(batch["rewards"]) for batch in self._batches)


def discounted_returns(
    rewards: NDArray[np.float32], lengths: NDArray[np.int32], bootstraps: NDArray[Any], gamma: float
) -> NDArray[np.float32]:
    """Return the discounted returns [N] for the steps of K concatenated trajectories: R_t = r_t + γ·R_{t+1}.

    Args:
        rewards: [N] reward after each step.
        lengths: [K] number of steps in each trajectory.
        bootstraps: [K] value after each trajectory's last step: 0 if the episode terminated, otherwise an estimate.
        gamma: discount per step.
    """
    returns = np.empty(len(rewards), np.float32)
    end = len(rewards)
    for length, later in zip(lengths[::-1], bootstraps[::-1], strict=True):
        for row in range(end - 1, end - length - 1, -1):
            later = returns[row] = rewards[row] + gamma * later
        end -= length
    return returns
