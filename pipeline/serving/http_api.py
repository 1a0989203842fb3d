"""The policy server over HTTP: `/api/models…`, in JSON or msgpack, `/healthz` and `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
from aiohttp import hdrs, web
from pydantic import BaseModel, ConfigDict, Field

from headrace.pipeline.serving.action_request import MOST_AGENTS, read_action_request
from headrace.pipeline.serving.batcher import ActionAnswer
from headrace.pipeline.serving.metrics import CONTENT_TYPE
from headrace.pipeline.serving.refusal import ErrorKind, RequestRefused
from headrace.pipeline.serving.schema import schema
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web.bodies import MSGPACK, checked, read_plain
from headrace.pipeline.web.site import refusal

OPEN = frozenset({"/healthz"})
"""Paths that need no token."""

Handler = Callable[[web.Request], Awaitable[web.Response]]


class NewSession(BaseModel):
    """A session: what a model remembers of agents between requests."""

    model_config = ConfigDict(extra="forbid")

    agents: int = Field(1, ge=1, le=MOST_AGENTS, strict=True, description="Rows of each request of the session.")


def serving_routes(service: PolicyService) -> list[web.RouteDef]:
    """Return the routes of a policy server."""

    async def models(request: web.Request) -> web.Response:
        return _answer(request, {"models": service.models()})

    async def model(request: web.Request) -> web.Response:
        return _answer(request, service.model(request.match_info["model"]))

    async def act(request: web.Request) -> web.Response:
        name = request.match_info["model"]
        service.model(name)  # before a body is read for nothing
        plain = await read_plain(request)
        answer = await service.act(name, lambda spec: read_action_request(spec, plain))
        return _answer(request, _plain_of(answer))

    async def open_session(request: web.Request) -> web.Response:
        wanted = checked(await read_plain(request), NewSession) if request.can_read_body else NewSession(agents=1)
        key = service.open_session(request.match_info["model"], wanted.agents)
        return _answer(request, {"session": key, "agents": wanted.agents}, 201)

    async def close_session(request: web.Request) -> web.Response:
        service.close_session(request.match_info["model"], request.match_info["session"])
        return _answer(request, {"done": True})

    async def describe(request: web.Request) -> web.Response:
        return _answer(request, schema(NewSession.model_json_schema()))

    async def health(_: web.Request) -> web.Response:
        if service.ending:
            raise RequestRefused(ErrorKind.ENDING, "the server ends")
        return web.json_response({"status": "serving"})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=service.tally.text(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})

    one = "/api/models/{model}"
    return [
        web.get("/api/models", _refusing(models)),
        web.get(one, _refusing(model)),
        web.post(f"{one}/act", _refusing(act)),
        web.post(f"{one}/sessions", _refusing(open_session)),
        web.delete(f"{one}/sessions/{{session}}", _refusing(close_session)),
        web.get("/api/openapi.json", _refusing(describe)),
        web.get("/healthz", _refusing(health)),
        web.get("/metrics", _refusing(metrics)),
    ]


def _refusing(handler: Handler) -> Handler:
    """Return a handler that answers refusals with their status."""

    async def respond(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except RequestRefused as refused:
            answer = refusal(refused.why.http, str(refused))
            if refused.why is ErrorKind.OVERLOADED:
                answer.headers[hdrs.RETRY_AFTER] = "1"
            if refused.why is ErrorKind.ENDING:
                answer.force_close()
            return answer

    return respond


def _plain_of(answer: ActionAnswer) -> dict[str, Any]:
    actions, loaded = answer.actions, answer.loaded
    return {
        "continuous": actions.continuous.tolist(),
        "discrete": actions.discrete.tolist(),
        "version": loaded.version,
        "step": loaded.step,
    }


def _answer(request: web.Request, plain: Any, status: int = 200) -> web.Response:
    """Return plain data in the form that is asked for: the one of `Accept`, else that of the request's body."""
    accept = request.headers.get(hdrs.ACCEPT, "*/*")
    packed = request.content_type == MSGPACK if accept == "*/*" else MSGPACK in accept
    body: bytes = msgpack.packb(plain) if packed else json.dumps(plain, separators=(",", ":")).encode()
    return web.Response(
        body=body,
        status=status,
        content_type=MSGPACK if packed else "application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )
