"""The policy server's pages: an index of the models with a command to try each one, and the API documentation."""

from __future__ import annotations

import json
import shlex
from html import escape
from importlib.resources import files
from math import prod
from typing import Any

from aiohttp import web

from headrace.pipeline.serving.kserve import OpenInference
from headrace.pipeline.web.guards import bears_token
from headrace.pipeline.web.site import file_routes

STYLE = "/style.css"
"""URL path of the pages' style sheet."""
_MOST_SHOWN = 24
"""Maximum size of an observation that an example writes out; for larger ones, the example creates the zeros in Python.
"""
_LINKS = (("docs", "API"), ("api/openapi.json", "OpenAPI"), ("metrics", "metrics"), ("healthz", "health"))


def page_routes(protocol: OpenInference, document: dict[str, Any]) -> list[web.RouteDef]:
    """Return the routes of the pages.

    Args:
        protocol: provides the models.
        document: the API's OpenAPI document.
    """

    async def index(request: web.Request) -> web.Response:
        text = index_page(protocol, f"{request.scheme}://{request.host}", bears_token(request))
        return web.Response(text=text, content_type="text/html")

    async def docs(_: web.Request) -> web.Response:
        return web.Response(text=docs_page(document), content_type="text/html")

    folder = files("headrace.pipeline.serving").joinpath("page")
    return [web.get("/", index), web.get("/docs", docs), *file_routes(folder, {STYLE: "style.css"})]


def _page(title: str, body: list[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    lines = ["<!doctype html>", f'<html lang="en"><head>{head}<link rel="stylesheet" href="style.css"></head><body>']
    return "\n".join([*lines, f"<h1>{escape(title)}</h1>", *body, "</body></html>"])


def index_page(protocol: OpenInference, address: str, token: bool) -> str:
    """Return the page that lists all models.

    Args:
        protocol: provides the models.
        address: the server's URL, as the caller wrote it.
        token: True if calls need a token.
    """
    links = ", ".join(f'<a href="{path}">{text}</a>' for path, text in _LINKS)
    body = [f"<p>Send observations to a model to get actions. See also: {links}.</p>"]
    for plain in protocol.service.models():
        described = protocol.model(plain["name"])
        body.append(f"<h2>{escape(plain['name'])}</h2>")
        body.append(f"<p>{escape(plain['file'])}, version {plain['version']}, step {plain['step']}</p><ul>")
        for kind in ("inputs", "outputs"):
            for each in described[kind]:
                shape = ", ".join(map(str, each["shape"]))
                body.append(f"<li>{kind[:-1]} <code>{escape(each['name'])}</code> {each['datatype']} [{shape}]</li>")
        body.append(f"</ul><pre>{escape(_curl(described, plain['memory'], address, token))}</pre>")
    return _page("Headrace's policy server", body)


def _curl(model: dict[str, Any], memory: bool, address: str, token: bool) -> str:
    """Return a shell command that requests one agent's actions from a model, with zero observations and no masks."""
    inputs, code = [], []
    for each in model["inputs"]:
        if each["datatype"] != "BOOL":
            size = prod(each["shape"][1:])
            tensor = {"name": each["name"], "shape": [1, *each["shape"][1:]], "datatype": each["datatype"]}
            inputs.append({**tensor, "data": [0] * min(size, _MOST_SHOWN + 1)})
            code.append(f'{json.dumps(tensor)[:-1]}, "data": [0] * {size}}}')
    asked: dict[str, Any] = {"parameters": {"sequence_id": "me", "sequence_start": True}} if memory else {}
    url = shlex.quote(f"{address}/v2/models/{model['name']}/infer")
    bearer = ' -H "Authorization: Bearer $HEADRACE_TOKEN"' if token else ""
    if all(len(each["data"]) <= _MOST_SHOWN for each in inputs):
        return f"curl{bearer} -d {shlex.quote(json.dumps({**asked, 'inputs': inputs}))} {url}"
    made = f"import json; print(json.dumps(dict({asked!r}, inputs=[{', '.join(code)}])))"
    return f"python3 -c {shlex.quote(made)} | curl{bearer} -d @- {url}"


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
