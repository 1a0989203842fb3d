"""The request for a brain that does not learn, and the brain's interface to other modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config.errors import KeyPath, dotted
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.protocol import ActingPolicy


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


class Memoryless:
    """Base class for `ActingPolicy` implementations without weights or memory; subclasses add `act`."""

    memory_size = 0
    previous_action_size = 0

    def load(self, update: PolicyUpdate) -> None:
        """Do nothing, because there are no weights."""


class Unchanging:
    """Base class for `ActingPolicy` implementations that wrap another one and load no weights; subclasses add `act`.

    Args:
        policy: the wrapped policy.
    """

    def __init__(self, policy: ActingPolicy) -> None:
        self._policy = policy
        self.memory_size, self.previous_action_size = policy.memory_size, policy.previous_action_size

    def load(self, update: PolicyUpdate) -> None:
        """Do nothing, because there are no weights to load."""
