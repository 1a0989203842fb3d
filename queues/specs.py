"""A behaviour's spec: its observations, actions, name and team.

A spec is plain data. The environment announces the spec when a behaviour id first appears. The spec is then sent on the
control channel and stored in stream headers, and determines the size of every buffer. `columns` derives the columns
from it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from headrace.config.observation_kinds import kind_of_rank
from headrace.queues.errors import SpecError

STEP_MUL = "step_mul"
"""Name of the action branch that chooses how many environment steps an action lasts."""


GODOT = "godot"
"""Key in `BehaviorSpec.spaces` for the spaces that a Godot game announced: `observations` as a map keyed by name,
`actions` as a list in the game's order, and `ordered`, which is true if that order is certain. Models of a behaviour
with this key have their own format (`stages/policy/onnx/model.py`)."""


@dataclass(frozen=True, slots=True)
class ObservationSpec:
    """One observation of an agent: an array of `shape` with NumPy dtype `dtype` (images stay uint8).

    The rank determines the kind: 1 is a vector, 2 a set of entities (padded with all-zero rows), 3 an image; see
    `headrace.config.observation_kinds`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    channels_last: bool = False
    """True for an image with shape [height, width, channels] rather than [channels, height, width]."""
    goal: bool = False
    """True if the observation is the agent's goal (ML-Agents' goal signal) rather than the state of the world."""

    def __str__(self) -> str:
        """Return the form used in messages: `camera uint8[3, 84, 84]`."""
        notes = [note for note, is_so in (("channels last", self.channels_last), ("a goal", self.goal)) if is_so]
        return f"{self.name} {self.dtype}{list(self.shape)}" + (f" ({', '.join(notes)})" if notes else "")

    @property
    def rounded(self) -> ObservationSpec:
        """The same spec in float32, as networks receive it; specs that share a policy are equal in this form."""
        return replace(self, dtype="float32") if self.dtype == "float64" else self

    @property
    def size(self) -> int:
        """Number of elements of one observation."""
        return prod(self.shape)

    @property
    def kind(self) -> str:
        """The observation kind with this rank (see `headrace.config.observation_kinds`); `unknown` if there is none."""
        return kind_of_rank(len(self.shape))


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An agent's actions: continuous values, discrete branches, or both (hybrid)."""

    continuous_size: int = 0
    """Number of continuous actions; values are in [-1, 1] before conversion to the environment's units
    (`stages/action_units.py`)."""
    discrete_branches: tuple[int, ...] = ()
    """Number of choices in each discrete branch."""
    masked: bool = False
    """True if the environment may forbid discrete choices, in which case batches have a column `action_masks`."""
    unbounded: tuple[int, ...] = ()
    """Indices of continuous actions that are not scaled: the policy's raw sample, clipped at any bound."""
    continuous_names: tuple[str, ...] = field(default=(), compare=False)
    """Names of the continuous actions, such as `arm.0`; () for `continuous_0`, …. Names do not affect equality."""
    branch_names: tuple[str, ...] = field(default=(), compare=False)
    """Names of the discrete branches; () for `branch_0`, …."""

    def __str__(self) -> str:
        """Return the form used in messages: `2 continuous actions and branches of 3, 2 choices (masked)`."""
        parts = []
        if self.continuous_size:
            free = f" ({len(self.unbounded)} without bounds)" if self.unbounded else ""
            parts.append(f"{self.continuous_size} continuous action{'s' * (self.continuous_size > 1)}{free}")
        if self.discrete_branches:
            several = "es" * (len(self.discrete_branches) > 1)
            sizes = ", ".join(map(str, self.discrete_branches))
            parts.append(f"branch{several} of {sizes} choices{' (masked)' * self.masked}")
        return " and ".join(parts) or "no actions"

    @property
    def continuous_heads(self) -> tuple[str, ...]:
        """Names of the continuous actions."""
        return self.continuous_names or tuple(f"continuous_{i}" for i in range(self.continuous_size))

    @property
    def branch_heads(self) -> tuple[str, ...]:
        """Names of the discrete branches."""
        return self.branch_names or tuple(f"branch_{i}" for i in range(len(self.discrete_branches)))

    @property
    def log_prob_size(self) -> int:
        """Number of log-probabilities stored per decision: one per continuous action and one per branch."""
        return self.continuous_size + len(self.discrete_branches)

    @property
    def mask_size(self) -> int:
        """Width of a row in `action_masks`: the number of choices in all branches."""
        return sum(self.discrete_branches)


@dataclass(frozen=True, slots=True)
class BehaviorSpec:
    """Everything needed to build a policy, a buffer or a stream for one behaviour id."""

    behavior_id: str
    """The behaviour's id: `Name` or `Name?team=N`."""
    observations: tuple[ObservationSpec, ...]
    actions: ActionSpec
    grouped: bool = False
    """True if the behaviour's agents may belong to groups that share a reward, which adds columns."""
    action_repeat: str | None = None
    """`fixed` or `learned` if an action may last several environment steps, which adds the column `env_frames`; None
    otherwise. If it is `learned`, the last branch (`STEP_MUL`) is the policy's choice of the number of steps: choice k
    means k + 1 steps."""

    spaces: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """The environment's `observation` and `action` spaces, if it has any (see `spaces/own_space.py`), and
    `action_repeat`, the number of steps of a fixed repeat. Specs that differ only in `spaces` are equal."""

    @property
    def seen(self) -> str:
        """The observations as written in messages."""
        return ", ".join(map(str, self.observations)) or "no observations"

    def sees_like(self, other: BehaviorSpec) -> bool:
        """Return True if both have the same observations; float64, needed only by normalisers, counts as float32."""
        return [observation.rounded for observation in self.observations] == [
            observation.rounded for observation in other.observations
        ]

    @property
    def name(self) -> str:
        """The behaviour name, which is the key in the YAML's `behaviors` section."""
        return behavior_name(self.behavior_id)

    @property
    def team(self) -> int:
        """The team id; 0 if the behaviour id has none."""
        return behavior_team(self.behavior_id)

    def to_plain(self) -> dict[str, Any]:
        """Return the spec as dictionaries, lists and scalars, for msgpack and JSON."""
        plain: dict[str, Any] = {
            "behavior_id": self.behavior_id,
            "observations": [_plain(observation) for observation in self.observations],
            "actions": _plain(self.actions),
        }
        if self.grouped:
            plain["grouped"] = True
        if self.action_repeat is not None:
            plain["action_repeat"] = self.action_repeat
        if self.spaces is not None:
            plain["spaces"] = dict(self.spaces)
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> BehaviorSpec:
        """Invert `to_plain`.

        Raises:
            SpecError: if a field is missing or of the wrong kind.
        """
        try:
            actions = plain["actions"]
            spec = cls(
                behavior_id=str(plain["behavior_id"]),
                observations=tuple(
                    ObservationSpec(
                        str(o["name"]),
                        tuple(int(s) for s in o["shape"]),
                        str(np.dtype(str(o["dtype"]))),
                        bool(o["channels_last"]),
                        bool(o["goal"]),
                    )
                    for o in plain["observations"]
                ),
                actions=ActionSpec(
                    int(actions["continuous_size"]),
                    tuple(int(b) for b in actions["discrete_branches"]),
                    bool(actions["masked"]),
                    tuple(int(i) for i in actions["unbounded"]),
                    tuple(str(name) for name in actions["continuous_names"]),
                    tuple(str(name) for name in actions["branch_names"]),
                ),
                grouped=bool(plain.get("grouped", False)),
                action_repeat=None if plain.get("action_repeat") is None else str(plain["action_repeat"]),
                spaces=None if plain.get("spaces") is None else dict(plain["spaces"]),
            )
            sizes = *(one.size for one in spec.observations), spec.actions.continuous_size, spec.actions.mask_size
            if not all(0 <= size <= 1 << 30 for size in sizes):
                raise ValueError(f"an observation or action of more than {1 << 30:,} or less than 0 numbers")
            return spec
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SpecError(f"not a behaviour spec: {reprlib.repr(plain)} ({error})") from error


def _plain(part: ObservationSpec | ActionSpec) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(part).items()}


_MOST_DIGITS = 18
"""Maximum number of digits in a team id, which must fit in a signed 64-bit integer."""


def behavior_name(behavior_id: str) -> str:
    """Return the part of a behaviour id before `?`."""
    return behavior_id.partition("?")[0]


@lru_cache(maxsize=1024)
def behavior_team(behavior_id: str) -> int:
    """Return the team id in a behaviour id, or 0 if there is none. Anything else after `?` is ignored.

    Raises:
        SpecError: if the team is not a non-negative integer.
    """
    teams = parse_qs(behavior_id.partition("?")[2].partition("#")[0], keep_blank_values=True).get("team", ["0"])
    if not (teams[0].isascii() and teams[0].isdecimal()) or len(teams[0]) > _MOST_DIGITS:
        problem = f"the team must be a non-negative whole number, got {reprlib.repr(teams[0])}"
        raise SpecError(f"behaviour id {behavior_id!r}: {problem}")
    return int(teams[0])
