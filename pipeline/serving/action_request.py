"""A request for actions, which is read from plain data (JSON) and checked against the model's spec, and its refusals.

`refusing` converts refused requests to HTTP responses.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any

import numpy as np
from aiohttp import hdrs, web
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from headrace.config.errors import suggest
from headrace.pipeline.web import refusal
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.spaces.masks import MaskError, MaskReader


class ErrorKind(Enum):
    """Reasons for refusing a request, each with an HTTP status, the name of a gRPC status, and a description."""

    UNKNOWN = (404, "NOT_FOUND", "Unknown model or session")
    BUSY = (409, "ABORTED", "Another request of the session has not been answered yet")
    UNFIT = (422, "INVALID_ARGUMENT", "The body does not fit the model; the message says what was expected")
    FULL = (429, "RESOURCE_EXHAUSTED", "Too many sessions are open, or too many agents are in them")
    FAULT = (500, "INTERNAL", "The model or the server has failed")
    OVERLOADED = (503, "RESOURCE_EXHAUSTED", "Too many requests are in progress")
    ENDING = (503, "UNAVAILABLE", "Too many requests are in progress, or the server is shutting down")
    LATE = (504, "DEADLINE_EXCEEDED", "No decision was made in time")

    def __init__(self, http: int, grpc: str, text: str) -> None:
        self.http = http
        self.grpc = grpc
        self.text = text


class RequestRefused(Exception):
    """Raised if a request is refused; a refused request changes nothing.

    Args:
        why: the reason.
        message: what is wrong and what was expected.
    """

    def __init__(self, why: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.why = why


MOST_AGENTS, MOST_ID = 1024, 256
"""Maximum number of agents in one request, and of characters in the id of a session."""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """A request for the actions of n agents."""

    observations: tuple[Array, ...]
    """One array [n, *shape] per observation spec, in the spec's dtype; all values are finite."""
    masks: NDArray[np.bool_] | None = None
    """[n, sum of branches] True for allowed choices; each branch has at least one. None if all choices are allowed."""
    deterministic: bool | None = None
    """True to answer with the mean or the most likely choice instead of a sample; None for the server's default."""
    session: str = ""
    """Id of the session that stores these agents' memories; empty if the request has no session."""
    episode_start: NDArray[np.bool_] | None = None
    """[n] True for agents that begin an episode; None if none does."""
    begins: bool = False
    """True if the session begins or restarts with this request."""
    ends: bool = False
    """True if the session ends after this request."""

    @property
    def agents(self) -> int:
        """Number of agents, n."""
        return len(self.observations[0])


class ActBody(BaseModel):
    """The body of a request for actions in Headrace's own protocol."""

    model_config = ConfigDict(extra="forbid", strict=True)

    observations: Any = Field(
        json_schema_extra={"type": ["object", "array"]},
        description="An object by the observations' names, or a list in the model's order. Each is an array with a row "
        "per agent: nested lists, or the base64 encoding of its bytes in the model's dtype (little-endian, row-major).",
    )
    masks: Any = Field(
        None,
        description="[agents, sum of branches] true where the action is allowed; if missing, all actions are allowed.",
    )
    deterministic: bool | None = Field(
        None, description="Return the mean or the most likely choice instead of a sample."
    )
    session: str | None = Field(None, description="Id of the session that holds the memory of these agents.")
    episode_start: list[Any] | None = Field(
        None,
        description="[agents] true where an agent's episode begins: the session clears its memory of this agent.",
    )

    def read(self, spec: BehaviorSpec) -> ActionRequest:
        """Convert the body to a request for a model's actions.

        Raises:
            RequestRefused: if the body does not fit the model; the message gives the location and what was expected.
        """
        return make_action_request(
            spec,
            [observation_array(observation, value) for observation, value in _by_spec(spec, self.observations)],
            masks=self.masks,
            deterministic=self.deterministic,
            session=self.session or "",
            episode_start=flags(self.episode_start, "episode_start"),
        )


def make_action_request(
    spec: BehaviorSpec,
    observations: Sequence[Array],
    masks: object,
    deterministic: bool | None,
    session: str,
    episode_start: NDArray[np.bool_] | None,
    begins: bool = False,
    ends: bool = False,
) -> ActionRequest:
    """Return a request with these parts. The caller must already have checked the observations.

    Raises:
        RequestRefused: if the parts are inconsistent, or the masks do not fit the spec.
    """
    n = len(observations[0])
    for observation, array in zip(spec.observations, observations, strict=True):
        if len(array) != n:
            first = spec.observations[0].name
            raise unfit(f"observations: {observation.name} is for {len(array)} agents, but {first} is for {n}")
    if not 1 <= n <= MOST_AGENTS:
        raise unfit(f"observations: got {n} agents; expected 1 to {MOST_AGENTS} per request")
    if episode_start is not None:
        if not session:
            raise unfit("episode_start: needs a session, but the request names none")
        if episode_start.shape != (n,):
            raise unfit(f"episode_start: expected [{n}], one per agent, got {list(episode_start.shape)}")
    read = None if masks is None else _masks(spec, masks, n)
    return ActionRequest(tuple(observations), read, deterministic, session, episode_start, begins, ends)


def observation_array(spec: ObservationSpec, value: object, flat: bool = False) -> Array:
    """Return an observation as an array [n, *shape] for n agents.

    Args:
        spec: the observation's spec.
        value: nested lists, or the array's bytes in the spec's dtype (little-endian, row by row), or those as base64.
        flat: True to also accept a flat list of numbers.

    Raises:
        RequestRefused: if the value is anything else.
    """
    if isinstance(value, str):
        try:
            value = b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise unfit(
                f"observations.{spec.name}: a string must be the base64 encoding of the array's bytes"
            ) from None
    if isinstance(value, bytes):
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        _check_multiple(spec, len(value), "bytes", spec.size * dtype.itemsize)
        return _of_spec(spec, np.frombuffer(value, dtype).reshape(-1, *spec.shape))
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # ragged
        raise _misshapen(spec, "lists of different lengths") from None
    if array.dtype.kind not in "iuf" or (array is not value and _holds_flags(value, array.ndim)):
        raise unfit(f"observations.{spec.name}: expected numbers, got {_kind(value)} that also contains other values")
    if flat and array.ndim == 1:
        _check_multiple(spec, len(array), "numbers", spec.size)
        array = array.reshape(-1, *spec.shape)
    return _of_spec(spec, array)


def _holds_flags(value: Any, depth: int) -> bool:
    """Return True if lists of this depth mix booleans with numbers, which NumPy would accept."""
    for _ in range(depth - 1):
        value = chain.from_iterable(value)
    return bool in set(map(type, value if depth else [value]))


def _check_multiple(spec: ObservationSpec, count: int, unit: str, one: int) -> None:
    if not one or count % one:
        raise unfit(
            f"observations.{spec.name}: got {count} {unit}; expected a multiple of {one}, because each agent's {spec} "
            f"has {one} {unit}"
        )


def _of_spec(spec: ObservationSpec, array: Array) -> Array:
    """Check an array of numbers against the spec, and return it in the spec's dtype."""
    if array.shape[1:] != spec.shape or not array.ndim:
        raise _misshapen(spec, str(list(array.shape)))
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu" and array.size and array.dtype != dtype:
        limits = np.iinfo(dtype)
        if (array != np.floor(array)).any() or array.min() < limits.min or array.max() > limits.max:
            raise unfit(f"observations.{spec.name}: expected integers from {limits.min} to {limits.max}")
    with np.errstate(over="ignore"):  # values that are too large become infinite
        array = array.astype(dtype, copy=False)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise unfit(f"observations.{spec.name}: has a value that is not finite in {spec.dtype}")
    return array


def _by_spec(spec: BehaviorSpec, observations: object) -> list[tuple[ObservationSpec, Any]]:
    """Return each observation spec with its value, which the request identifies by name or by position."""
    specs = spec.observations
    names = [observation.name for observation in specs]
    if isinstance(observations, Mapping):
        for name in observations:
            if name not in names:
                raise unfit(
                    f"observations: unknown observation {name!r}{suggest(str(name), names)}; available: {spec.seen}"
                )
        lacking = [name for name in names if name not in observations]
        if lacking:
            raise unfit(f"observations.{lacking[0]}: missing; expected {spec.seen}")
        if len(set(names)) < len(names):
            raise unfit(
                f"observations: some observations share a name; give a list of {len(names)} arrays in this order: "
                f"{spec.seen}"
            )
        return [(observation, observations[observation.name]) for observation in specs]
    if not isinstance(observations, list | tuple) or len(observations) != len(specs):
        raise unfit(
            f"observations: expected an object that maps names to arrays, or a list of {len(specs)} arrays in this "
            f"order, with a row per agent in each array: {spec.seen}; got {_kind(observations)}"
        )
    return [*zip(specs, observations, strict=True)]


def _masks(spec: BehaviorSpec, masks: object, n: int) -> NDArray[np.bool_]:
    if not spec.actions.masked:
        raise unfit(f"masks: this model has no action masks; it has {spec.actions}")
    try:
        return MaskReader.of_policy(spec).read(masks, n)
    except MaskError as error:
        raise unfit(f"masks{error.at}: {'' if error.row is None else f'row {error.row} '}{error.problem}") from error


def flags(value: object, key: str) -> NDArray[np.bool_] | None:
    """Convert booleans, or ones and zeros, to a boolean array; None stays None.

    Raises:
        RequestRefused: if a value is anything else; the message begins with the key.
    """
    if value is None:
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        raise unfit(f"{key}: expected true or false, got lists of different lengths") from None
    if array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise unfit(f"{key}: expected true or false (or 1 or 0), got {_kind(value)} that also contains other values")
    return array.astype(np.bool_)


def unfit(message: str) -> RequestRefused:
    """Return the error for a request that does not fit the model."""
    return RequestRefused(ErrorKind.UNFIT, message)


def _misshapen(spec: ObservationSpec, got: str) -> RequestRefused:
    shape = ", ".join(map(str, ("n", *spec.shape)))
    return unfit(f"observations.{spec.name}: expected {spec.dtype}[{shape}], a row per agent, got {got}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


Handler = Callable[[web.Request], Awaitable[web.Response]]


def refusing(handler: Handler, unfit: int = ErrorKind.UNFIT.http) -> Handler:
    """Wrap a handler to answer a refused request with the refusal's HTTP status.

    Args:
        handler: the handler, which may raise `RequestRefused`.
        unfit: the HTTP status for data that does not fit the model.
    """

    async def respond(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except web.HTTPUnprocessableEntity as refused:
            return refusal(unfit, refused.text or refused.reason)
        except RequestRefused as refused:
            answer = refusal(unfit if refused.why is ErrorKind.UNFIT else refused.why.http, str(refused))
            if refused.why in (ErrorKind.OVERLOADED, ErrorKind.FULL):
                answer.headers[hdrs.RETRY_AFTER] = "1"
            if refused.why is ErrorKind.ENDING:
                answer.force_close()
            return answer

    return respond
