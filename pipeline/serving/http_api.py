"""The policy server over HTTP: `/api/models…`, `/healthz`, `/metrics`, and the other routes."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from headrace.pipeline.serving.action_request import MOST_AGENTS, ErrorKind, RequestRefused, read_action_request
from headrace.pipeline.serving.batcher import ActionAnswer
from headrace.pipeline.serving.kserve import InferRequest, OpenInference
from headrace.pipeline.serving.kserve_http import open_inference_routes
from headrace.pipeline.serving.openapi import schema
from headrace.pipeline.serving.pages import STYLE, page_routes
from headrace.pipeline.serving.refusals import refusing
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web.site import HEALTH, read_json, read_plain

OPEN = {HEALTH, "/v2/health/live", "/v2/health/ready", STYLE}
"""Paths that need no token."""


class NewSession(BaseModel):
    """A request to open a session, which stores agents' memories between requests to a model."""

    model_config = ConfigDict(extra="forbid")

    agents: int = Field(
        1, ge=1, le=MOST_AGENTS, strict=True, description="Number of rows in each request of the session."
    )


def serving_routes(service: PolicyService) -> list[web.RouteDef]:
    """Return the policy server's HTTP routes."""

    async def models(_: web.Request) -> web.Response:
        return _answer({"models": service.models()})

    async def model(request: web.Request) -> web.Response:
        return _answer(service.model(request.match_info["model"]))

    async def act(request: web.Request) -> web.Response:
        name = request.match_info["model"]
        service.loaded(name)  # refuse unknown models before reading the body
        body = await read_plain(request)
        answer = await service.act(name, lambda spec: read_action_request(spec, body))
        return _answer(_plain_of(answer))

    async def open_session(request: web.Request) -> web.Response:
        wanted = await read_json(request, NewSession) if request.can_read_body else NewSession(agents=1)
        key = service.open_session(request.match_info["model"], wanted.agents)
        return _answer({"session": key, "agents": wanted.agents}, 201)

    async def close_session(request: web.Request) -> web.Response:
        service.close_session(request.match_info["model"], request.match_info["session"])
        return _answer({"done": True})

    async def describe(_: web.Request) -> web.Response:
        return _answer(document)

    async def health(_: web.Request) -> web.Response:
        if service.ending:
            raise RequestRefused(ErrorKind.ENDING, "the server is shutting down")
        return web.json_response({"status": "serving"})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=service.tally.text(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    document = schema(NewSession.model_json_schema(), InferRequest.model_json_schema())
    protocol, one = OpenInference(service), "/api/models/{model}"
    return [
        web.get("/api/models", refusing(models)),
        web.get(one, refusing(model)),
        web.post(f"{one}/act", refusing(act)),
        web.post(f"{one}/sessions", refusing(open_session)),
        web.delete(f"{one}/sessions/{{session}}", refusing(close_session)),
        web.get("/api/openapi.json", refusing(describe)),
        web.get(HEALTH, refusing(health)),
        web.get("/metrics", refusing(metrics)),
        *page_routes(protocol, document),
        *open_inference_routes(protocol),
    ]


def _plain_of(answer: ActionAnswer) -> dict[str, Any]:
    return {
        "continuous": answer.actions.continuous.tolist(),
        "discrete": answer.actions.discrete.tolist(),
        "version": answer.loaded.version,
        "step": answer.loaded.step,
    }


def _answer(plain: Any, status: int = 200) -> web.Response:
    headers = {hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=orjson.dumps(plain), status=status, content_type="application/json", headers=headers)
