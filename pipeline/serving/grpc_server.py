"""The policy server over gRPC: the services of `proto/*.proto`.

The message classes are created at run time from the compiled files next to the `.proto` files. `open_inference_grpc.py`
answers the Open Inference Protocol, and `grpc_standard.py` answers health and reflection.
"""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError

from headrace.pipeline.serving import grpc_standard, open_inference_grpc
from headrace.pipeline.serving.action_request import (
    ActionRequest,
    ErrorKind,
    RequestRefused,
    by_spec,
    make_action_request,
    observation_array,
    observation_from_values,
    unfit,
)
from headrace.pipeline.serving.gathering import Gathering
from headrace.pipeline.serving.grpc_messages import serving_messages
from headrace.pipeline.serving.open_inference import OpenInference
from headrace.pipeline.serving.service import PolicyService
from headrace.pipeline.web.guards import has_token
from headrace.pipeline.web.site import BODY_S
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.admission import Admission
from headrace.stages.connections import HEADER_S, within_open_files
from headrace.stages.listening import add_grpc_port, find_port

SERVICE = "headrace.v1.PolicyServer"

_message = serving_messages("policy_server", "headrace.v1").message

ListModelsRequest = _message("ListModelsRequest")
ListModelsResponse = _message("ListModelsResponse")
ActRequest = _message("ActRequest")
ActResponse = _message("ActResponse")
OpenSessionRequest = _message("OpenSessionRequest")
OpenSessionResponse = _message("OpenSessionResponse")
CloseSessionRequest = _message("CloseSessionRequest")
CloseSessionResponse = _message("CloseSessionResponse")

_OPTIONS = {
    "grpc.server_handshake_timeout_ms": int(1000 * HEADER_S),  # for the HTTP/2 handshake
    "grpc.max_connection_idle_ms": 30_000,  # idle time; clients reconnect by themselves
    "grpc.max_concurrent_streams": 1024,  # per connection, including calls just answered; excess calls get UNAVAILABLE
    "grpc.server.max_pending_requests": 1024,  # calls that arrived but are unread; excess calls get CANCELLED
    "grpc.server.max_pending_requests_hard_limit": 1024,
    "grpc.so_reuseport": 0,  # otherwise, two servers could listen on one port and share its calls at random
}
MOST_UNDER_WAY = 64
"""Maximum number of calls that are read but not answered, lower while answers are slow (`Admission`). Excess calls are
refused."""
REFUSED_S = 1.0
"""Minimum number of seconds before an excess call is refused. The delay is random, up to twice as long: callers retry
immediately, and a refusal costs gRPC as much as an answer."""
_QUIET_S = 0.1
"""Seconds without a new call after which all calls that have arrived count as read."""

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Method = Callable[[Any], Awaitable[Any]]
Methods = dict[str, tuple[Any, Method]]
_OPEN = ("ServerLive", "ServerReady", "Check")
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
        self._gathering = Gathering()
        self._admission = Admission(MOST_UNDER_WAY, time.monotonic, service.aim_s)
        self.port = 0

    async def start(self, ports: Sequence[int]) -> None:
        """Listen on the first of these ports that is free.

        Raises:
            OSError: if the server can't listen; `strerror` gives the address and the reason.
        """
        reason = OSError(errno.EADDRINUSE, "another program is using it")
        for wanted in ports:
            try:
                port, hosts = find_port(self._listen, wanted)
            except OSError as error:
                reason = error
                continue
            server = self._make_server()
            if add_grpc_port(server, port, hosts):
                await server.start()
                self._server, self.port = server, port
                return
        raise OSError(reason.errno, f"can't listen on {self._listen}:{ports[-1]} for gRPC: {reason.strerror}")

    async def read_all(self, patience_s: float) -> None:
        """Wait up to `patience_s` until all calls that have arrived are read. `stop` would cancel unread calls."""
        if self._server is None:
            return
        seen, end = -1, asyncio.get_running_loop().time() + patience_s
        while seen != self._gathering.arrived and asyncio.get_running_loop().time() < end:
            seen = self._gathering.arrived
            await asyncio.sleep(_QUIET_S)

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls, and end those not answered within `grace_s`; may be called more than once."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)

    def _make_server(self) -> grpc.aio.Server:
        options = (
            ("grpc.max_receive_message_length", self._most_bytes),
            ("grpc.max_allowed_incoming_connections", within_open_files(self._most_calls)),
            *_OPTIONS.items(),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._most_calls)
        services: dict[str, Methods] = {
            SERVICE: {
                "ListModels": (ListModelsRequest, self._list),
                "Act": (ActRequest, self._act),
                "OpenSession": (OpenSessionRequest, self._open),
                "CloseSession": (CloseSessionRequest, self._close),
            },
            open_inference_grpc.SERVICE: open_inference_grpc.methods(OpenInference(self._service)),
            grpc_standard.HEALTH: grpc_standard.health_methods(self._service),
        }
        # No deserializers, because gRPC would report a caller's malformed message as the server's fault. Each call is a
        # stream of one message, which is read here, because gRPC itself would wait for it forever.
        generic = [
            grpc.method_handlers_generic_handler(
                service,
                {
                    name: grpc.stream_unary_rpc_method_handler(self._answering(kind, method, name in _OPEN))
                    for name, (kind, method) in methods.items()
                },
            )
            for service, methods in services.items()
        ]
        reflection = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self._reflect)}
        generic += [grpc.method_handlers_generic_handler(name, reflection) for name in grpc_standard.REFLECTIONS]
        server.add_generic_rpc_handlers(generic)
        return server

    async def _check_token(self, context: _Context) -> None:
        if self._token and not self._is_authorized(context):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed: authorization: Bearer TOKEN")

    async def _reflect(self, _: Any, context: _Context) -> None:
        """Answer a tool's requests for descriptions until the tool ends the stream."""
        await self._check_token(context)
        try:
            while (message := await self._message(context, last=True)) is not None:
                asked = _parsed(grpc_standard.ServerReflectionRequest, message)
                await context.write(grpc_standard.reflect(asked).SerializeToString())
        except RequestRefused as refused:
            await context.abort(grpc.StatusCode[refused.why.grpc], str(refused))

    def _answering(self, kind: Any, method: Method, is_open: bool) -> Callable[[Any, _Context], Awaitable[bytes]]:
        """Return a method's handler, which checks the token, reads the message and sends refusals."""

        async def answer(_: Any, context: _Context) -> bytes:
            self._gathering.arrived += 1
            try:
                if is_open:
                    response = await method(_parsed(kind, await self._message(context)))
                else:
                    await self._check_token(context)
                    response = await self._admitted(kind, method, context)
            except RequestRefused as refused:
                await context.abort(grpc.StatusCode[refused.why.grpc], str(refused))
            found: bytes = response.SerializeToString()
            return found

        return answer

    async def _admitted(self, kind: Any, method: Method, context: _Context) -> Any:
        """Answer a call together with others that arrived at the same time; refuse it if too many are in progress."""
        await self._refuse_excess()
        message = await self._message(context)
        await self._refuse_excess()  # other calls may have begun in the meantime
        begun = self._admission.begin()
        try:
            await self._gathering.wait()
            return await method(_parsed(kind, message))
        finally:
            self._admission.end(begun)

    async def _refuse_excess(self) -> None:
        if self._admission.full and not self._service.ending:
            under_way = self._admission.under_way
            self._service.tally.turned_away()
            await asyncio.sleep(random.uniform(REFUSED_S, 2 * REFUSED_S))
            raise RequestRefused(ErrorKind.OVERLOADED, f"{under_way} calls are in progress; try again later")

    async def _message(self, context: _Context, last: bool = False) -> Any:
        """Return the stream's next message; if `last` is True, None at the end of the stream."""
        try:
            async with asyncio.timeout(BODY_S):
                message: Any = await context.read()
        except TimeoutError:
            raise RequestRefused(ErrorKind.MALFORMED, f"the message did not arrive within {BODY_S:g} s") from None
        if message is not grpc.aio.EOF:
            return bytes(message)
        if last:
            return None
        if context.peer():
            raise RequestRefused(ErrorKind.MALFORMED, "the request has no message")
        raise RequestRefused(ErrorKind.OVERLOADED, f"the message is larger than {self._most_bytes:,} bytes")

    def _is_authorized(self, context: _Context) -> bool:
        found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        return len(found) == 1 and isinstance(found[0], str) and has_token(found[0], self._token)

    async def _list(self, _: Any) -> Any:
        response = ListModelsResponse()
        for model in self._service.models():
            actions = model["actions"]
            listed = response.models.add(
                **{key: model[key] for key in ("name", "behavior", "memory", "version", "step")},
                **{key: actions[key] for key in ("continuous_size", "discrete_branches", "masked")},
            )
            for observation in model["observations"]:
                listed.observations.add(**observation)
        return response

    async def _act(self, request: Any) -> Any:
        answer = await self._service.act(request.model, lambda spec: _action_request(spec, request))
        actions, loaded = answer.actions, answer.loaded
        return ActResponse(
            agents=len(actions.continuous),
            continuous=actions.continuous.reshape(-1).tolist(),
            discrete=actions.discrete.reshape(-1).tolist(),
            version=loaded.version,
            step=loaded.step,
        )

    async def _open(self, request: Any) -> Any:
        return OpenSessionResponse(session=self._service.open_session(request.model, request.agents or 1))

    async def _close(self, request: Any) -> Any:
        self._service.close_session(request.model, request.session)
        return CloseSessionResponse()


def _parsed(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise RequestRefused(
            ErrorKind.MALFORMED, f"the message is not a valid {kind.DESCRIPTOR.name}: {error}"
        ) from None


def _action_request(spec: BehaviorSpec, request: Any) -> ActionRequest:
    """Read a request for actions from its gRPC message.

    Raises:
        RequestRefused: if the request does not fit the model.
    """
    parts = request.observations
    named = {each.name: each for each in parts}
    if ("" in named and len(named) > 1) or ("" not in named and len(named) < len(parts)):
        raise unfit("observations: either give each observation a different name, or leave all names empty")
    observations = [_observation(each, one) for each, one in by_spec(spec, [*parts] if "" in named else named)]
    width, n = spec.actions.mask_size, len(observations[0])
    masks = np.asarray(request.masks, np.bool_) if request.masks else None
    if masks is not None and width and len(masks) % width == 0:
        masks = masks.reshape(-1, width)
    return make_action_request(
        spec,
        observations,
        masks=masks,
        deterministic=request.deterministic if request.HasField("deterministic") else None,
        session=request.session,
        episode_start=np.asarray(request.episode_start, np.bool_) if n and request.episode_start else None,
    )


def _observation(spec: ObservationSpec, part: Any) -> Array:
    if part.data:
        if part.values:
            raise unfit(f"observations.{spec.name}: has both values and data; expected only one of them")
        return observation_array(spec, part.data)
    return observation_from_values(spec, np.asarray(part.values, np.float32))
