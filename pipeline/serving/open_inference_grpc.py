"""The Open Inference Protocol over gRPC: the methods of `proto/open_inference.proto`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from headrace.pipeline.serving.action_request import unfit
from headrace.pipeline.serving.grpc_messages import serving_messages
from headrace.pipeline.serving.open_inference import (
    DTYPES,
    InferAnswer,
    InferRequest,
    InputTensor,
    OpenInference,
    Parameters,
    RequestedOutput,
)

SERVICE = "inference.GRPCInferenceService"

message = serving_messages("open_inference", "inference").message
_response = {name: message(f"{name}Response") for name in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata")}
ModelMetadataResponse, ModelInferResponse = message("ModelMetadataResponse"), message("ModelInferResponse")

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Maps each datatype to the message field that contains a tensor's elements."""


def methods(protocol: OpenInference) -> dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]]:
    """Return the protocol's methods by name, each with its request class and its handler."""

    async def live(_: Any) -> Any:
        return _response["ServerLive"](live=True)

    async def ready(_: Any) -> Any:
        return _response["ServerReady"](ready=protocol.ready)

    async def model_ready(request: Any) -> Any:
        protocol.loaded(request.name, request.version)
        return _response["ModelReady"](ready=protocol.ready)

    async def server(_: Any) -> Any:
        return _response["ServerMetadata"](**protocol.server())

    async def model(request: Any) -> Any:
        return ModelMetadataResponse(**protocol.model(request.name, request.version))

    async def infer(request: Any) -> Any:
        asked = _asked(request)
        answer = await protocol.infer(request.model_name, request.model_version, asked)
        return _answered(request, answer)

    answers = {
        "ServerLive": live,
        "ServerReady": ready,
        "ModelReady": model_ready,
        "ServerMetadata": server,
        "ModelMetadata": model,
        "ModelInfer": infer,
    }
    return {name: (message(f"{name}Request"), method) for name, method in answers.items()}


def _asked(request: Any) -> InferRequest:
    """Convert a gRPC request to the model that both transports share.

    Raises:
        RequestRefused: if the request is malformed.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise unfit(f"raw_input_contents: has {len(raw)} entries for {len(request.inputs)} inputs")
    inputs = []
    for number, each in enumerate(request.inputs):
        if raw and each.HasField("contents"):
            raise unfit(f"inputs.{each.name}: has both contents and raw_input_contents; expected only one of them")
        inputs.append(
            InputTensor.model_construct(  # protobuf has checked the types
                name=each.name,
                datatype=each.datatype,
                shape=[*each.shape],
                parameters=_parameters(each.parameters),
                data=raw[number] if raw else _contents(each),
            )
        )
    outputs = [RequestedOutput(name=each.name, parameters=_parameters(each.parameters)) for each in request.outputs]
    parameters = _parameters(request.parameters)
    return InferRequest.model_construct(id=request.id, parameters=parameters, inputs=inputs, outputs=outputs or None)


def _contents(tensor: Any) -> Any:
    """Return a tensor's elements, from the message field for its datatype.

    Raises:
        RequestRefused: if this field has no elements, or other fields have some.
    """
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if tensor.datatype not in _CONTENTS or filled != [_CONTENTS[tensor.datatype]]:
        wanted = _CONTENTS.get(tensor.datatype, "raw_input_contents")
        raise unfit(f"inputs.{tensor.name}: has {' and '.join(filled) or 'no contents'}; expected {wanted}")
    elements = getattr(tensor.contents, filled[0])
    kind = np.float32 if tensor.datatype == "FP32" else None
    return np.array(elements, kind)


def _parameters(given: Any) -> Parameters:
    return {key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in given.items()}


def _answered(request: Any, answer: InferAnswer) -> Any:
    """Return an answer as a gRPC response, with tensors as bytes if the request's tensors were bytes."""
    response = ModelInferResponse(model_name=request.model_name, model_version=answer.version, id=request.id)
    for each in answer.outputs:
        output = response.outputs.add(name=each.name, datatype=each.datatype, shape=each.array.shape)
        if request.raw_input_contents:
            response.raw_output_contents.append(each.array.astype(DTYPES[each.datatype], copy=False).tobytes())
        else:
            getattr(output.contents, _CONTENTS[each.datatype]).extend(each.array.reshape(-1).tolist())
    return response
