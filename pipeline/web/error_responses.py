"""Answers to what can't be done: always JSON, `{"error": "…"}`, whatever the path and whoever refuses."""

from __future__ import annotations

import logging

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from headrace.stages.error_text import describe_error

log = logging.getLogger(__name__)

_KEPT = {hdrs.ALLOW, hdrs.WWW_AUTHENTICATE}
"""Headers that belong to a refusal."""


def refusal(status: int, message: str) -> web.Response:
    """Return the answer that refuses a request."""
    return web.json_response({"error": message}, status=status)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raises into a refusal; what it did not expect is logged, and answered with 500."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        said = (error.text or "").removeprefix(f"{error.status}: ") or error.reason
        answer = refusal(error.status, said)
        for name in _KEPT & error.headers.keys():
            answer.headers[name] = error.headers[name]
        return answer
    except ConnectionResetError:  # the caller has gone, and reads no answer
        raise
    except Exception as error:
        log.error("%s %s could not be answered: %s", request.method, request.path, describe_error(error))
        log.debug("where it was raised:", exc_info=True)
        return refusal(500, f"this is a fault of the server: {describe_error(error)}")
