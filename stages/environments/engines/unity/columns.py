"""Unity's agents as columns: one reader per behaviour, and one for each of its observations.

Unity sends a message per agent; the readers make arrays of all agents. They also check the messages, and name the
source of an error: worker, behaviour, agent, observation. Numbers come as floats, images as floats or as PNG files
(`png`). Arrays have the shape that Unity states, even if an older package puts an image's channels last.

This module also converts a behaviour's action spec from Unity's announcement, and actions to messages for Unity.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.engines.errors import GameBroken, GameRefused
from headrace.stages.environments.engines.rows import GameRows
from headrace.stages.environments.engines.unity.errors import UnityMisobserved
from headrace.stages.environments.engines.unity.messages import GOAL_SIGNAL, PNG, ListAgentActionProto, ObservationProto
from headrace.stages.environments.engines.unity.png import PngError, decode_each, decode_into, png_size, split_pngs
from headrace.stages.environments.engines.unity.versions import INTERLEAVED_PACKAGES
from headrace.stages.environments.spaces.masks import MaskError, MaskReader

_CONTINUOUS = 1
"""Value of `SpaceTypeProto` for continuous actions, in packages whose behaviours have only one kind of action."""
_SHORT_CHOICES = 128
"""Maximum number of choices in a branch if each choice takes one byte."""


def action_spec(brain: Any, owner: str) -> ActionSpec:
    """Return the action spec of a behaviour's `BrainParametersProto`, whose fields differ in packages before 2.0.

    Raises:
        GameRefused: if the numbers contradict each other.
    """
    stated = brain.action_spec
    continuous, branches = stated.num_continuous_actions, tuple(stated.discrete_branch_sizes)
    if not continuous and not stated.num_discrete_actions:
        sizes = tuple(brain.vector_action_size_deprecated)
        if brain.vector_action_space_type_deprecated == _CONTINUOUS:
            continuous, branches = (sizes[0] if sizes else 0), ()
        else:
            branches = sizes
    elif stated.num_discrete_actions != len(branches):
        raise GameRefused(
            f"{owner}: announces {stated.num_discrete_actions} discrete actions, but sizes for {len(branches)} "
            f"({list(branches)}); expected one size for each"
        )
    if continuous < 0 or any(size < 1 for size in branches) or continuous + sum(branches) > 1 << 20:
        raise GameRefused(
            f"{owner}: announces {continuous} continuous actions and discrete branches of sizes {list(branches)}; "
            f"expected at least 1 choice in each branch, and at most {1 << 20:,} actions and choices altogether: "
            "check Actions in its Behavior Parameters"
        )
    return ActionSpec(continuous, branches, masked=bool(branches))


def action_protos(spec: BehaviorSpec, continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
    """Return the actions of d agents as a `ListAgentActionProto`, in the order of the rows.

    Args:
        spec: the behaviour's spec.
        continuous: [d, continuous_size] continuous actions.
        discrete: [d, branches] the choice in each branch.

    Raises:
        ValueError: if a choice does not exist in its branch.
    """
    actions = spec.actions
    if actions.discrete_branches:
        _check_choices(spec, discrete)
    if max(actions.discrete_branches, default=0) > _SHORT_CHOICES:
        return _one_by_one(continuous, discrete)
    return _Pattern.of(actions).filled(continuous, discrete)


def _check_choices(spec: BehaviorSpec, discrete: NDArray[np.int32]) -> None:
    branches = spec.actions.discrete_branches
    wrong = (discrete < 0) | (discrete >= np.array(branches))
    if wrong.any():
        row, branch = (int(index) for index in np.argwhere(wrong)[0])
        raise ValueError(
            f"{spec.behavior_id}: choice {discrete[row, branch]} of branch {branch} in row {row}; that branch has the "
            f"choices 0 to {branches[branch] - 1}"
        )


def _one_by_one(continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
    protos = ListAgentActionProto()
    for values, choices in zip(continuous.tolist(), discrete.tolist(), strict=True):
        # Packages before 2.0 read the deprecated vector, in which choices are floats too.
        protos.value.add(
            continuous_actions=values, discrete_actions=choices, vector_actions_deprecated=values + choices
        )
    return protos


class _Pattern:
    """The serialised actions of one agent, as a pattern into which the actions of all agents are written together.

    As long as each choice takes one byte, the agents' bytes differ only in the actions. Filling in messages agent by
    agent takes three times as long. Changing one field at a time shows where the fields are.
    """

    def __init__(self, actions: ActionSpec) -> None:
        continuous = np.zeros((1, actions.continuous_size), np.float32)
        discrete = np.zeros((1, len(actions.discrete_branches)), np.int32)
        zeros = _one_by_one(continuous, discrete)
        self._bytes = _serialised(zeros)
        other = np.full(actions.log_prob_size, 0x01010101, "<u4").view("<f4").tolist()  # floats without a zero byte
        self._continuous = self._changed(zeros, "continuous_actions", other[: actions.continuous_size])
        self._discrete = self._changed(zeros, "discrete_actions", [1] * len(actions.discrete_branches))
        self._deprecated = self._changed(zeros, "vector_actions_deprecated", other)

    @staticmethod
    @lru_cache(maxsize=256)
    def of(actions: ActionSpec) -> _Pattern:
        """Return the pattern of a behaviour's actions."""
        return _Pattern(actions)

    def filled(self, continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
        """Return the `ListAgentActionProto` of d agents."""
        rows = np.tile(self._bytes, (len(continuous), 1))
        numbers = np.concatenate((continuous, discrete), axis=1, dtype="<f4", casting="same_kind")
        rows[:, self._deprecated] = numbers.view(np.uint8)
        rows[:, self._continuous] = numbers[:, : continuous.shape[1]].view(np.uint8)
        rows[:, self._discrete] = discrete
        return ListAgentActionProto.FromString(rows.tobytes())

    def _changed(self, zeros: Any, field: str, values: list[float]) -> slice:
        changed = ListAgentActionProto.FromString(zeros.SerializeToString())
        getattr(changed.value[0], field)[:] = values
        at = np.flatnonzero(_serialised(changed) != self._bytes)
        return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)


def _serialised(protos: Any) -> NDArray[np.uint8]:
    return np.frombuffer(protos.SerializeToString(), np.uint8)


_LARGE = 64 * 64 * 3
"""Number of values in an image above which threads help, because decoding takes longer than the work under the
interpreter's lock."""
_UNSPECIFIED, _NONE, _TRANSLATION, _VARIABLE = 0, 1, 2, 4
_WORDS = {
    _UNSPECIFIED: "unspecified",
    _NONE: "none",
    _TRANSLATION: "translational equivariance",
    _VARIABLE: "variable size",
}
_CHANNELS_FIRST = (_NONE, _TRANSLATION, _TRANSLATION)
_CHANNELS_LAST = (_TRANSLATION, _TRANSLATION, _NONE)
_KINDS = {
    (_UNSPECIFIED,): "vector",
    (_NONE,): "vector",
    (_VARIABLE, _NONE): "set",
    (_UNSPECIFIED,) * 3: "image",
    _CHANNELS_FIRST: "image",
    _CHANNELS_LAST: "image",
}
"""Maps an observation's dimension properties to its kind."""


class BehaviorReader:
    """Reads the agents of one behaviour.

    The behaviour's first agent determines its observations; later agents must have the same observations.

    Attributes:
        spec: the behaviour's spec.
        dimension_properties: the properties of each observation's dimensions, as numbers.

    Args:
        brain: the behaviour's `BrainParametersProto`.
        first: the `AgentInfoProto` of one of the behaviour's agents.
        owner: the sender (`Unity worker 3`), used in messages.
        package: the version of the sender's package, if it is known.

    Raises:
        GameRefused: if the behaviour is not supported.
        GameBroken: if the first agent's observations can't be read.
    """

    def __init__(self, brain: Any, first: Any, owner: str, package: str = "") -> None:
        self._owner = f"{owner}, behaviour {brain.brain_name!r}"
        agent = f"{self._owner}, agent {first.id}"
        self.spec = BehaviorSpec(
            brain.brain_name,
            tuple(observation_spec(proto, index, agent) for index, proto in enumerate(first.observations)),
            action_spec(brain, self._owner),
            grouped=True,
        )
        self.dimension_properties = [_properties(proto) for proto in first.observations]
        pairs = zip(self.spec.observations, first.observations, strict=True)
        interleaved = package in INTERLEAVED_PACKAGES
        self._readers = [observation_reader(spec, proto, interleaved) for spec, proto in pairs]
        self._mask_reader = MaskReader.of_branches(self.spec.actions, "at least one choice that it does not forbid")

    def read(self, infos: Sequence[Any]) -> GameRows:
        """Convert the behaviour's agents (`AgentInfoProto`) of one message to columns.

        Raises:
            GameBroken: if an agent appears twice, a reward or observation is not finite, an observation does not fit
                the spec, or an action mask forbids every choice; the message names the agent.
        """
        endings = [info for info in infos if info.done]
        rows = [*endings, *(info for info in infos if not info.done)] if endings else list(infos)
        ended = len(endings)
        ids = [info.id for info in rows]
        self._check_ids(ids[:ended], "ended")
        self._check_ids(ids[ended:], "requests a decision")
        return GameRows(
            ids=np.array(ids, np.int32),
            rewards=self._rewards([info.reward for info in rows], ids, "reward"),
            ended=ended,
            interrupted=np.array([info.max_step_reached for info in endings], np.bool_),
            observations=self._observations(rows, ids),
            action_masks=self._masks(rows[ended:]),
            group_ids=np.array([info.group_id for info in rows], np.int32),
            group_rewards=self._rewards([info.group_reward for info in rows], ids, "group reward"),
        )

    def _check_ids(self, ids: list[int], what: str) -> None:
        if len(set(ids)) != len(ids):
            double = next(agent for at, agent in enumerate(ids) if agent in ids[:at])
            raise GameBroken(
                f"{self._owner}, agent {double}: {what} {ids.count(double)} times in one step; agent ids must be unique"
            )

    def _rewards(self, values: list[float], ids: list[int], what: str) -> NDArray[np.float32]:
        rewards = np.array(values, np.float32)
        finite = np.isfinite(rewards)
        if not finite.all():
            row = int(np.argmin(finite))
            raise GameBroken(
                f"{self._owner}, agent {ids[row]}: its {what} is {rewards[row]}; expected a finite number; look for a "
                "division by zero where the agent's script adds rewards"
            )
        return rewards

    def _observations(self, rows: list[Any], ids: list[int]) -> tuple[Array, ...]:
        per_agent = [info.observations for info in rows]
        wanted = len(self._readers)
        if any(len(observations) != wanted for observations in per_agent):
            row = next(row for row, observations in enumerate(per_agent) if len(observations) != wanted)
            raise UnityMisobserved(
                f"{self._owner}, agent {ids[row]} has {len(per_agent[row])} observations; expected {wanted}, like the "
                f"first agent of the behaviour ({', '.join(o.name for o in self.spec.observations)}); give all its "
                "agents the same sensors, or this agent a separate behaviour name"
            )
        return tuple(self._column(index, per_agent, ids) for index in range(wanted))

    def _column(self, index: int, per_agent: list[Any], ids: list[int]) -> Array:
        reader = self._readers[index]
        try:
            return reader.read([observations[index] for observations in per_agent])
        except WrongObservation as error:
            raise UnityMisobserved(
                f"{self._owner}, agent {ids[error.row]}: observation {reader.spec.name!r} {error.problem}"
            ) from error

    def _masks(self, rows: list[Any]) -> NDArray[np.bool_] | None:
        reader, width = self._mask_reader, self._mask_reader.width
        forbidden = [info.action_mask[:] for info in rows]
        if {*map(len, forbidden)} - {0, width}:
            row = next(row for row, mask in enumerate(forbidden) if len(mask) not in (0, width))
            raise GameBroken(
                f"{self._owner}, agent {rows[row].id}: its action mask has {len(forbidden[row])} entries; expected "
                f"{width}: one for each choice of branches {list(reader.branches)}"
            )
        if not width:
            return None
        if not any(forbidden):  # agents that forbid nothing send no mask
            return np.ones((len(rows), width), np.bool_)
        nothing = [False] * width
        try:
            return reader.read(~np.array([mask or nothing for mask in forbidden], np.bool_), len(rows))
        except MaskError as error:
            agent = rows[error.row or 0].id
            raise GameBroken(f"{self._owner}, agent {agent}: its action mask {error.problem}") from error


class WrongObservation(Exception):
    """A row does not fit the spec.

    Attributes:
        row: the row's number.
        problem: text that follows the observation's name.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        self.problem = problem


def observation_spec(proto: Any, index: int, owner: str) -> ObservationSpec:
    """Return the spec of a behaviour's observation number `index`, given one `ObservationProto` of it.

    Raises:
        GameRefused: if the observation is not supported.
        GameBroken: if the observation is an image that can't be decoded.
    """
    shape = tuple(proto.shape)
    name = proto.name or f"observation_{index}"
    what = f"{owner}: observation {name!r} of shape {shape}"
    properties = _properties(proto)
    if len(properties) != len(shape) or properties not in _KINDS or min(shape) < 0:
        words = " | ".join(_word(flags) for flags in properties)
        raise GameRefused(
            f"{what} has the dimension properties ({words}): expected a vector (none), a set of elements (variable "
            "size | none) or an image (none | translational equivariance | translational equivariance); change the "
            "sensor's observation spec in Unity"
        )
    compressed = proto.compression_type == PNG
    if compressed and len(shape) != 3:
        raise GameRefused(f"{what} is compressed to PNG, which works only for images (rank 3); turn compression off")
    goal = proto.observation_type == GOAL_SIGNAL
    if len(shape) != 3:
        return ObservationSpec(name, shape, goal=goal)
    if not compressed:
        return ObservationSpec(name, shape, channels_last=_stated_last(proto, shape), goal=goal)
    try:
        last = _seen_last(shape, png_size(split_pngs(proto.compressed_data)[0]), stated=_stated_last(proto, shape))
    except PngError as error:
        raise GameBroken(f"{what} {error}") from error
    return ObservationSpec(name, shape, "uint8", channels_last=last, goal=goal)


def _properties(proto: Any) -> tuple[int, ...]:
    return tuple(proto.dimension_properties) or (_UNSPECIFIED,) * len(proto.shape)


def _word(flags: int) -> str:
    if flags in _WORDS:
        return _WORDS[flags]
    return " and ".join(word for flag, word in _WORDS.items() if flag & flags) or str(flags)


def _stated_last(proto: Any, shape: tuple[int, ...]) -> bool:
    """Return True if an image's channels seem to be last, judged without decoding the image."""
    if proto.dimension_properties:
        return tuple(proto.dimension_properties) == _CHANNELS_LAST
    # Packages that do not state the order put the channels last; fewer channels than rows show this.
    return shape[2] < shape[0]


def _seen_last(shape: tuple[int, ...], picture: tuple[int, int], *, stated: bool) -> bool:
    first_fits, last_fits = shape[1:] == picture, shape[:2] == picture
    if not first_fits and not last_fits:
        height, width = picture
        raise PngError(f"holds an image of {height}×{width} (height × width), which is not its shape")
    return stated if first_fits and last_fits else last_fits


class FloatReader:
    """Reads an observation of floats.

    Agents' protos usually differ only in the numbers. So each proto is serialised, which is fast in protobuf, and all
    protos are read together. Comparing two protos shows where the numbers are. Reading repeated fields takes three
    times as long. If `interleaved`, images arrive pixel by pixel, although the shape has the channels first.
    """

    def __init__(self, spec: ObservationSpec, first: Any, interleaved: bool = False) -> None:
        self.spec = spec
        self._interleaved = interleaved and len(spec.shape) == 3 and not spec.channels_last
        pattern = ObservationProto()
        pattern.CopyFrom(first)
        size = min(spec.size, len(first.float_data.data))  # a shape of a stranger's file may be huge
        pattern.float_data.data[:] = [0.0] * size
        zeros = np.frombuffer(pattern.SerializeToString(), np.uint8)
        pattern.float_data.data[:] = np.full(size, 0x01010101, "<u4").view("<f4").tolist()
        ones = np.frombuffer(pattern.SerializeToString(), np.uint8)
        self._begin = int(np.argmax(zeros != ones))
        self._end = self._begin + 4 * size
        self._bytes = len(zeros)
        self._before = zeros[: self._begin]
        self._after = zeros[self._end :]

    def read(self, protos: Sequence[Any]) -> Array:
        """Read n agents' `ObservationProto` as [n, *shape].

        Raises:
            WrongObservation: if a proto has the wrong number of values for its shape, or a value that is not finite.
        """
        numbers = self._all_at_once([proto.SerializeToString() for proto in protos])
        if numbers is None:
            numbers = np.stack([self._one(row, proto) for row, proto in enumerate(protos)])
        if not np.isfinite(numbers).all():
            row, at = (int(index) for index in np.argwhere(~np.isfinite(numbers))[0])
            raise WrongObservation(row, f"has {numbers[row, at]} at index {at}; expected finite numbers")
        if self._interleaved:
            channels, *pixels = self.spec.shape
            return np.ascontiguousarray(np.moveaxis(numbers.reshape(len(protos), *pixels, channels), -1, 1))
        return numbers.reshape(len(protos), *self.spec.shape)

    def _all_at_once(self, serialised: list[bytes]) -> NDArray[np.float32] | None:
        """Return all values [n, size], or None if a proto differs from the pattern."""
        if self._end - self._begin != 4 * self.spec.size or any(len(one) != self._bytes for one in serialised):
            return None
        rows = np.frombuffer(b"".join(serialised), np.uint8).reshape(len(serialised), self._bytes)
        if not (rows[:, : self._begin] == self._before).all() or not (rows[:, self._end :] == self._after).all():
            return None
        return np.ascontiguousarray(rows[:, self._begin : self._end]).view("<f4").astype(np.float32, copy=False)

    def _one(self, row: int, proto: Any) -> NDArray[np.float32]:
        _check_form(self.spec, row, proto)
        data = proto.float_data.data
        if len(data) != self.spec.size:
            raise WrongObservation(row, f"has {len(data)} numbers; expected {self.spec.size} (shape {self.spec.shape})")
        return np.fromiter(data, np.float32, self.spec.size)


class ImageReader:
    """Reads an image from PNG files, as integers from 0 to 255."""

    def __init__(self, spec: ObservationSpec) -> None:
        self.spec = spec

    def read(self, protos: Sequence[Any]) -> Array:
        """Read n agents' `ObservationProto` as [n, *shape].

        Raises:
            WrongObservation: if an image can't be decoded to the shape.
        """
        pictures = np.empty((len(protos), *self.spec.shape), np.uint8)

        def read_one(row: int) -> None:
            proto, out = protos[row], pictures[row]
            _check_form(self.spec, row, proto)
            channels_first = out.transpose(2, 0, 1) if self.spec.channels_last else out
            try:
                decode_into(channels_first, proto.compressed_data, tuple(proto.compressed_channel_mapping))
            except PngError as error:
                raise WrongObservation(row, str(error)) from error

        if self.spec.size >= _LARGE:
            decode_each(read_one, len(protos))
        else:
            for row in range(len(protos)):
                read_one(row)
        return pictures


ObservationReader = FloatReader | ImageReader


def observation_reader(spec: ObservationSpec, first: Any, interleaved: bool) -> ObservationReader:
    """Return an observation's reader, given the proto from which its spec was made."""
    return ImageReader(spec) if spec.dtype == "uint8" else FloatReader(spec, first, interleaved)


def _check_form(spec: ObservationSpec, row: int, proto: Any) -> None:
    """Check that an observation has the shape of the spec, and is a PNG file if the spec's images are."""
    if tuple(proto.shape) != spec.shape:
        raise WrongObservation(
            row, f"has shape {tuple(proto.shape)}; expected {spec.shape}, like the first agent of the behaviour"
        )
    if (proto.compression_type == PNG) != (spec.dtype == "uint8"):
        raise WrongObservation(
            row, "is not compressed like that of the first agent of the behaviour; use the same compression for all"
        )
