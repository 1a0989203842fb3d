"""The policy server over HTTP: `/api/models…`, in JSON or msgpack, `/healthz` and `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from headrace.pipeline.serving.action_request import KEYS, MOST_AGENTS, ErrorKind, RequestRefused, read_action_request
from headrace.pipeline.serving.batcher import ActionAnswer
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web.site import MSGPACK, checked, read_plain, refusal

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
        body = await read_plain(request)
        answer = await service.act(name, lambda spec: read_action_request(spec, body))
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
        return web.Response(body=service.tally.text(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

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
            if refused.why in (ErrorKind.OVERLOADED, ErrorKind.FULL):
                answer.headers[hdrs.RETRY_AFTER] = "1"
            if refused.why is ErrorKind.ENDING:
                answer.force_close()
            return answer

    return respond


def _plain_of(answer: ActionAnswer) -> dict[str, Any]:
    return {
        "continuous": answer.actions.continuous.tolist(),
        "discrete": answer.actions.discrete.tolist(),
        "version": answer.loaded.version,
        "step": answer.loaded.step,
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


_ARRAY = {
    "description": "An array with a row per agent, as nested lists; or its bytes in the observation's dtype "
    "(little-endian, row by row): of msgpack's type bin, or in JSON as base64.",
    "oneOf": [{"type": "array", "items": {}}, {"type": "string", "contentEncoding": "base64"}],
}
_ROWS = {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}
_PURPOSES: dict[str, dict[str, Any]] = {
    "observations": {
        "description": "By name, or in the order of the model's observations.",
        "oneOf": [
            {"type": "object", "additionalProperties": _ARRAY},
            {"type": "array", "items": _ARRAY},
        ],
    },
    "masks": {**_ROWS, "description": "[agents, sum of branches] true = allowed; none: all are."},
    "deterministic": {"type": "boolean", "description": "The mean and the most likely choice instead of a sample."},
    "session": {"type": "string", "description": "Id of the session that remembers for these agents."},
    "episode_start": {
        "type": "array",
        "items": {"type": "boolean"},
        "description": "[agents] true where an agent's episode begins: the session forgets what it remembered of it.",
    },
}
_REQUEST = {
    "type": "object",
    "additionalProperties": False,
    "required": ["observations"],
    "properties": {key: _PURPOSES[key] for key in KEYS},
}
_ANSWER = {
    "type": "object",
    "properties": {
        "continuous": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "number"}},
            "description": "[agents, continuous actions] as the environment receives them.",
        },
        "discrete": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer"}},
            "description": "[agents, branches] index of the choice.",
        },
        "version": {"type": "integer", "description": "Number of the model's file: 1, 2 after a newer one, …"},
        "step": {"type": "integer", "description": "Steps that it had learned from."},
    },
}
_REFUSALS = {
    "400": "The body is no JSON or msgpack",
    "401": "The token is missing or wrong",
    "403": "The caller is of another origin, or calls the server by a name that is not its",
    "404": "No such model or session",
    "408": "The body did not arrive in time",
    "409": "Another request of the session is not answered yet",
    "413": "The body is too large",
    "415": "The body is of another type",
    "422": "The body does not fit the model; the message says what was expected",
    "429": "Too many sessions are open, or too many agents are in them",
    "503": "Too many requests wait, or the server ends",
    "504": "There was no decision in time",
}


def schema(session: dict[str, Any]) -> dict[str, Any]:
    """Return the API as an OpenAPI document.

    Args:
        session: the schema of a new session.
    """
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    key = {**model, "name": "session"}
    one = "/api/models/{model}"
    paths = {
        "/api/models": {"get": _operation("The models")},
        one: {"get": _operation("A model: its observations and actions", [model])},
        f"{one}/act": {"post": _operation("Actions for observations", [model], _REQUEST, _ANSWER)},
        f"{one}/sessions": {"post": _operation("Begin a session", [model], session, done="201")},
        f"{one}/sessions/{{session}}": {"delete": _operation("End a session", [model, key])},
        "/healthz": {"get": _operation("200 while requests are answered, 503 when the server ends")},
        "/metrics": {"get": _operation("Counts in Prometheus' text format")},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace's policy server", "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(
    summary: str,
    parameters: list[dict[str, Any]] | None = None,
    body: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    done: str = "200",
) -> dict[str, Any]:
    responses: dict[str, Any] = {done: {"description": "Done"}}
    responses |= {status: {"description": text} for status, text in _REFUSALS.items()}
    if answer is not None:
        responses[done]["content"] = _content(answer)
    operation: dict[str, Any] = {"summary": summary, "responses": responses, "security": [{"token": []}, {}]}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": body is _REQUEST, "content": _content(body)}
    return operation


def _content(form: dict[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": form} for kind in ("application/json", "application/msgpack")}
