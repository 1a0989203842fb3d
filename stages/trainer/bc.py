"""Behavioural cloning as a `Trainer`, `trainer_type: bc`: imitation without rewards or a critic.

Trajectories may come from an expert's demonstrations, which are used repeatedly, or from another behaviour in the run,
the teacher. A fraction of the episodes is held out. How well the policy predicts the actions in these episodes measures
what it has learned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import BCHyperparameters
from headrace.queues.columns import Column
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.observations import EncodedObservations, Normalizer, ObservationLayout
from headrace.stages.policy.sampling import ACTION_LIMIT, action_features, environment_actions, policy_actions
from headrace.stages.trainer.adam import flushed_denormals
from headrace.stages.trainer.imitation.cloning import (
    ClonedActor,
    Examples,
    ImitationBatch,
    ImitationUpdate,
    log_likelihood,
    split_logits,
)
from headrace.stages.trainer.intake import BuiltInTrainer, ObservationPreprocessor, drawn_actions
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)


class BCTrainer(BuiltInTrainer[BCHyperparameters]):
    """Learns one behaviour by maximising the likelihood of an expert's actions.

    Continuous actions have the expert's form: plain Gaussian, or SAC's form if `context.teacher_squashed`. With memory,
    the trainer learns from sequences, each of which starts with an empty memory.

    Raises:
        StageError: if there are no actions to learn, or the network does not fit the observations.
    """

    hyperparameters = BCHyperparameters
    imitates = True

    policy_updates = 0
    """Number of calls to `learn` so far that had steps to learn from: sometimes, all waiting steps are held out."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        spec, design = context.spec, self._design
        self._intake = ObservationPreprocessor(spec, context.settings.network_settings.normalize)
        self._held_out_intake = ObservationPreprocessor(spec, normalize=False)
        """Encodes the held-out episodes, which must not affect the normaliser."""
        actor = FlatParameters(seeded(self._random, lambda: ActorNetwork(design)), context.device)
        self._network, self._acting_views = actor, actor.module.acting_views(actor.parameters)
        self._likelihood = MaximumLikelihood(design, actor)
        self._examples = ExampleBuffer(design, context.teacher_squashed)
        self._held_out = ExampleBuffer(design, context.teacher_squashed)
        self._parts = {"optimizer": self._likelihood, "gathered": self._examples, "held_out": self._held_out}
        self._waiting = 0
        """Number of rows added since the last update, including held-out rows."""
        self._warned = False
        """Whether the log already says that no episode, or every episode, is held out."""

    @property
    def rows_per_update(self) -> int:
        """`buffer_size` from the hyperparameters."""
        return self._hyperparameters.buffer_size

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories to the training buffer or the held-out buffer."""
        if not batch.num_rows:
            return
        h, trajectories = self._hyperparameters, batch.trajectories
        chosen = held_out(trajectories["agent_ids"], trajectories["episode_ids"], self.context.seed, h.held_out)
        to_evaluate, to_learn = batch.select(chosen), batch.select(~chosen)
        # Check both parts before storing anything.
        evaluated = self._held_out_intake.encode(to_evaluate, self.step)[0]
        learned = self._intake.encode(to_learn, self.step)[0]
        self._held_out.add(to_evaluate, evaluated)
        self._examples.add(to_learn, learned)
        self.step += batch.num_rows
        self._waiting += batch.num_rows

    def ready(self) -> bool:
        """Return True once `buffer_size` rows are waiting. Held-out rows count, as they do in flow control."""
        return self._waiting >= self._hyperparameters.buffer_size

    @flushed_denormals()
    def learn(self) -> int:
        """Learn from the waiting examples, evaluate on held-out examples, and return the number of rows consumed.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; everything is then restored.
        """
        h, normalizer, learned = self._hyperparameters, self._intake.normalizer, len(self._examples)
        learning_rate = self._learning_rate()
        report = {"Policy/Learning Rate": learning_rate}
        if learned:
            examples = self._examples.examples()
            report["Losses/Cloning Loss"] = self._likelihood.learn(
                examples, normalizer, h.num_epoch, h.batch_size, learning_rate, self._random
            )
            report["Policy/Gradient Norm"] = float(torch.linalg.vector_norm(self._network.gradients))
            trained = self._likelihood.evaluate(examples, normalizer)
            report["Policy/Training Log Likelihood"] = trained["Log Likelihood"]
            self.policy_updates += 1
        self._held_out.forget(keep=h.buffer_size)
        if held := len(self._held_out):
            evaluated = self._likelihood.evaluate(self._held_out.examples(), normalizer)
            report |= {f"Policy/Held-out {name}": value for name, value in evaluated.items()}
        if h.held_out and not self._warned and not (held and learned):
            self._warned = True
            log.warning(
                "%s: hyperparameters.held_out: %d steps are held out, and %d are left to learn from; change held_out, "
                "which is %g, or raise buffer_size or the number of demonstrations",
                *(self.context.behavior, held, learned, h.held_out),
            )
        rows, self._waiting = self._waiting, 0
        self._examples.clear()
        self.version += 1
        self._report(report)
        add = self.context.statistics.add
        add(self.context.behavior, "Policy/Gradient Steps", float(self._likelihood.steps), "last")
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, normaliser, counters, random state, and the waiting and held-out rows."""
        counts = {"waiting": self._waiting, "policy_updates": self.policy_updates}
        return {**super().state_dict(), **self.warm_state(), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.warm_start(state)
        super().load_state_dict(state)
        self.policy_updates = int(state["policy_updates"])
        self._waiting = int(state["waiting"])

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the number of the actor's parameters."""
        return {"actor": self._network.values.numel()}


# The expert's steps, for training or evaluation: encoded, and with actions in the learner's form.


class ExampleBuffer:
    """Stores complete trajectories in order of arrival, oldest first.

    Args:
        design: the learning policy's design.
        teacher_squashed: whether the continuous actions added have SAC's form.
    """

    def __init__(self, design: PolicyDesign, teacher_squashed: bool) -> None:
        self._design, self._actions = design, design.spec.actions
        self._teacher_squashed = teacher_squashed
        self._layout = ObservationLayout(design.spec)
        columns = [
            *self._layout.columns(),
            Column("continuous", "float32", (self._actions.continuous_size,)),
            Column("choices", "int64", (len(self._actions.discrete_branches),)),
        ]
        if self._actions.masked:
            columns.append(Column("masks", "bool", (self._actions.mask_size,)))
        if design.memory_size:
            columns.append(Column("previous", "float32", (design.previous_action_size,)))
        self._empty = {column.name: np.empty((0, *column.shape), column.dtype) for column in columns}
        self._parts = [self._empty]
        """The columns of each batch."""
        self._lengths = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return the number of steps in the buffer."""
        return int(self._lengths.sum())

    def add(self, batch: TrajectoryBatch, observations: EncodedObservations) -> None:
        """Add copies of a batch and its encoded observations."""
        continuous, choices = self._received(batch.rows, batch.num_rows)
        rows = {
            **self._layout.as_columns(observations),
            "continuous": policy_actions(self._actions, continuous, squashed=False),
            "choices": choices,
        }
        if self._actions.masked:
            rows["masks"] = batch.rows["action_masks"]
        if self._design.memory_size:
            features = action_features(self._actions, continuous, choices)
            rows["previous"] = np.roll(features, 1, axis=0)
            before = self._received(batch.trajectories, batch.num_trajectories, "previous_")
            rows["previous"][np.cumsum(batch.lengths) - batch.lengths] = action_features(self._actions, *before)
        self._append(rows, batch.lengths)

    def forget(self, keep: int) -> None:
        """Drop the oldest trajectories, as long as at least `keep` steps remain."""
        ends = np.cumsum(self._lengths)
        dropped = int((self._lengths.sum() - ends >= keep).sum())
        if dropped:
            columns, lengths = self._joined(), self._lengths[dropped:]
            self.clear()
            self._append({name: column[ends[dropped - 1] :] for name, column in columns.items()}, lengths)

    def clear(self) -> None:
        """Remove all trajectories."""
        self._parts, self._lengths = [self._empty], np.empty(0, np.int64)

    def examples(self) -> Examples:
        """Return all trajectories as examples."""
        columns = self._joined()
        return Examples(
            self._design,
            self._layout.from_columns(columns),
            columns["continuous"],
            columns["choices"],
            columns.get("masks"),
            columns.get("previous"),
            self._lengths,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the columns, and the trajectories' lengths."""
        return {"columns": self._joined(), "lengths": self._lengths}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a column is missing or has the wrong shape; the message names it.
        """
        columns = state["columns"]
        for name, empty in self._empty.items():
            got = np.shape(columns[name])[1:] if name in columns else None
            if got != empty.shape[1:]:
                raise StageError(
                    f"gathered steps: column {name!r}: expected rows of shape {empty.shape[1:]}, got {got}"
                )
        self.clear()
        self._append(columns, np.asarray(state["lengths"]))

    def _append(self, rows: Mapping[str, Array], lengths: Array) -> None:
        self._parts.append({name: np.array(rows[name], empty.dtype) for name, empty in self._empty.items()})
        self._lengths = np.append(self._lengths, lengths.astype(np.int64))

    def _joined(self) -> dict[str, Array]:
        return {name: np.concatenate([part[name] for part in self._parts]) for name in self._empty}

    def _received(self, columns: Mapping[str, Array], n: int, prefix: str = "") -> tuple[Array, Array]:
        """Return continuous actions [n, C] as the environment received them, and int64 choices [n, branches]."""
        drawn, choices = drawn_actions(self._actions, columns, n, prefix)
        return environment_actions(self._actions, drawn, self._teacher_squashed), choices.astype(np.int64)


# The choice of held-out episodes, on which the trainer evaluates but does not learn.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ / φ, a step of one golden ratio around a circle of 2⁶⁴ positions."""


def held_out(
    agent_ids: NDArray[np.int64], episode_ids: NDArray[np.int64], seed: int, share: float
) -> NDArray[np.bool_]:
    """Return flags [K], true for trajectories of held-out episodes; the result is the same for a repeated episode.

    An agent's successive episodes advance around a circle in steps of the golden ratio (Knuth, TAOCP 3, §6.4,
    "Fibonacci hashing"), starting at a point that depends on the agent and the seed. Episodes within a fraction `share`
    of the circle are held out. Steps of this size spread evenly: a fraction of 0.1 holds out 1 to 3 of any 20
    consecutive episodes, whereas independent draws would hold out none of them in one case in eight.

    Args:
        agent_ids: [K] the agent of each trajectory.
        episode_ids: [K] the episode of each trajectory; ids increase by about 1 from one of an agent's episodes to the
            next.
        seed: determines, with `share`, which episodes are held out.
        share: the fraction of episodes to hold out, in [0, 1).
    """
    start = _mixed(agent_ids.astype(np.uint64) ^ _mixed(np.array(seed % 2**64, np.uint64)))
    place = start + episode_ids.astype(np.uint64) * _GOLDEN  # modulo 2⁶⁴
    chosen: NDArray[np.bool_] = place < np.uint64(share * 2.0**64)
    return chosen


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix bits with SplitMix64's finaliser (Steele, Lea & Flood, 2014): each input bit affects each output bit."""
    mixed: NDArray[np.uint64] = np.atleast_1d(number) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


# Maximum likelihood: gradient steps on an expert's data, and measures of how well a policy predicts the data.

LOG_SIGMA_FLOOR = -5.0
"""Lower bound on log σ, so σ is at least e⁻⁵ (0.2 % of an action's range). With a noiseless expert, σ would otherwise
keep falling, and likelihoods rising, until one unexpected action made the loss infinite."""

_ROWS = 4096
"""Number of rows per forward pass of an evaluation. It limits memory use, and the rows fit the processor's cache."""


class MaximumLikelihood(ImitationUpdate):
    """Trains an actor by maximum likelihood; the loss is in nats per step.

    Args:
        design: the actor's design; its actions must not be squashed.
        actor: the network to train.
    """

    def __init__(self, design: PolicyDesign, actor: FlatParameters[ActorNetwork]) -> None:
        super().__init__(ClonedActor.from_actor(design, actor))
        self._design = design
        self._log_sigma = actor.module.log_sigma
        limits = torch.full((design.spec.actions.continuous_size,), ACTION_LIMIT)
        limits[list(design.spec.actions.unbounded)] = torch.inf
        self._limits = limits.to(actor.values.device)
        self._scale = torch.where(torch.isinf(self._limits), 1.0, self._limits)

    def loss(self, heads: Tensor, batch: ImitationBatch) -> Tensor:
        """Return the mean negative log-likelihood of the expert's actions."""
        return -batch.mean(log_likelihood(heads, self._log_sigma, batch, self._design))

    def step(self, learning_rate: float) -> None:
        """Change the parameters by their gradients, and keep log σ above its floor."""
        super().step(learning_rate)
        if self._log_sigma is not None:
            self._log_sigma.detach().clamp_(min=LOG_SIGMA_FLOOR)

    @torch.no_grad()
    def evaluate(self, examples: Examples, normalizer: Normalizer | None) -> dict[str, float]:
        """Return measures of how well the policy predicts at least one example, averaged over steps.

        `Log Likelihood`, in nats, is that of a step's joint action; for continuous actions, it is a log density. With
        discrete branches, `Accuracy` is the fraction of branches in which the most likely choice matches the expert's.
        With continuous actions, `Error` is the squared error of the mean action, in the environment's form.
        """
        at_a_time = max(1, _ROWS // examples.rows.shape[1])
        sums, steps = dict[str, float](), 0
        for start in range(0, len(examples), at_a_time):
            which = slice(start, start + at_a_time)
            batch = examples.batch(which, normalizer, self._limits.device)
            heads = self._actor.forward(batch.inputs)
            measures = {"Log Likelihood": log_likelihood(heads, self._log_sigma, batch, self._design)}
            if branches := split_logits(heads, batch, self._design):
                best = torch.stack([logits.argmax(dim=1) for logits in branches], dim=1)
                measures["Accuracy"] = (best == batch.choices).float().mean(dim=1)
            if len(self._limits):
                errors = self._received(heads[:, : len(self._limits)]) - self._received(batch.continuous)
                measures["Error"] = errors.square().mean(dim=1)
            count = int(examples.real[which].sum())
            steps += count
            for name, measure in measures.items():
                sums[name] = sums.get(name, 0.0) + float(batch.mean(measure)) * count
        return {name: total / steps for name, total in sums.items()}

    def _received(self, actions: Tensor) -> Tensor:
        """Return drawn actions [B, C] in the form that the environment receives."""
        return torch.clamp(actions, -self._limits, self._limits) / self._scale
