"""What all built-in trainers share: a base class, and the first and the last processing step.

The first step encodes a batch's observations, rejects bad numbers, and normalises. The last step makes a policy from
the actor's weights and the normaliser's state. Reward signals and imitation take rows as `Transitions`, regardless of
which buffer the rows come from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.config.hyperparameters import Hyperparameters
from headrace.queues.messages import Array, PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import (
    NORMALIZER_INVERSE_STD,
    NORMALIZER_MEAN,
    NORMALIZER_REST,
    Layout,
    PolicyDesign,
    design_of,
    policy_layout,
)
from headrace.stages.policy.network.body import without_normalizer
from headrace.stages.policy.network.flat_parameters import FlatVectors, write_named
from headrace.stages.policy.network.layers import Inputs, host_copies
from headrace.stages.policy.observations import EncodedObservations, Normalizer, ObservationLayout
from headrace.stages.trainer.protocol import (
    LEARNING_RATE_FLOOR,
    Schedule,
    Trainer,
    TrainerContext,
    new_random,
    random_state,
    restore_random,
)

log = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=Hyperparameters)

EXPORTED_STEPS = 100_000
"""Number of observations that an exported policy's normaliser is assumed to have seen, because the export does not
state it. The number is large enough that the mean drifts only slowly, and small enough to adapt to a different
environment in time."""


def with_group_rewards(batch: TrajectoryBatch) -> TrajectoryBatch:
    """Add each group's reward to its members' own rewards, for a trainer that ignores groups; return the batch."""
    of_groups = batch.rows.get("group_rewards")
    return batch if of_groups is None else batch.replace(rewards=batch.rewards + of_groups)


def policy_design(context: TrainerContext) -> PolicyDesign:
    """Return the design of the policy that a built-in trainer will learn.

    Raises:
        StageError: if the behaviour has no actions to learn, or settings for noise that does not apply to its actions.
    """
    gsde, actions = context.settings.network_settings.gsde, context.spec.actions
    if not actions.log_prob_size:
        raise StageError(f"{context.behavior}: the behaviour has neither continuous nor discrete actions to learn")
    if gsde is not None and not actions.continuous_size:
        raise StageError(
            f"{context.behavior}: network_settings.gsde adds noise to continuous actions, but all actions are "
            "discrete; remove gsde ('gsde: null' if default_settings has it)"
        )
    if gsde is not None and gsde.squash_output and actions.unbounded:
        raise StageError(
            f"{context.behavior}: network_settings.gsde.squash_output squashes actions to their bounds, but actions "
            f"{', '.join(map(str, actions.unbounded))}, counted from 0, have no bounds; remove squash_output, or "
            "remove environment.action_bounds"
        )
    return replace(design_of(context.spec, context.settings, context.folder), products=context.products)


class BuiltInTrainer(Trainer, Generic[Settings]):
    """The base class of all built-in trainers: settings, random draws, state, statistics, and the policy.

    A subclass's constructor sets the attributes that are only declared here.

    Raises:
        StageError: if the behaviour's actions or settings do not suit a built-in trainer; see `policy_design`.
    """

    hyperparameters: ClassVar[type[Any]]
    """Pydantic model that validates this trainer's hyperparameters."""

    step = 0
    """Number of agent steps added so far."""
    version = 0
    """Number of calls to `learn` so far."""

    _intake: ObservationPreprocessor
    _network: FlatVectors
    """All weights that a new run can start from."""
    _acting_views: Mapping[str, Tensor]
    """Views of the actor's parameters, keyed by their names in `PolicyUpdate.layout`."""
    _parts: dict[str, Any]
    """The objects whose states a checkpoint holds, keyed by their names in it; None for a part that is switched off."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._design = policy_design(context)
        self._layout = policy_layout(self._design)
        self._random = new_random(context.seed)
        # A subclass named as `module:Class` gets its hyperparameters unchanged from the YAML.
        self._hyperparameters: Settings = self.hyperparameters.model_validate(context.settings.hyperparameters)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set the value, with effect from the next update."""
        self._hyperparameters = self._hyperparameters.with_value(name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return counters, random state, and the states of all parts."""
        parts = {name: None if part is None else part.state_dict() for name, part in self._parts.items()}
        return {"step": self.step, "version": self.version, "random": random_state(self._random), **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        if "cloning" in self._parts:
            now, then = self._parts["cloning"] is not None, state["cloning"] is not None
            self._warn_of_switch("behavioral_cloning", now=now, then=then)
        with self.context.naming_behavior():
            for name, part in self._parts.items():
                if part is not None and state[name] is not None:
                    part.load_state_dict(state[name])
        restore_random(self._random, state["random"])
        self.step, self.version = int(state["step"]), int(state["version"])

    def warm_state(self) -> dict[str, Any]:
        """Return all weights and the normaliser's state."""
        return {"weights": self._network.state_dict(), "normalizer": self._intake.normalizer_state()}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`."""
        with self.context.naming_behavior():
            self._intake.load_normalizer(state.get("normalizer"))
            self._network.load(state["weights"])

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy's actor and normaliser. A critic does not change."""
        with self.context.naming_behavior():
            write_named(self._acting_views, without_normalizer(tensors), "policy")
            self._intake.load_exported_normalizer(tensors)

    def policy(self) -> PolicyUpdate:
        """Return a policy with the actor's weights and the normaliser's state."""
        return self._intake.policy(self, self._acting_views, self._layout)

    def _learning_rate(self) -> float:
        """Return the scheduled learning rate at the current step."""
        h: Any = self._hyperparameters
        steps = self.context.settings.max_steps
        return Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps).at(self.step)

    def _report(self, statistics: Mapping[str, float]) -> None:
        for name, value in statistics.items():
            self.context.statistics.add(self.context.behavior, name, value)

    def _warn_of_switch(self, setting: str, *, now: bool, then: bool) -> None:
        if now != then:
            words = ("off", "on")[now], ("off", "on")[then]
            log.warning("%s: %s is now %s; it was %s until this checkpoint", self.context.behavior, setting, *words)


class ObservationPreprocessor:
    """Encodes the batches of one behaviour.

    Trainers that learn only from the task's rewards ignore the observation after a terminated episode. Its vectors are
    set to zero, because diverged simulators may return NaN for it. With `beyond_termination`, that observation is kept,
    for values that continue past the end of episodes (`RewardSignal.ignores_termination`). If it is not finite, the
    previous observation is used instead, as if nothing had changed.

    Args:
        spec: observations and actions.
        normalize: whether to normalise vectors by their running mean and variance.
        beyond_termination: whether to keep observations after terminated episodes.
    """

    def __init__(self, spec: BehaviorSpec, normalize: bool, beyond_termination: bool = False) -> None:
        self.layout = ObservationLayout(spec)
        self.normalizer = Normalizer(self.layout.vector_size) if normalize and self.layout.vector_size else None
        """The running normaliser of vectors; None if vectors are not normalised."""
        self._spec = spec
        self._beyond_termination = beyond_termination

    def encode(self, batch: TrajectoryBatch, step: int) -> tuple[EncodedObservations, EncodedObservations]:
        """Encode a batch, and update the normaliser with its vectors.

        Args:
            batch: K trajectories with N rows in total.
            step: agent steps so far, for messages.

        Returns:
            The rows' observations [N, …] and the trajectories' final observations [K, …], not normalised. Vectors are
            new arrays; images and sets are views into the batch.

        Raises:
            NotFiniteError: if a number to learn from is NaN or infinite; the message gives agent, column and step.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # detected and reported below
            rows = self.layout.encode_columns(batch.rows)
            finals = self.layout.encode_columns(batch.trajectories, "next_obs_")
            finals = self._checked(batch, rows, finals, step)
        if self.normalizer is not None:
            self.normalizer.update(rows.vectors)
        return rows, finals

    def normalized(self, vectors: Array) -> NDArray[np.float32]:
        """Return vectors [n, V] as network input; without a normaliser, float32 vectors are returned unchanged."""
        if self.normalizer is not None:
            return self.normalizer.apply(vectors)
        return vectors.astype(np.float32, copy=False)

    def inputs(self, encoded: EncodedObservations, device: str = "cpu") -> Inputs:
        """Return encoded observations as a network's inputs, normalised, on a device."""
        if self.normalizer is not None:
            encoded = EncodedObservations(self.normalized(encoded.vectors), encoded.others)
        return Inputs.from_encoded(encoded, device)

    def policy(self, trainer: Trainer, acting: Mapping[str, Tensor], layout: Layout) -> PolicyUpdate:
        """Make a trainer's policy: the network's and the normaliser's tensors, concatenated in the layout's order."""
        tensors = host_copies(acting)
        if self.normalizer is not None:
            tensors[NORMALIZER_MEAN], tensors[NORMALIZER_INVERSE_STD] = self.normalizer.tensors()
            if self.layout.exact:
                tensors[NORMALIZER_REST] = rest = self.normalizer.mean_rest
                layout = (*layout, (NORMALIZER_REST, rest.shape))
        weights = np.concatenate([tensors[name].reshape(-1) for name, _ in layout])
        return PolicyUpdate(trainer.context.behavior, trainer.version, weights, layout, trainer.step)

    def normalizer_state(self) -> dict[str, Any] | None:
        """Return the normaliser's `state_dict()`; None without normalisation."""
        return None if self.normalizer is None else self.normalizer.state_dict()

    def load_normalizer(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state returned by `normalizer_state()`.

        Raises:
            StageError: if only one of state and trainer normalises, or the state belongs to different observations.
        """
        self._require_same("the saved state", state is not None)
        if self.normalizer is not None and state is not None:
            self.normalizer.load_state_dict(state)

    def load_exported_normalizer(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy's normaliser, whose tensors are named as in `PolicyUpdate.layout`.

        Raises:
            StageError: if only one of policy and trainer normalises, or the policy belongs to different observations.
        """
        self._require_same("the policy", NORMALIZER_MEAN in tensors)
        if self.normalizer is None:
            return
        mean, inverse_std = (
            np.asarray(tensors[name], np.float64) for name in (NORMALIZER_MEAN, NORMALIZER_INVERSE_STD)
        )
        mean = mean + np.asarray(tensors.get(NORMALIZER_REST, 0.0), np.float64)
        squares = EXPORTED_STEPS / np.square(inverse_std)
        self.normalizer.load_state_dict({"steps": EXPORTED_STEPS, "mean": mean, "squares": squares})

    def _require_same(self, other: str, normalized: bool) -> None:
        if normalized != (self.normalizer is not None):
            now, then = ("false", "true") if normalized else ("true", "false")
            raise StageError(f"network_settings.normalize is {now}, but {other} was made with {then}; set it to {then}")

    def _checked(
        self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations, step: int
    ) -> EncodedObservations:
        """Return `finals`, safe to compute with after terminated episodes; see the class. Refuse other bad numbers."""
        # Networks take float32, in which large numbers would become infinite.
        columns: dict[str, Array] = {"obs": rows.vectors.astype(np.float32, copy=False), "rewards": batch.rewards}
        columns["log_probs"] = batch.rows["log_probs"]
        for name in ("group_rewards", "continuous_actions", "memories", "action_heads"):
            if name in batch.rows:
                columns[name] = batch.rows[name]
        for index, other in zip(self.layout.others, rows.others, strict=True):
            if other.dtype.kind == "f":
                columns[f"obs_{index}"] = other
        ends, ended = np.cumsum(batch.lengths), batch.terminated
        for name, column in columns.items():
            if not np.isfinite(column).all():
                row = int(np.flatnonzero(_bad_rows(column))[0])
                k = int(np.searchsorted(ends, row, side="right"))
                at = f"step {row - int(ends[k] - batch.lengths[k])} of its trajectory of {batch.lengths[k]} steps"
                self._refuse(batch, k, name, column[row], at, step)
        if not self._beyond_termination:
            finals.vectors[ended] = 0.0
        unsound = np.zeros(len(ended), np.bool_)
        floats = [other for other in finals.others if other.dtype.kind == "f"]
        for column in (finals.vectors.astype(np.float32, copy=False), *floats):
            if not np.isfinite(column).all():
                bad = _bad_rows(column)
                for k in np.flatnonzero(bad & ~ended)[:1].tolist():
                    at = f"the end of its trajectory of {batch.lengths[k]} steps"
                    self._refuse(batch, k, "next_obs", column[k], at, step)
                unsound |= bad
        if not unsound.any():
            return finals
        last = ends[unsound] - 1
        if self._beyond_termination:
            finals.vectors[unsound] = rows.vectors[last]
        others = []
        for final, row_of in zip(finals.others, rows.others, strict=True):
            sound = final.copy()  # `final` belongs to the batch
            sound[unsound] = row_of[last]
            others.append(sound)
        return EncodedObservations(finals.vectors, tuple(others))

    def _refuse(self, batch: TrajectoryBatch, k: int, name: str, value: Array, at: str, step: int) -> NoReturn:
        agent, episode = (int(batch.trajectories[column][k]) for column in ("agent_ids", "episode_ids"))
        shown = value.tolist() if value.size <= 64 else f"{int((~np.isfinite(value)).sum())} of {value.size} numbers"
        raise NotFiniteError(
            f"{batch.behavior_id}: agent {agent}, episode {episode}: {name} is not finite at {at}: {shown} (after "
            f"{step} steps of training); the trainer did not learn from this batch"
        )


def _bad_rows(column: Array) -> NDArray[np.bool_]:
    """Return a mask [n], true where a row of numbers [n, …] is not finite."""
    return ~np.asarray(np.isfinite(column).reshape(len(column), -1).all(axis=1))


@dataclass(frozen=True, slots=True)
class Transitions:
    """B steps for reward signals, in no particular order.

    Observations are not normalised; a signal that needs normalised observations has its own normaliser.
    """

    inputs: Inputs
    """Observations that the agents acted on, without memories."""
    next_inputs: Inputs
    """Next observations. After a terminated episode, they are as `ObservationPreprocessor` returns them: the
    observation itself or, if it was not finite, the previous one; the vectors are zero if none of the trainer's signals
    continues there."""
    continuous: Tensor
    """[B, C] continuous actions in the environment's form: in [-1, 1] where bounded."""
    choices: Tensor
    """[B, branches] int64 choices in the discrete branches."""
    rewards: Tensor
    """[B] rewards from the environment."""
    terminated: Tensor
    """[B] 1 if the step ended the episode by the task's own rules, else 0."""

    def rows(self, which: Tensor | slice) -> Transitions:
        """Return the transitions that `which` selects."""
        tensors = (self.continuous, self.choices, self.rewards, self.terminated)
        return Transitions(
            self.inputs.rows(which), self.next_inputs.rows(which), *(tensor[which] for tensor in tensors)
        )


def drawn_actions(
    actions: ActionSpec, columns: Mapping[str, Array], n: int, prefix: str = ""
) -> tuple[NDArray[np.float32], Array]:
    """Return continuous actions [n, C] as the policy drew them, and choices [n, branches]; width 0 if there are none.

    Args:
        actions: the behaviour's actions.
        columns: `continuous_actions` and `discrete_actions`, if the spec has actions of these kinds.
        n: the number of rows.
        prefix: the prefix of the columns' names, such as `previous_`.
    """
    return (
        columns[f"{prefix}continuous_actions"] if actions.continuous_size else np.empty((n, 0), np.float32),
        columns[f"{prefix}discrete_actions"] if actions.discrete_branches else np.empty((n, 0), np.int32),
    )
