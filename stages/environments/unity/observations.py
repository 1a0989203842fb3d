"""Readers of one observation of all agents of a behaviour, and its spec.

Numbers come as floats, images as floats or as PNG files (`png`). Arrays have the shape that Unity states, also where an
older package puts an image's channels last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import ObservationSpec
from headrace.stages.environments.unity.errors import UnityBroken, UnityRefused
from headrace.stages.environments.unity.messages import GOAL_SIGNAL, PNG, ObservationProto
from headrace.stages.environments.unity.png import PngError, decode_into, png_size, split_pngs

_LARGE = 64 * 64 * 3
"""From so many numbers of a picture on, decoding outlasts what holds the interpreter's lock: then threads help."""
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
"""Supported dimension properties → kind of the observation."""


class WrongObservation(Exception):
    """A row does not fit the spec.

    Attributes:
        row: its number.
        problem: text that follows the observation's name.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        self.problem = problem


def observation_spec(proto: Any, index: int, owner: str) -> ObservationSpec:
    """The spec of a behaviour's observation number `index`, from its first `ObservationProto`.

    Raises:
        UnityRefused: if it is not supported.
        UnityBroken: if it is an image that can't be decoded.
    """
    shape = tuple(proto.shape)
    name = proto.name or f"observation_{index}"
    what = f"{owner}: observation {name!r} of shape {shape}"
    properties = tuple(proto.dimension_properties) or (_UNSPECIFIED,) * len(shape)
    if len(properties) != len(shape) or properties not in _KINDS or min(shape) < 0:
        words = " | ".join(_word(flags) for flags in properties)
        raise UnityRefused(
            f"{what} has the dimension properties ({words}): expected a vector (none), a set of things (variable size "
            "| none) or a picture (none | translational equivariance | translational equivariance); change the "
            "sensor's observation spec in Unity"
        )
    compressed = proto.compression_type == PNG
    if compressed and len(shape) != 3:
        raise UnityRefused(
            f"{what} is compressed to PNG, which only a picture (rank 3) can be; turn its compression off"
        )
    goal = proto.observation_type == GOAL_SIGNAL
    if len(shape) != 3:
        return ObservationSpec(name, shape, goal=goal)
    if not compressed:
        return ObservationSpec(name, shape, channels_last=_stated_last(proto, shape), goal=goal)
    try:
        last = _seen_last(shape, png_size(split_pngs(proto.compressed_data)[0]), stated=_stated_last(proto, shape))
    except PngError as error:
        raise UnityBroken(f"{what} {error}") from error
    return ObservationSpec(name, shape, "uint8", channels_last=last, goal=goal)


def _word(flags: int) -> str:
    if flags in _WORDS:
        return _WORDS[flags]
    return " and ".join(word for flag, word in _WORDS.items() if flag & flags) or str(flags)


def _stated_last(proto: Any, shape: tuple[int, ...]) -> bool:
    """True if an image's channels seem to be last, judged without decoding it."""
    if proto.dimension_properties:
        return tuple(proto.dimension_properties) == _CHANNELS_LAST
    # Packages too old to state them put the channels last, which shows where channels are fewer than rows.
    return shape[2] < shape[0]


def _seen_last(shape: tuple[int, ...], picture: tuple[int, int], *, stated: bool) -> bool:
    first_fits, last_fits = shape[1:] == picture, shape[:2] == picture
    if not first_fits and not last_fits:
        height, width = picture
        raise PngError(f"holds a picture of {height}×{width} (height × width), which is not its shape")
    return stated if first_fits and last_fits else last_fits


class FloatReader:
    """Reads an observation of floats.

    Agents' protos usually differ only in the numbers. So each is serialised, which protobuf does fast, and all are read
    at once; comparing two finds the place of the numbers. Reading repeated fields takes three times as long.
    """

    def __init__(self, spec: ObservationSpec, first: Any) -> None:
        self.spec = spec
        pattern = ObservationProto()
        pattern.CopyFrom(first)
        pattern.float_data.data[:] = [0.0] * spec.size
        zeros = np.frombuffer(pattern.SerializeToString(), np.uint8)
        pattern.float_data.data[:] = np.full(spec.size, 0x01010101, "<u4").view("<f4").tolist()
        ones = np.frombuffer(pattern.SerializeToString(), np.uint8)
        self._begin = int(np.argmax(zeros != ones))
        self._end = self._begin + 4 * spec.size
        self._bytes = len(zeros)
        self._before = zeros[: self._begin]
        self._after = zeros[self._end :]

    def read(self, protos: Sequence[Any]) -> Array:
        """Read n agents' `ObservationProto` as [n, *shape].

        Raises:
            WrongObservation: if one has another number of values than its shape, or one that is not finite.
        """
        numbers = self._all_at_once([proto.SerializeToString() for proto in protos])
        if numbers is None:
            numbers = np.stack([self._one(row, proto) for row, proto in enumerate(protos)])
        if not np.isfinite(numbers).all():
            row, at = (int(index) for index in np.argwhere(~np.isfinite(numbers))[0])
            raise WrongObservation(row, f"has {numbers[row, at]} at index {at}, expected finite numbers")
        return numbers.reshape(len(protos), *self.spec.shape)

    def _all_at_once(self, serialised: list[bytes]) -> NDArray[np.float32] | None:
        """[n, size], or None if one differs from the pattern."""
        if any(len(one) != self._bytes for one in serialised):
            return None
        rows = np.frombuffer(b"".join(serialised), np.uint8).reshape(len(serialised), self._bytes)
        if not (rows[:, : self._begin] == self._before).all() or not (rows[:, self._end :] == self._after).all():
            return None
        return np.ascontiguousarray(rows[:, self._begin : self._end]).view("<f4").astype(np.float32, copy=False)

    def _one(self, row: int, proto: Any) -> NDArray[np.float32]:
        _check_shape(self.spec, row, proto)
        if proto.compression_type != PNG:
            return _floats(self.spec, row, proto)
        picture = np.empty(self.spec.shape, np.uint8)
        _decode(self.spec, row, proto, picture)
        return picture.ravel().astype(np.float32) / np.float32(255)


class ImageReader:
    """Reads an image of PNG files, as whole numbers from 0 to 255."""

    def __init__(self, spec: ObservationSpec) -> None:
        self.spec = spec

    def read(self, protos: Sequence[Any]) -> Array:
        """Read n agents' `ObservationProto` as [n, *shape].

        Raises:
            WrongObservation: if one can't be decoded to the shape.
        """
        pictures = np.empty((len(protos), *self.spec.shape), np.uint8)

        def read_one(row: int) -> None:
            _check_shape(self.spec, row, protos[row])
            if protos[row].compression_type == PNG:
                _decode(self.spec, row, protos[row], pictures[row])
            else:
                pictures[row] = self._of_floats(row, protos[row])

        if self.spec.size >= _LARGE:
            decode_each(read_one, len(protos))
        else:
            for row in range(len(protos)):
                read_one(row)
        return pictures

    def _of_floats(self, row: int, proto: Any) -> NDArray[np.float32]:
        # An agent may send its image uncompressed while others of its behaviour compress theirs.
        floats = _floats(self.spec, row, proto)
        if not ((floats >= 0) & (floats <= 1)).all():
            raise WrongObservation(
                row,
                "has numbers beyond 0 and 1, uncompressed, while other agents of the behaviour compress theirs to PNG; "
                "give all the same compression",
            )
        whole: NDArray[np.float32] = np.rint(floats * 255).reshape(self.spec.shape)
        return whole


ObservationReader = FloatReader | ImageReader


def observation_reader(spec: ObservationSpec, first: Any) -> ObservationReader:
    """The reader of an observation, from the proto that `observation_spec` made its spec from."""
    return ImageReader(spec) if spec.dtype == "uint8" else FloatReader(spec, first)


def _check_shape(spec: ObservationSpec, row: int, proto: Any) -> None:
    if tuple(proto.shape) != spec.shape:
        raise WrongObservation(
            row, f"has shape {tuple(proto.shape)}, expected {spec.shape} as of the first agent of the behaviour"
        )


def _floats(spec: ObservationSpec, row: int, proto: Any) -> NDArray[np.float32]:
    data = proto.float_data.data
    if len(data) != spec.size:
        raise WrongObservation(row, f"has {len(data)} numbers, expected {spec.size} (shape {spec.shape})")
    return np.fromiter(data, np.float32, spec.size)


def _decode(spec: ObservationSpec, row: int, proto: Any, out: NDArray[np.uint8]) -> None:
    channels_first = out.transpose(2, 0, 1) if spec.channels_last else out
    try:
        decode_into(channels_first, proto.compressed_data, tuple(proto.compressed_channel_mapping))
    except PngError as error:
        raise WrongObservation(row, str(error)) from error


# Threads that decode: for libraries that release the interpreter's lock while they do.

MOST_THREADS = 4
"""Other processes want the cores, too."""


def decode_each(decode: Callable[[int], None], count: int) -> None:
    """Call a function with each number below a count, in several threads, and wait for all.

    Raises:
        Exception: what the call with the least number raised of those that raised; the others are made all the same.
    """
    threads = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MOST_THREADS, count)
    if threads < 2:
        for number in range(count):
            decode(number)
        return
    errors: list[tuple[int, Exception]] = []

    def decode_part(first: int) -> None:
        for number in range(first, count, threads):
            try:
                decode(number)
            except Exception as error:  # for the caller, who wants the first one
                errors.append((number, error))

    list(_pool(threads).map(decode_part, range(threads)))
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "decoding")
