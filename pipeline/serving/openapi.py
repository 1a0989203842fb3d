"""The policy server's API description (OpenAPI)."""

from __future__ import annotations

from typing import Any

from headrace.pipeline.serving.action_request import KEYS

_ARRAY = {
    "description": "An array with a row per agent, as nested lists; or its bytes in the observation's dtype "
    "(little-endian, row by row) as base64.",
    "oneOf": [{"type": "array", "items": {}}, {"type": "string", "contentEncoding": "base64"}],
}


def _rows(kind: str, text: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "array", "items": {"type": kind}}, "description": text}


_PURPOSES: dict[str, dict[str, Any]] = {
    "observations": {
        "description": "By name, or in the order of the model's observations.",
        "oneOf": [{"type": "object", "additionalProperties": _ARRAY}, {"type": "array", "items": _ARRAY}],
    },
    "masks": _rows(
        "boolean", "[agents, sum of branches] true where the action is allowed; if missing, all actions are allowed."
    ),
    "deterministic": {
        "type": "boolean",
        "description": "Return the mean or the most likely choice instead of a sample.",
    },
    "session": {"type": "string", "description": "Id of the session that holds the memory of these agents."},
    "episode_start": {
        "type": "array",
        "items": {"type": "boolean"},
        "description": "[agents] true where an agent's episode begins: the session clears its memory of this agent.",
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
        "continuous": _rows(
            "number", "[agents, continuous actions] in the environment's units, from the model's `low` to its `high`."
        ),
        "discrete": _rows(
            "integer", "[agents, branches] index of the choice; the environment's number for index 0 is in `starts`."
        ),
        "version": {"type": "integer", "description": "Version of the model: 1, then 2 when a newer file is loaded, …"},
        "step": {"type": "integer", "description": "Steps that this version was trained for."},
    },
}
_REFUSALS = {
    "400": "The body is not JSON",
    "401": "The token is missing or wrong",
    "403": "The caller is from a different origin, or uses a host name that is not the server's",
    "404": "Unknown model or session",
    "408": "The body did not arrive in time",
    "409": "Another request of the session has not been answered yet",
    "413": "The body is too large",
    "415": "The body's content type is not supported",
    "422": "The body does not fit the model; the message says what was expected",
    "429": "Too many sessions are open, or too many agents are in them",
    "503": "Too many requests are waiting, or the server is shutting down",
    "504": "No decision was made in time",
}


def schema(session: dict[str, Any], infer: dict[str, Any]) -> dict[str, Any]:
    """Return the API as an OpenAPI document.

    Args:
        session: the schema of a request for a new session.
        infer: the schema of a request for inference in KServe's protocol.
    """
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    key, version = {**model, "name": "session"}, {**model, "name": "version"}
    one, v2 = "/api/models/{model}", "KServe: "
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("/api/models", "get", _operation("The models")),
        (one, "get", _operation("A model: its observations, its actions and their bounds", [model])),
        (f"{one}/act", "post", _operation("Actions for observations", [model], _REQUEST, _ANSWER)),
        (f"{one}/sessions", "post", _operation("Begin a session", [model], session, done="201")),
        (f"{one}/sessions/{{session}}", "delete", _operation("End a session", [model, key])),
        ("/healthz", "get", _operation("200 while the server answers requests, 503 while it shuts down")),
        ("/metrics", "get", _operation("Counts in Prometheus' text format")),
        ("/v2", "get", _operation(f"{v2}the server and its extensions")),
        ("/v2/health/live", "get", _operation(f"{v2}200 while the server runs")),
        ("/v2/health/ready", "get", _operation(f"{v2}200 while requests are answered")),
    ]
    definitions = infer.pop("$defs", {})
    for at, which in ((f"/v2{one[4:]}", [model]), (f"/v2{one[4:]}/versions/{{version}}", [model, version])):
        rows += [
            (at, "get", _operation(f"{v2}a model's inputs and outputs", which)),
            (f"{at}/ready", "get", _operation(f"{v2}200 while the model answers", which)),
            (f"{at}/infer", "post", _operation(f"{v2}actions for observations", which, infer)),
        ]
    paths = {path: {method: operation} for path, method, operation in rows}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace's policy server", "version": "1"},
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
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
        operation["requestBody"] = {"required": "required" in body, "content": _content(body)}
    return operation


def _content(form: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": form}}
