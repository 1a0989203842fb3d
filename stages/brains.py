"""Brains that do not learn: scripts, models and random choice. Each brain decides as a policy does (docs/brains.md).

`BrainRequest` is the request for a brain. The table in `headrace.config.brains` names the constructors of scripts and
of random choice, and a check before the run tries them. A `StandIn` lets a brain act in place of a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.brains import BRAIN_KINDS, SCRIPTED_PLAYERS, kind_of
from headrace.config.errors import KeyPath, dotted
from headrace.queues.columns import decision_columns
from headrace.queues.messages import ActionBatch, Array, PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import LoadError, StageError, blaming, describe_error
from headrace.stages.loading import check_arguments, construct, find_class, load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall
from headrace.stages.policy.sampling import policy_actions
from headrace.stages.user_calls import call_user

__all__ = ["StandIn", "check_brain", "make_brain"]


@dataclass(frozen=True)
class BrainRequest:
    """A request for a brain: which brain, for which behaviour id, and which YAML key asks for it."""

    use: str
    """The brain's name; see `headrace.config.brains.kind_of`."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The brain's keyword arguments from the YAML."""
    key: KeyPath = ()
    """Path of the `use` key, for messages."""
    given_key: KeyPath = ()
    """Path of the key that holds the keyword arguments, for messages."""
    folder: Path | None = None
    """The YAML's folder, which may contain modules and models; None if the YAML is not a file."""
    game: str | None = None
    """The built-in game in use; None for other environments."""
    seed: int = 0
    """Seed for code that draws its own random numbers."""
    spec: BehaviorSpec | None = None
    """The behaviour id's spec; None if the request is only checked, before the spec is known."""
    person: Callable[[BehaviorSpec], ActingPolicy] | None = None
    """Function that makes a brain controlled by a person's keys; None if no person can play."""

    @property
    def where(self) -> str:
        """The `use` key as shown in messages."""
        return dotted(self.key)


@dataclass(frozen=True)
class BrainShare:
    """A brain, and the fraction of games in which it decides."""

    name: str
    weight: float
    brain: ActingPolicy


class MemorylessPolicy:
    """Base class for `ActingPolicy` implementations without weights or memory; subclasses add `act`."""

    memory_size = 0
    previous_action_size = 0

    def load(self, update: PolicyUpdate) -> None:
        """Do nothing, because there are no weights."""


class PolicyWrapper:
    """Base class for `ActingPolicy` implementations that wrap another one and load no weights; subclasses add `act`.

    Args:
        policy: the wrapped policy.
    """

    def __init__(self, policy: ActingPolicy) -> None:
        self._policy = policy
        self.memory_size, self.previous_action_size = policy.memory_size, policy.previous_action_size

    def load(self, update: PolicyUpdate) -> None:
        """Do nothing, because there are no weights to load."""


def make_brain(request: BrainRequest) -> ActingPolicy:
    """Make the brain for a request's behaviour id.

    Raises:
        StageError: if the brain can't be made. The error is a LoadError if something named in the YAML does not exist.
    """
    assert request.spec is not None, "a brain is made for a behaviour"
    brain: ActingPolicy = _maker(request)(request)
    return brain


def check_brain(request: BrainRequest) -> list[LoadError]:
    """Find mistakes that would prevent the brain from being made.

    If the request has no spec, mistakes that depend on the spec are not found.
    """
    try:
        _maker(request)(request)
    except LoadError as error:
        return [error]
    return []


def _maker(request: BrainRequest) -> Callable[[BrainRequest], Any]:
    kind = BRAIN_KINDS[kind_of(request.use) or ""]
    assert kind.maker is not None, "only trainers make their policies"
    make: Callable[[BrainRequest], Any] = load_attribute(kind.maker, None, request.where)
    return make


SCRIPTED = "scripted"
"""The `use` value that selects the scripted player of the run's built-in game."""


class ScriptBrain(MemorylessPolicy):
    """A brain that calls a user's script.

    Args:
        script: called with the observations, one array [d, *shape] per observation spec, and with the action masks [d,
            sum of branches] if the behaviour has them; returns an `ActionBatch`.
        spec: the behaviour. If the behaviour learns its action repeat, the script may ignore that: it is called at each
            environment step, and its masks have no choices for the repeat.
        name: the script's name, for messages.
    """

    def __init__(self, script: Callable[..., Any], spec: BehaviorSpec, name: str) -> None:
        self._script = script
        self._spec = spec
        self._name = name

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Return the script's actions for d agents.

        Raises:
            StageError: if the script raises, or does not return actions for these agents.
        """
        count, actions = len(observations[0]), self._spec.actions
        repeats = self._spec.action_repeat == "learned"
        branches = len(actions.discrete_branches)
        if not count:
            nothing = np.zeros((0, actions.continuous_size), np.float32), np.zeros((0, branches), np.int32)
            return Decision(ActionBatch(*nothing), {})
        shapes = (count, actions.continuous_size), (count, branches - repeats)
        width = actions.mask_size - (actions.discrete_branches[-1] if repeats else 0)
        try:
            decided = call_user(self._script, observations, *(() if masks is None else (masks[:, :width],)))
        except Exception as error:
            raise StageError(f"{self._name} raised {describe_error(error)}") from error
        self._check(decided, shapes)
        if repeats:
            decided = ActionBatch(decided.continuous, np.pad(decided.discrete, ((0, 0), (0, 1))))
        return Decision(decided, {})

    def _check(self, decided: Any, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
        if isinstance(decided, ActionBatch) and (decided.continuous.shape, decided.discrete.shape) == shapes:
            return
        got = decided
        if isinstance(decided, ActionBatch):
            got = (
                f"an ActionBatch with continuous of shape {list(decided.continuous.shape)} and discrete of shape "
                f"{list(decided.discrete.shape)}"
            )
        raise StageError(
            f"{self._name} returned {got!s} for {shapes[0][0]} agents of {self._spec.behavior_id}; expected an "
            f"ActionBatch with continuous of shape {list(shapes[0])} and discrete of shape {list(shapes[1])}"
        )


def make_script(request: BrainRequest) -> ScriptBrain | None:
    """Make a script's brain.

    Raises:
        LoadError: if the script does not exist, has no `__call__`, does not take its arguments, or raises.
    """
    spec, where = request.spec, request.where
    with blaming(*request.key):
        scripts = [(use, find_class(where, use, folder)) for use, folder in _references(request)]
        for use, script in scripts:
            if not any("__call__" in base.__dict__ for base in script.__mro__):
                raise LoadError(
                    f"{where}: {use} is not a player: it has no method __call__(self, observations), or __call__(self, "
                    "observations, masks) for masked actions"
                )
    use, script = scripts[0 if spec is None else min(spec.team, len(scripts) - 1)]
    with blaming(*request.given_key):
        arguments = check_arguments(where, use, script, request.given, {"spec": spec, "seed": request.seed})
    if spec is None:
        return None
    with blaming(*request.key):
        return ScriptBrain(construct(where, use, script, arguments), spec, f"{where}: {use}")


def _references(request: BrainRequest) -> list[tuple[str, Path | None]]:
    """Return each script's `module:Class` (one, or one per team), and the folder to search for its module."""
    if request.use != SCRIPTED:
        return [(request.use, request.folder)]
    if request.game is None or request.game not in SCRIPTED_PLAYERS:
        raise LoadError(
            f"{request.where}: 'scripted' is the scripted player of a built-in game ({', '.join(SCRIPTED_PLAYERS)}), "
            "but this run has a different environment; name your own class, such as 'my_players:MyPlayer'"
        )
    return [(use, None) for use in SCRIPTED_PLAYERS[request.game]]


class UniformBrain(MemorylessPolicy):
    """A brain that draws continuous actions uniformly from [-1, 1], and choices uniformly from the allowed ones."""

    def __init__(self, actions: ActionSpec) -> None:
        self._actions = actions

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Draw an action for each row."""
        return Decision(uniform_actions(self._actions, len(observations[0]), masks, random), {})


def uniform_actions(
    actions: ActionSpec, count: int, masks: NDArray[np.bool_] | None, random: np.random.Generator
) -> ActionBatch:
    """Draw uniform actions for `count` agents."""
    continuous = random.uniform(-1, 1, (count, actions.continuous_size)).astype(np.float32)
    scores = random.random((count, actions.mask_size))
    if masks is not None:
        scores[~masks] = -1.0  # never the highest score, because each branch has an allowed choice
    branches = np.split(scores, np.cumsum(actions.discrete_branches)[:-1], axis=1)
    discrete = np.stack([branch.argmax(axis=1) for branch in branches], axis=1) if actions.mask_size else scores
    return ActionBatch(continuous, discrete.astype(np.int32))


def make_uniform(request: BrainRequest) -> UniformBrain | None:
    """Make a brain that acts at random."""
    return None if request.spec is None else UniformBrain(request.spec.actions)


class StandIn(PolicyWrapper):
    """An `ActingPolicy` that lets a brain of any design decide in place of a policy.

    Columns that only a learning policy produces (log-probabilities, memories) are zeros: no trainer learns from them,
    but a stage, a recorder or a student may read the actions.

    Args:
        brain: the brain that decides.
        design: the design of the behaviour's policies.
    """

    def __init__(self, brain: ActingPolicy, design: PolicyDesign) -> None:
        super().__init__(brain)
        self._actions = design.spec.actions
        self._squashed = design.squashed
        self._columns = decision_columns(design.spec, design.added_columns)

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Choose actions with the policy; record the actions that the environment receives."""
        decision = self._policy.act(observations, masks, random, deterministic, recall)
        actions, count = decision.actions, len(observations[0])
        values: dict[str, Array] = {"discrete_actions": np.asarray(actions.discrete, np.int32)}
        if self._actions.continuous_size:
            continuous = np.asarray(actions.continuous, np.float32)
            values["continuous_actions"] = policy_actions(self._actions, continuous, self._squashed)
        if self._actions.masked:
            values["action_masks"] = np.ones((count, self._actions.mask_size), np.bool_) if masks is None else masks
        columns = {
            c.name: values[c.name] if c.name in values else np.zeros((count, *c.shape), c.dtype) for c in self._columns
        }
        return Decision(actions, columns, decision.recall)
