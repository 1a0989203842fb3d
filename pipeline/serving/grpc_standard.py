"""gRPC's standard services: health checks, for programs that supervise servers, and reflection, for tools.

gRPC defines both protocols. Reflection has two names; older tools know only the first one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf import descriptor_pb2

from headrace.pipeline.serving.action_request import ErrorKind, RequestRefused
from headrace.pipeline.serving.grpc_messages import described_files, serving_messages
from headrace.pipeline.serving.service import PolicyService

HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")

_health = serving_messages("health", "grpc.health.v1").message
HealthCheckRequest, HealthCheckResponse = _health("HealthCheckRequest"), _health("HealthCheckResponse")
_reflection = serving_messages("reflection", "grpc.reflection.v1").message
ServerReflectionRequest = _reflection("ServerReflectionRequest")
ServerReflectionResponse = _reflection("ServerReflectionResponse")
_NOT_FOUND, _UNIMPLEMENTED = 5, 12
"""gRPC status codes that reflection returns."""


def health_methods(service: PolicyService) -> dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]]:
    """Return the health methods by name, each with its request class and its handler."""

    async def check(request: Any) -> Any:
        if request.service and request.service not in _services():
            raise RequestRefused(ErrorKind.UNKNOWN, f"unknown service {request.service!r}")
        return HealthCheckResponse(status="NOT_SERVING" if service.ending else "SERVING")

    return {"Check": (HealthCheckRequest, check)}


def reflect(asked: Any) -> Any:
    """Answer a tool's request for descriptions of services and messages."""
    response = ServerReflectionResponse(valid_host=asked.host, original_request=asked)
    kind = asked.WhichOneof("message_request")
    if kind == "list_services":
        for name in _services():
            response.list_services_response.service.add(name=name)
        return response
    for file in described_files():
        if (kind == "file_by_filename" and file.name == asked.file_by_filename) or _holds(file, asked):
            response.file_descriptor_response.file_descriptor_proto.append(file.SerializeToString())
            return response
    response.error_response.error_code = _UNIMPLEMENTED if kind is None else _NOT_FOUND
    response.error_response.error_message = "there is no such description"
    return response


def _services() -> list[str]:
    return [f"{file.package}.{each.name}" for file in described_files() for each in file.service]


def _holds(file: descriptor_pb2.FileDescriptorProto, asked: Any) -> bool:
    """Return True if a file describes the requested service, method or message."""
    symbol = asked.file_containing_symbol
    parts = [*file.service, *file.message_type, *file.enum_type]
    return any(f"{symbol}.".startswith(f"{file.package}.{each.name}.") for each in parts)
