"""The KServe protocol (version 2, the Open Inference Protocol) for both transports: its messages and their handlers.

A model's inputs are its named observations, with a row per agent; `masks`, if it has action masks; and `episode_start`,
if it has a memory. Its outputs are the `continuous` and `discrete` actions. Request parameters extend the protocol:
`deterministic`, and Triton's sequences, which are sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

import numpy as np
from aiohttp import hdrs, web
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from headrace.config.errors import suggest
from headrace.pipeline.common.process import version_of
from headrace.pipeline.serving.action_request import (
    ActionRequest,
    ErrorKind,
    RequestRefused,
    flags,
    make_action_request,
    observation_array,
    refusing,
    unfit,
)
from headrace.pipeline.serving.served_models import LoadedModel
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web import Api, checked, from_json, json_response, read_body, to_json
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec

DTYPES = {
    "BOOL": "|b1",
    **{f"{sign}INT{8 * size}": f"<{sign.lower() or 'i'}{size}" for sign in ("U", "") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
"""The protocol's tensor datatypes, each with the NumPy dtype of its bytes."""
_DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
EXTENSIONS = ("binary_tensor_data", "sequence", "sequence(string_id)")
"""The protocol extensions that the server supports, by Triton's names."""
PARAMETERS = ("deterministic", "sequence_id", "sequence_start", "sequence_end", "binary_data_output")
"""Names of the parameters that a request may have."""

Parameters = dict[str, bool | int | float | str]
_STRICT = ConfigDict(extra="forbid", strict=True)


class InputTensor(BaseModel):
    """An input tensor in a request."""

    model_config = _STRICT

    name: str
    datatype: str = Field(
        description="For example FP32, UINT8 or BOOL; an input needs the type in the model's metadata."
    )
    shape: list[Annotated[int, Field(ge=0)]] = Field(description="The first dimension is the number of agents.")
    parameters: Parameters = {}
    data: Any = Field(None, description="The elements, as a nested or flat list.")
    """The elements: nested or flat lists, or bytes (little-endian, row by row)."""


class RequestedOutput(BaseModel):
    """An output tensor that a request names."""

    model_config = _STRICT

    name: str
    parameters: Parameters = {}


class InferRequest(BaseModel):
    """An inference request."""

    model_config = _STRICT

    id: str = ""
    parameters: Parameters = Field({}, description=f"Any of {', '.join(PARAMETERS)}.")
    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = Field(None, description="If absent, all outputs are returned.")


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output tensor in an answer."""

    name: str
    datatype: str
    array: Array
    binary: bool
    """True if the request wants the tensor as bytes."""


class _ModelTensors:
    """A model's inputs and outputs: their datatypes and shapes, keyed by name. In a shape, -1 is the number of agents.

    Args:
        spec: the model's spec.
        remembers: True if the model has a memory.
    """

    def __init__(self, spec: BehaviorSpec, remembers: bool) -> None:
        actions = spec.actions
        self.inputs: dict[str, tuple[str, list[int]]] = {}
        self.observations = [
            self._add(observation.name, _DATATYPES[np.dtype(observation.dtype)], *observation.shape)
            for observation in spec.observations
        ]
        self.masks = self._add("masks", "BOOL", actions.mask_size) if actions.masked else ""
        self.starts = self._add("episode_start", "BOOL") if remembers else ""
        self.outputs: dict[str, tuple[str, list[int]]] = {}
        if actions.continuous_size:
            self.outputs["continuous"] = ("FP32", [-1, actions.continuous_size])
        if actions.discrete_branches:
            self.outputs["discrete"] = ("INT64", [-1, len(actions.discrete_branches)])

    def _add(self, name: str, datatype: str, *shape: int) -> str:
        """Add an input and return its name, with underscores appended if the name is already in use."""
        while name in self.inputs:
            name += "_"
        self.inputs[name] = (datatype, [-1, *shape])
        return name

    def read(self, spec: BehaviorSpec, request: InferRequest) -> ActionRequest:
        """Convert an inference request to a request for actions.

        Raises:
            RequestRefused: if the request does not fit the model.
        """
        tensors = {tensor.name: tensor for tensor in request.inputs}
        if len(tensors) < len(request.inputs):
            raise unfit("inputs: give each input once")
        _check_names("inputs", tensors, self.inputs)
        _check_names("parameters", request.parameters, PARAMETERS)
        for name, tensor in tensors.items():
            _check_tensor(tensor, *self.inputs[name])
        observations = []
        for name, observation in zip(self.observations, spec.observations, strict=True):
            if name not in tensors:
                raise unfit(f"inputs.{name}: missing; available: {', '.join(self.inputs)}")
            observations.append(_observation(observation, tensors[name]))
        masks, starts = tensors.get(self.masks), tensors.get(self.starts)
        begins = _truth(request.parameters, "sequence_start")
        session = str(request.parameters.get("sequence_id", "") or "")
        if not session and "sequence_start" in request.parameters:
            raise unfit("parameters.sequence_start: needs a sequence_id, but none is given")
        return make_action_request(
            spec,
            observations,
            masks=None if masks is None else _flags(masks),
            deterministic=_truth(request.parameters, "deterministic"),
            session=session,
            episode_start=None if starts is None else _flags(starts),
            begins=bool(begins),
            ends=bool(_truth(request.parameters, "sequence_end")),
        )

    def binary_by_output(self, request: InferRequest) -> dict[str, bool]:
        """Return the requested outputs, keyed by name, with True for those requested as bytes.

        Raises:
            RequestRefused: if a requested output does not exist, or a requested option is not supported.
        """
        binary = bool(_truth(request.parameters, "binary_data_output"))
        if request.outputs is None:
            return dict.fromkeys(self.outputs, binary)
        outputs = {}
        _check_names("outputs", [output.name for output in request.outputs], self.outputs)
        for output in request.outputs:
            _check_names(f"outputs.{output.name}.parameters", output.parameters, ("binary_data",))
            as_bytes = _truth(output.parameters, "binary_data")
            outputs[output.name] = binary if as_bytes is None else as_bytes
        return outputs


class OpenInference:
    """Answers the protocol's requests.

    Args:
        service: answers the requests.
    """

    def __init__(self, service: PolicyService) -> None:
        self.service = service
        self._tensors: dict[str, _ModelTensors] = {}
        for name, handler in service.models.items():
            loaded = handler.model.newest
            self._tensors[name] = _ModelTensors(loaded.spec, bool(loaded.policy.memory_size))

    def server(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return {"name": "headrace", "version": version_of("headrace"), "extensions": list(EXTENSIONS)}

    def loaded(self, name: str, version: str = "") -> LoadedModel:
        """Return a model's loaded policy.

        Raises:
            RequestRefused: if the model or the version does not exist.
        """
        loaded = self.service.find(name).model.newest
        if version not in ("", str(loaded.version)):
            raise RequestRefused(
                ErrorKind.UNKNOWN,
                f"{name!r} has only version {loaded.version}, not {version!r}; omit the version to use the newest",
            )
        return loaded

    def model(self, name: str, version: str = "") -> dict[str, Any]:
        """Return a model's metadata; raise the same errors as `loaded`."""
        loaded, tensors = self.loaded(name, version), self._tensors[name]
        return {
            "name": name,
            "versions": [str(loaded.version)],
            "platform": "onnx_onnxv1" if loaded.path.suffix == ".onnx" else "headrace_policy",
            "inputs": _described(tensors.inputs),
            "outputs": _described(tensors.outputs),
        }

    async def infer(self, name: str, version: str, request: InferRequest) -> tuple[str, list[OutputTensor]]:
        """Answer an inference request with the version of the model and the output tensors.

        Raises:
            RequestRefused: if the request does not fit, or can't be answered now.
        """
        self.loaded(name, version)
        tensors = self._tensors[name]
        binary_by_output = tensors.binary_by_output(request)
        answer = await self.service.act(name, lambda spec: tensors.read(spec, request))
        actions: dict[str, Array] = {"continuous": answer.actions.continuous, "discrete": answer.actions.discrete}
        outputs = []
        for output, binary in binary_by_output.items():
            datatype = tensors.outputs[output][0]
            outputs.append(OutputTensor(output, datatype, actions[output].astype(DTYPES[datatype], copy=False), binary))
        return str(answer.loaded.version), outputs


def _described(tensors: Mapping[str, tuple[str, list[int]]]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in tensors.items()]


def _check_names(field: str, names: Sequence[str] | Mapping[str, Any], available: Any) -> None:
    for name in names:
        if name not in available:
            raise unfit(f"{field}: unknown name {name!r}{suggest(name, available)}; available: {', '.join(available)}")


def _check_tensor(tensor: InputTensor, datatype: str, shape: list[int]) -> None:
    field = f"inputs.{tensor.name}"
    for key, value in tensor.parameters.items():
        if key != "binary_data_size" and (key, value) != ("content_type", "np"):
            raise unfit(f"{field}.parameters.{key}: {value!r} is not supported")
    if tensor.datatype != datatype:
        raise unfit(f"{field}: the datatype is {tensor.datatype}; expected {datatype}")
    if len(tensor.shape) != len(shape) or tensor.shape[1:] != shape[1:]:
        raise unfit(f"{field}: the shape is {tensor.shape}; expected {shape}, where -1 is the number of agents")
    if tensor.data is None:
        raise unfit(f"{field}: the data is missing")


def _observation(spec: ObservationSpec, tensor: InputTensor) -> Array:
    array = observation_array(spec, tensor.data, flat=True)
    if len(array) != tensor.shape[0]:
        raise unfit(f"inputs.{tensor.name}: the data is for {len(array)} agents, but the shape is {tensor.shape}")
    return array


def _flags(tensor: InputTensor) -> NDArray[np.bool_]:
    field, data = f"inputs.{tensor.name}", tensor.data
    array = flags(np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data, field)
    assert array is not None, "the data is not None"
    if array.size != prod(tensor.shape):
        raise unfit(f"{field}: there are {array.size} elements, but the shape is {tensor.shape}")
    return array.reshape(tensor.shape)


def _truth(parameters: Parameters, key: str) -> bool | None:
    value = parameters.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise unfit(f"parameters.{key}: expected true or false, got {value!r}")


HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header that contains the length of the JSON in bytes, if tensors follow the JSON."""


def add_open_inference(api: Api, protocol: OpenInference) -> None:
    """Add the protocol's routes to an API."""

    async def live(_: web.Request) -> web.Response:
        return json_response({"live": True})

    async def ready(_: web.Request) -> web.Response:
        protocol.service.check_open()
        return json_response({"ready": True})

    async def server(_: web.Request) -> web.Response:
        return json_response(protocol.server())

    async def model(request: web.Request) -> web.Response:
        return json_response(protocol.model(*_named(request)))

    async def model_ready(request: web.Request) -> web.Response:
        protocol.loaded(*_named(request))
        await ready(request)
        return json_response({"name": request.match_info["model"], "ready": True})

    async def infer(request: web.Request) -> web.Response:
        name, version = _named(request)
        protocol.loaded(name, version)  # refuse an unknown model before reading the body
        infer_request = _read(await read_body(request), request.headers.get(HEADER_LENGTH))
        return _inferred(name, infer_request.id, *await protocol.infer(name, version, infer_request))

    api.add("GET", "/v2", server, "KServe: the server and its extensions")
    api.add("GET", "/v2/health/live", live, "KServe: 200 while the server runs")
    api.add("GET", "/v2/health/ready", refusing(ready, 400), "KServe: 200 while requests are answered")
    for one in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        api.add("GET", one, refusing(model, 400), "KServe: a model's inputs and outputs")
        api.add("GET", f"{one}/ready", refusing(model_ready, 400), "KServe: 200 while the model answers")
        api.add("POST", f"{one}/infer", refusing(infer, 400), "KServe: actions for observations", InferRequest)


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
    request: InferRequest = checked(from_json(body[:length]), InferRequest)
    for tensor in request.inputs:
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
    return request


def _inferred(name: str, identifier: str, version: str, tensors: Sequence[OutputTensor]) -> web.Response:
    outputs, parts = [], []
    for tensor in tensors:
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.array.shape}
        if tensor.binary:
            parts.append(tensor.array.tobytes())
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = tensor.array.reshape(-1)
        outputs.append(output)
    plain = {"model_name": name, "model_version": version, "outputs": outputs}
    if identifier:
        plain["id"] = identifier
    if not parts:
        return json_response(plain)
    head = to_json(plain)
    headers = {HEADER_LENGTH: str(len(head)), hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=b"".join([head, *parts]), content_type="application/octet-stream", headers=headers)
