"""Converts refused requests to HTTP responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from headrace.pipeline.serving.action_request import ErrorKind, RequestRefused
from headrace.pipeline.web import refusal

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
