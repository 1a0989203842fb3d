"""The KServe protocol over HTTP: `/v2…`, in JSON, possibly followed by tensor bytes (Triton's extension)."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import hdrs, web

from headrace.pipeline.serving.action_request import ErrorKind, RequestRefused, unfit
from headrace.pipeline.serving.kserve import InferAnswer, InferRequest, OpenInference
from headrace.pipeline.serving.refusals import refusing
from headrace.pipeline.web.site import checked, from_json, read_body

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header that contains the length of the JSON in bytes, if tensors follow the JSON."""


def open_inference_routes(protocol: OpenInference) -> list[web.RouteDef]:
    """Return the protocol's routes."""

    async def live(_: web.Request) -> web.Response:
        return _answer({"live": True})

    async def ready(_: web.Request) -> web.Response:
        if not protocol.ready:
            raise RequestRefused(ErrorKind.ENDING, "the server is shutting down")
        return _answer({"ready": True})

    async def server(_: web.Request) -> web.Response:
        return _answer(protocol.server())

    async def model(request: web.Request) -> web.Response:
        return _answer(protocol.model(*_named(request)))

    async def model_ready(request: web.Request) -> web.Response:
        protocol.loaded(*_named(request))
        await ready(request)
        return _answer({"name": request.match_info["model"], "ready": True})

    async def infer(request: web.Request) -> web.Response:
        name, version = _named(request)
        protocol.loaded(name, version)  # refuse an unknown model before reading the body
        asked = _read(await read_body(request), request.headers.get(HEADER_LENGTH))
        return _inferred(name, asked.id, await protocol.infer(name, version, asked))

    routes = [
        web.get("/v2", server),
        web.get("/v2/health/live", live),
        web.get("/v2/health/ready", refusing(ready, 400)),
    ]
    for one in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            web.get(one, refusing(model, 400)),
            web.get(f"{one}/ready", refusing(model_ready, 400)),
            web.post(f"{one}/infer", refusing(infer, 400)),
        ]
    return routes


def _named(request: web.Request) -> tuple[str, str]:
    return request.match_info["model"], request.match_info.get("version", "")


def _read(body: bytes, header_length: str | None) -> InferRequest:
    """Read a request from a body, with the tensors that follow the JSON.

    Raises:
        RequestRefused: if the tensors don't match the request.
        web.HTTPException: if the JSON is not a request.
    """
    length = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or int(header_length) > length:
            raise unfit(f"{HEADER_LENGTH}: {header_length} of {length} bytes; expected the length of the JSON")
        length = int(header_length)
    asked: InferRequest = checked(from_json(body[:length]), InferRequest)
    for tensor in asked.inputs:
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            continue
        if not isinstance(size, int) or size < 0 or tensor.data is not None:
            raise unfit(
                f"inputs.{tensor.name}.parameters.binary_data_size: {size!r}; expected a number of bytes after the "
                "JSON, and no 'data'"
            )
        if length + size > len(body):
            raise unfit(f"inputs.{tensor.name}: {size} bytes, but only {len(body) - length} remain after the JSON")
        tensor.data, length = body[length : length + size], length + size
    if length < len(body):
        raise unfit(f"the body has {len(body) - length} bytes more than the inputs' binary_data_size")
    return asked


def _inferred(name: str, identifier: str, answer: InferAnswer) -> web.Response:
    outputs, parts = [], []
    for each in answer.outputs:
        output: dict[str, Any] = {"name": each.name, "datatype": each.datatype, "shape": each.array.shape}
        if each.binary:
            parts.append(each.array.tobytes())
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = each.array.reshape(-1)
        outputs.append(output)
    plain = {"model_name": name, "model_version": answer.version, "outputs": outputs}
    if identifier:
        plain["id"] = identifier
    return _answer(plain, parts)


def _answer(plain: dict[str, Any], parts: list[bytes] | None = None) -> web.Response:
    body = orjson.dumps(plain, option=orjson.OPT_SERIALIZE_NUMPY)
    headers: dict[str, str] = {hdrs.CACHE_CONTROL: "no-store"}
    if not parts:
        return web.Response(body=body, content_type="application/json", headers=headers)
    headers[HEADER_LENGTH] = str(len(body))
    return web.Response(body=b"".join([body, *parts]), content_type="application/octet-stream", headers=headers)
