"""The KServe protocol over gRPC: its server, and the methods of `proto/open_inference.proto`.

The message classes are created at run time from the compiled file next to the `.proto` file.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, TypeAlias

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError

from headrace.pipeline.serving.action_request import RequestRefused, unfit
from headrace.pipeline.serving.kserve import (
    DTYPES,
    InferRequest,
    InputTensor,
    OpenInference,
    OutputTensor,
    Parameters,
    RequestedOutput,
)
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web import has_token
from headrace.stages.listening import add_grpc_port, find_port
from headrace.stages.proto_messages import ProtoMessages
from headrace.startup_context import shortened

SERVICE = "inference.GRPCInferenceService"

_COMPILED = files("headrace.pipeline.serving").joinpath("proto/open_inference.binpb").read_bytes()
message = ProtoMessages(_COMPILED, "inference").message
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

_OPTIONS = {
    "grpc.server_handshake_timeout_ms": 5000,  # for the HTTP/2 handshake
    "grpc.max_connection_idle_ms": 30_000,  # idle time; clients reconnect by themselves
    "grpc.max_concurrent_streams": 1024,  # per connection, including calls just answered; excess calls get UNAVAILABLE
    "grpc.server.max_pending_requests": 1024,  # calls that arrived but are unread; excess calls get CANCELLED
    "grpc.server.max_pending_requests_hard_limit": 1024,
    "grpc.so_reuseport": 0,  # otherwise, two servers could listen on one port and share its calls at random
}

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Method = Callable[[Any], Awaitable[Any]]
_OPEN = ("ServerLive", "ServerReady")
"""Methods that need no token: the health methods."""


class GrpcServer:
    """Answers gRPC calls.

    Args:
        service: answers the requests.
        listen: address to listen on, as a `listen` value.
        token: the token that calls must send; empty if they need none.
        most_bytes: maximum size of a message in bytes.
        most_calls: maximum number of concurrent calls.

    Attributes:
        port: the port on which the server listens; 0 before `start`.
    """

    def __init__(self, service: PolicyService, listen: str, token: str, most_bytes: int, most_calls: int) -> None:
        self._service = service
        self._listen = listen
        self._token = token
        self._most_bytes = most_bytes
        self._most_calls = most_calls
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, ports: Sequence[int]) -> None:
        """Listen on the first of these ports that is free.

        Raises:
            OSError: if the server can't listen; `strerror` gives the address and the reason.
        """
        reason = OSError(errno.EADDRINUSE, "another program is using it")
        for candidate in ports:
            try:
                port, hosts = find_port(self._listen, candidate)
            except OSError as error:
                reason = error
                continue
            server = self._make_server()
            if add_grpc_port(server, port, hosts):
                await server.start()
                self._server, self.port = server, port
                return
        raise OSError(reason.errno, f"can't listen on {self._listen}:{ports[-1]} for gRPC: {reason.strerror}")

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls, and end those not answered within `grace_s`; may be called more than once."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)

    def _make_server(self) -> grpc.aio.Server:
        options = (
            ("grpc.max_receive_message_length", self._most_bytes),
            ("grpc.max_allowed_incoming_connections", self._most_calls),
            *_OPTIONS.items(),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._most_calls)
        # No deserializers, because gRPC would report a caller's malformed message as the server's fault.
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._answering(kind, method, name in _OPEN))
            for name, (kind, method) in _methods(OpenInference(self._service)).items()
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        return server

    def _answering(self, kind: Any, method: Method, is_open: bool) -> Callable[[Any, _Context], Awaitable[bytes]]:
        """Return a method's handler, which checks the token, reads the message and sends refusals."""

        async def answer(body: bytes, context: _Context) -> bytes:
            if self._token and not is_open and not self._is_authorized(context):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed: authorization: Bearer TOKEN")
            try:
                response = await method(kind.FromString(body))
            except DecodeError as error:
                text = f"the message is not a valid {kind.DESCRIPTOR.name}: {error}"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, shortened(text))
            except RequestRefused as refused:
                await context.abort(grpc.StatusCode[refused.why.grpc], shortened(str(refused)))
            encoded: bytes = response.SerializeToString()
            return encoded

        return answer

    def _is_authorized(self, context: _Context) -> bool:
        headers = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        return len(headers) == 1 and isinstance(headers[0], str) and has_token(headers[0], self._token)


def _methods(protocol: OpenInference) -> dict[str, tuple[Any, Method]]:
    """Return the protocol's methods by name, each with its request class and its handler."""

    async def live(_: Any) -> Any:
        return _response["ServerLive"](live=True)

    async def ready(_: Any) -> Any:
        return _response["ServerReady"](ready=not protocol.service.ending)

    async def model_ready(request: Any) -> Any:
        protocol.loaded(request.name, request.version)
        return _response["ModelReady"](ready=not protocol.service.ending)

    async def server(_: Any) -> Any:
        return _response["ServerMetadata"](**protocol.server())

    async def model(request: Any) -> Any:
        return ModelMetadataResponse(**protocol.model(request.name, request.version))

    async def infer(request: Any) -> Any:
        return _response_to(request, *await protocol.infer(request.model_name, request.model_version, _read(request)))

    answers = {
        "ServerLive": live,
        "ServerReady": ready,
        "ModelReady": model_ready,
        "ServerMetadata": server,
        "ModelMetadata": model,
        "ModelInfer": infer,
    }
    return {name: (message(f"{name}Request"), method) for name, method in answers.items()}


def _read(request: Any) -> InferRequest:
    """Convert a gRPC request to the model that both transports share.

    Raises:
        RequestRefused: if the request is malformed.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise unfit(f"raw_input_contents: has {len(raw)} entries for {len(request.inputs)} inputs")
    inputs = []
    for number, tensor in enumerate(request.inputs):
        if raw and tensor.HasField("contents"):
            raise unfit(f"inputs.{tensor.name}: has both contents and raw_input_contents; expected only one of them")
        inputs.append(
            InputTensor.model_construct(  # protobuf has checked the types
                name=tensor.name,
                datatype=tensor.datatype,
                shape=[*tensor.shape],
                parameters=_parameters(tensor.parameters),
                data=raw[number] if raw else _contents(tensor),
            )
        )
    outputs = [
        RequestedOutput(name=tensor.name, parameters=_parameters(tensor.parameters)) for tensor in request.outputs
    ]
    parameters = _parameters(request.parameters)
    return InferRequest.model_construct(id=request.id, parameters=parameters, inputs=inputs, outputs=outputs or None)


def _contents(tensor: Any) -> Any:
    """Return a tensor's elements, from the message field for its datatype.

    Raises:
        RequestRefused: if this field has no elements, or other fields have some.
    """
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if tensor.datatype not in _CONTENTS or filled != [_CONTENTS[tensor.datatype]]:
        expected = _CONTENTS.get(tensor.datatype, "raw_input_contents")
        raise unfit(f"inputs.{tensor.name}: has {' and '.join(filled) or 'no contents'}; expected {expected}")
    elements = getattr(tensor.contents, filled[0])
    kind = np.float32 if tensor.datatype == "FP32" else None
    return np.array(elements, kind)


def _parameters(parameters: Any) -> Parameters:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in parameters.items()
    }


def _response_to(request: Any, version: str, tensors: Sequence[OutputTensor]) -> Any:
    """Return an answer as a gRPC response, with tensors as bytes if the request's tensors were bytes."""
    response = ModelInferResponse(model_name=request.model_name, model_version=version, id=request.id)
    for tensor in tensors:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        if request.raw_input_contents:
            response.raw_output_contents.append(tensor.array.astype(DTYPES[tensor.datatype], copy=False).tobytes())
        else:
            getattr(output.contents, _CONTENTS[tensor.datatype]).extend(tensor.array.reshape(-1).tolist())
    return response
