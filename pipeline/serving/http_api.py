"""The policy server over HTTP: `/api/models…`, `/healthz`, `/metrics`, and the other routes."""

from __future__ import annotations

import json
import shlex
from html import escape
from importlib.resources import files
from math import prod
from typing import Any

from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from headrace.pipeline.serving.action_request import MOST_AGENTS, ActBody, ErrorKind, refusing
from headrace.pipeline.serving.kserve import OpenInference, add_open_inference
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web import HEALTH, READY, Api, bears_token, file_routes, json_response, read_json

STYLE = "/style.css"
"""URL path of the pages' style sheet."""
OPEN = {HEALTH, READY, "/v2/health/live", "/v2/health/ready", STYLE}
"""Paths that need no token."""


_REFUSALS = {
    400: "The body is malformed",
    401: "The token is missing or wrong",
    403: "The caller is from a different origin, or uses a host name that is not the server's",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body's content type is not supported",
    **{kind.http: kind.text for kind in ErrorKind},
}


class NewSession(BaseModel):
    """A request to open a session, which stores agents' memories between requests to a model."""

    model_config = ConfigDict(extra="forbid")

    agents: int = Field(
        1, ge=1, le=MOST_AGENTS, strict=True, description="Number of rows in each request of the session."
    )


class ActAnswer(BaseModel):
    """The answer to a request for agents' actions; describes what `act` sends."""

    continuous: list[list[float]] = Field(
        description="[agents, continuous actions] in the environment's units, from the model's `low` to its `high`."
    )
    discrete: list[list[int]] = Field(
        description="[agents, branches] index of the choice; the environment's number for index 0 is in `starts`."
    )
    version: int = Field(description="Version of the model: 1, then 2 when a newer file is loaded, …")
    step: int = Field(description="Steps that this version was trained for.")


def serving_routes(service: PolicyService) -> list[web.RouteDef]:
    """Return the policy server's HTTP routes."""

    async def models(_: web.Request) -> web.Response:
        return json_response({"models": [handler.model.plain() for handler in service.models.values()]})

    async def model(request: web.Request) -> web.Response:
        return json_response(service.find(request.match_info["model"]).model.plain())

    async def act(request: web.Request) -> web.Response:
        name = request.match_info["model"]
        service.find(name)  # refuse unknown models before reading the body
        body = await read_json(request, ActBody)
        answer = await service.act(name, body.read)
        plain = {
            "continuous": answer.actions.continuous.tolist(),
            "discrete": answer.actions.discrete.tolist(),
            "version": answer.loaded.version,
            "step": answer.loaded.step,
        }
        return json_response(plain)

    async def open_session(request: web.Request) -> web.Response:
        new = await read_json(request, NewSession) if request.can_read_body else NewSession(agents=1)
        sessions = service.find(request.match_info["model"]).sessions
        service.check_open()
        key = sessions.open(new.agents)
        return json_response({"session": key, "agents": new.agents}, 201)

    async def close_session(request: web.Request) -> web.Response:
        service.find(request.match_info["model"]).sessions.close(request.match_info["session"])
        return json_response({"done": True})

    async def health(_: web.Request) -> web.Response:
        service.check_open()
        return json_response({"status": "serving"})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=service.metrics.text(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    async def index(request: web.Request) -> web.Response:
        text = index_page(protocol, f"{request.scheme}://{request.host}", bears_token(request))
        return web.Response(text=text, content_type="text/html")

    async def docs(_: web.Request) -> web.Response:
        return web.Response(text=docs_page(api.document), content_type="text/html")

    protocol, one = OpenInference(service), "/api/models/{model}"
    api = Api("Headrace's policy server", _REFUSALS)
    api.add("GET", "/api/models", models, "The models")
    api.add("GET", one, refusing(model), "A model: its observations, its actions and their bounds")
    api.add("POST", f"{one}/act", refusing(act), "Actions for observations", ActBody, ActAnswer)
    api.add("POST", f"{one}/sessions", refusing(open_session), "Begin a session", NewSession, done=201)
    api.add("DELETE", f"{one}/sessions/{{session}}", refusing(close_session), "End a session")
    api.add("GET", HEALTH, refusing(health), "200 while the server answers requests, 503 while it shuts down")
    api.add("GET", READY, refusing(health), "The same, by the name that Kubernetes uses for readiness")
    api.add("GET", "/metrics", metrics, "Counts in Prometheus' text format")
    add_open_inference(api, protocol)
    folder = files("headrace.pipeline.serving").joinpath("page")
    pages = [web.get("/", index), web.get("/docs", docs), *file_routes(folder, {STYLE: "style.css"})]
    return [*pages, *api.routes]


_MOST_SHOWN = 24
"""Maximum size of an observation that an example writes out; for larger ones, the example creates the zeros in Python.
"""
_LINKS = (("docs", "API"), ("api/openapi.json", "OpenAPI"), ("metrics", "metrics"), ("healthz", "health"))


def _page(title: str, body: list[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    links = '<link rel="icon" href="data:,"><link rel="stylesheet" href="style.css">'  # else browsers ask for an icon
    top = f'<!doctype html>\n<html lang="en"><head>{head}{links}</head><body>'
    return "\n".join([top, f"<h1>{escape(title)}</h1>", *body, "</body></html>"])


def index_page(protocol: OpenInference, address: str, token: bool) -> str:
    """Return the page that lists all models.

    Args:
        protocol: provides the models.
        address: the server's URL, as the caller wrote it.
        token: True if calls need a token.
    """
    links = ", ".join(f'<a href="{path}">{text}</a>' for path, text in _LINKS)
    body = [f"<p>Send observations to a model to get actions. See also: {links}.</p>"]
    for handler in protocol.service.models.values():
        plain = handler.model.plain()
        described = protocol.model(plain["name"])
        body.append(f"<h2>{escape(plain['name'])}</h2>")
        body.append(f"<p>{escape(plain['file'])}, version {plain['version']}, step {plain['step']}</p><ul>")
        for kind in ("inputs", "outputs"):
            for tensor in described[kind]:
                shape = ", ".join(map(str, tensor["shape"]))
                body.append(
                    f"<li>{kind[:-1]} <code>{escape(tensor['name'])}</code> {tensor['datatype']} [{shape}]</li>"
                )
        body.append(f"</ul><pre>{escape(_curl(described, plain['memory'], address, token))}</pre>")
    return _page("Headrace's policy server", body)


def _curl(model: dict[str, Any], memory: bool, address: str, token: bool) -> str:
    """Return a shell command that requests one agent's actions from a model, with zero observations and no masks."""
    inputs, code = [], []
    for spec in model["inputs"]:
        if spec["datatype"] != "BOOL":
            size = prod(spec["shape"][1:])
            tensor = {"name": spec["name"], "shape": [1, *spec["shape"][1:]], "datatype": spec["datatype"]}
            inputs.append({**tensor, "data": [0] * min(size, _MOST_SHOWN + 1)})
            code.append(f'{json.dumps(tensor)[:-1]}, "data": [0] * {size}}}')
    parameters: dict[str, Any] = {"parameters": {"sequence_id": "me", "sequence_start": True}} if memory else {}
    url = shlex.quote(f"{address}/v2/models/{model['name']}/infer")
    bearer = ' -H "Authorization: Bearer $HEADRACE_TOKEN"' if token else ""
    if all(len(spec["data"]) <= _MOST_SHOWN for spec in inputs):
        return f"curl{bearer} -d {shlex.quote(json.dumps({**parameters, 'inputs': inputs}))} {url}"
    script = f"import json; print(json.dumps(dict({parameters!r}, inputs=[{', '.join(code)}])))"
    return f"python3 -c {shlex.quote(script)} | curl{bearer} -d @- {url}"


def docs_page(document: dict[str, Any]) -> str:
    """Return the API's OpenAPI document as an HTML page."""
    body = ['<p><a href="api/openapi.json">The API as an OpenAPI document</a></p>']
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>")
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                body.append(_details(f"Body: {kind}", content["schema"]))
            for status, answer in operation["responses"].items():
                text = f"{status}: {answer['description']}"
                if "content" in answer:
                    body.append(_details(text, answer["content"]["application/json"]["schema"]))
                else:
                    body.append(f'<p class="status">{escape(text)}</p>')
    body.append(_details("Schemas", document["components"]["schemas"]))
    return _page(document["info"]["title"], body)


def _details(summary: str, form: dict[str, Any]) -> str:
    text = escape(json.dumps(form, indent=1, ensure_ascii=False))
    return f"<details><summary>{escape(summary)}</summary><pre>{text}</pre></details>"
