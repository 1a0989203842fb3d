"""Bodies of requests: JSON, checked by a model."""

from __future__ import annotations

import json
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


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
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body has to be of the type application/json")
    body = await request.read()
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text=f"the body is no JSON: {error}") from None
    return checked(plain, model)


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
