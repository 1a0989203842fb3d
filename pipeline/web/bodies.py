"""Bodies of requests: JSON or msgpack, checked by a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgpack
from aiohttp import web
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)

JSON, MSGPACK = "application/json", "application/msgpack"
PATIENCE_S = 10.0
"""For the whole of a body."""


async def read_json(request: web.Request, model: type[M]) -> M:
    """Read a request's body; one that is larger than the site allows is refused with 413.

    Args:
        request: the request.
        model: what the body has to be.

    Raises:
        web.HTTPUnsupportedMediaType: if it is no JSON by its type.
        web.HTTPBadRequest: if it is no JSON.
        web.HTTPUnprocessableEntity: if it is JSON of another form; the message names each mistake.
    """
    return checked(await _read(request, {JSON: json.loads}), model)


async def read_plain(request: web.Request) -> object:
    """Read a request's body, JSON or msgpack by its type; one that is larger than the site allows is refused with 413.

    Raises:
        web.HTTPUnsupportedMediaType: if it is neither by its type.
        web.HTTPRequestTimeout: if it does not arrive.
        web.HTTPBadRequest: if it is not what its type says.
    """
    return await _read(request, {JSON: json.loads, MSGPACK: _unpack})


async def _read(request: web.Request, readers: dict[str, Callable[[bytes], Any]]) -> Any:
    read = readers.get(request.content_type)
    if read is None:
        raise web.HTTPUnsupportedMediaType(text=f"the body has to be of the type {' or '.join(readers)}")
    try:
        async with asyncio.timeout(PATIENCE_S):
            body = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body has not arrived within {PATIENCE_S:g} s") from None
    try:
        return read(body)
    except (ValueError, RecursionError) as error:
        name = request.content_type.rpartition("/")[2]
        raise web.HTTPBadRequest(text=f"the body is no {name.replace('json', 'JSON')}: {error}") from None


def _unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body)
    except (msgpack.UnpackException, TypeError) as error:  # keys that can't be keys
        raise ValueError(str(error) or type(error).__name__) from error


def checked(plain: object, model: type[M]) -> M:
    """Return plain data as a model.

    Raises:
        web.HTTPUnprocessableEntity: if it does not fit; the message names each mistake.
    """
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        mistakes = (f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in error.errors())
        raise web.HTTPUnprocessableEntity(text="; ".join(mistakes)) from None
