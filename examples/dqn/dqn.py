"""A custom trainer, used by train.yaml in this folder: Double DQN with a target network and a replay memory.

Mnih et al. (2015), "Human-level control through deep reinforcement learning"; van Hasselt, Guez and Silver (2016),
"Deep Reinforcement Learning with Double Q-learning". The network's head outputs are the Q values of the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace.training as parts
from headrace import NotFiniteError, PolicyUpdate, StageError, Trainer, TrainerContext, TrajectoryBatch


class DQN(Trainer):
    """Learns a behaviour with one discrete branch without masks.

    Raises:
        StageError: if the behaviour has other actions.
    """

    off_policy = True
    step = version = 0

    @classmethod
    def exploration(cls, settings: Any) -> parts.EpsilonGreedy:
        """Return how actors explore; their clock is the step of the policies that they receive."""
        h = settings.hyperparameters
        return parts.EpsilonGreedy(parts.Schedule("linear", 1.0, h["final_epsilon"], h["exploration_steps"]))

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        spec, settings = context.spec, context.settings
        if len(spec.actions.discrete_branches) != 1 or spec.actions.continuous_size or spec.actions.masked:
            raise StageError(f"{context.behavior}: DQN needs one discrete branch without masks, got {spec.actions}")
        self._h = h = dict(settings.hyperparameters)  # as in the YAML
        self._gamma = settings.signals["extrinsic"].gamma
        self._random = parts.new_random(context.seed)
        design = parts.design_of(spec, settings, context.folder)
        self._layout = parts.policy_layout(design)
        self._q, self._target = (
            parts.FlatParameters(parts.seeded(self._random, lambda: parts.ActorNetwork(design)), context.device)
            for _ in range(2)
        )
        self._target.values.copy_(self._q.values)
        self._adam = parts.Adam(self._q.values, self._q.gradients)
        self._preprocessor = parts.ObservationPreprocessor(spec, settings.network_settings.normalize)
        self._memory = parts.ReplayMemory(spec, self._preprocessor.layout, h["buffer_size"])
        pace = {name: h[name] for name in ("buffer_init_steps", "train_freq", "gradient_steps")}
        self._pace = parts.UpdatePace(context, parts.PaceSettings(**pace))
        self._rate = parts.Schedule("linear", h["learning_rate"], 0.0, settings.max_steps)
        self._waiting = 0

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories to the replay memory; numbers that are not finite are refused."""
        rows, finals = self._preprocessor.encode(batch, self.step)
        self._memory.add(batch, rows, finals)
        self.step += batch.num_rows
        self._waiting += batch.num_rows
        self._pace.add(batch, self.step)

    def ready(self) -> bool:
        """Return True if as many steps wait as actors send at a time."""
        return self._waiting >= self.rows_per_update

    def learn(self) -> int:
        """Make all updates that are due; return the number of steps since the last call."""
        losses = []
        with self._adam.undone_on_failure():
            while self._pace.is_due(self._pace.of_policy):
                losses.append(self._update())
                self._pace.of_policy.count()
            if losses and not np.isfinite(loss := float(torch.stack(losses).mean())):
                raise NotFiniteError(f"{self.context.behavior}: the loss at step {self.step} is {loss}")
        if losses:
            self.context.statistics.add(self.context.behavior, "Losses/Q Loss", loss)
        self.version += 1
        used, self._waiting = self._waiting, 0
        return used

    def _update(self) -> torch.Tensor:
        """Take one gradient step on a sample of the memory; return its loss."""
        replayed, device = self._memory.sample(self._h["batch_size"], self._random), self.context.device
        seen = self._preprocessor.inputs(replayed.observations, device)
        after = self._preprocessor.inputs(replayed.next_observations, device)
        columns = {name: torch.from_numpy(column).to(device) for name, column in replayed.columns.items()}
        with torch.no_grad():
            best = self._q.module(after)[0].argmax(dim=1, keepdim=True)
            values = self._target.module(after)[0].gather(1, best)[:, 0]
            targets = columns["rewards"] + self._gamma * values * ~columns["terminated"]
        taken = self._q.module(seen)[0].gather(1, columns["discrete_actions"].long())[:, 0]
        loss = torch.nn.functional.mse_loss(taken, targets)
        self._q.gradients.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._q.parameters.values(), self._h["max_grad_norm"])
        self._adam.step(self._rate.at(self.step))
        if self._adam.steps % self._h["target_update_interval"] == 0:
            self._target.values.copy_(self._q.values)
        return loss.detach()

    def policy(self) -> PolicyUpdate:
        """Return the Q network, and the normaliser's state, as the policy to act with."""
        return self._preprocessor.policy(self, self._q.module.acting_views(self._q.parameters), self._layout)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that influences future learning, except the memory."""
        return {
            "counts": [self.step, self.version, self._waiting],
            "q": self._q.state_dict(),
            "target": self._target.state_dict(),
            "adam": self._adam.state_dict(self._q.named_views),
            "normalizer": self._preprocessor.normalizer_state(),
            "pace": self._pace.state_dict(),
            "random": parts.random_state(self._random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.step, self.version, self._waiting = state["counts"]
        self._q.load(state["q"])
        self._target.load(state["target"])
        self._adam.load_state_dict(self._q.named_views, state["adam"])
        self._preprocessor.load_normalizer(state["normalizer"])
        self._pace.load_state_dict(state["pace"], self.step)
        parts.restore_random(self._random, state["random"])

    def save_bulk(self, folder: Path) -> None:
        """Write the replay memory into a checkpoint's folder."""
        parts.write_replay(self._memory, folder / f"replay-{self.context.behavior}.bin", self.step)

    def load_bulk(self, folder: Path) -> str | None:
        """Read the replay memory; if that is not possible, start with an empty one."""
        try:
            parts.read_replay(self._memory, folder / f"replay-{self.context.behavior}.bin", self.step)
        except parts.ReplayFileError as error:
            self._pace.restart(self.step)
            return f"the replay memory starts empty: {error}"
        return None
