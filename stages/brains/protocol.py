"""What is asked of a brain that does not learn, and what others need to know of one."""

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
    """Which brain is wanted, for whom, and by which key of the YAML."""

    use: str
    """What names it; see `headrace.config.brains.kind_of`."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The keyword arguments of the YAML."""
    key: KeyPath = ()
    """Where `use` stands, for messages."""
    given_key: KeyPath = ()
    """Where the keyword arguments stand."""
    folder: Path | None = None
    """That of the YAML, beside which modules and models may lie."""
    game: str | None = None
    """The built-in game that is played; None for other environments."""
    seed: int = 0
    """For code that draws random numbers of its own."""
    spec: BehaviorSpec | None = None
    """The behaviour id; None as long as there is none: then a request is only checked."""
    person: Callable[[BehaviorSpec], ActingPolicy] | None = None
    """Makes what decides by the keys of a person; None where nobody can play."""

    @property
    def where(self) -> str:
        """The key as messages show it."""
        return dotted(self.key)


@dataclass(frozen=True)
class BrainShare:
    """A brain, and its share of the games."""

    name: str
    weight: float
    brain: ActingPolicy


class Memoryless:
    """What is the same for all `ActingPolicy`s that have neither weights nor memory: all but `act`."""

    memory_size = 0
    previous_action_size = 0

    def load(self, update: PolicyUpdate) -> None:
        """Load nothing."""
