"""Message classes for the policy server's gRPC services, made from compiled descriptions."""

from __future__ import annotations

from importlib.resources import files

from google.protobuf import descriptor_pb2

from headrace.stages.proto_messages import ProtoMessages

_FILES: dict[str, ProtoMessages] = {}


def serving_messages(name: str, package: str) -> ProtoMessages:
    """Return the message classes for a file in `proto/`."""
    compiled = files("headrace.pipeline.serving").joinpath(f"proto/{name}.binpb").read_bytes()
    return _FILES.setdefault(name, ProtoMessages(compiled, package))


def described_files() -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the descriptors of all `.proto` files in use."""
    return [file for messages in _FILES.values() for file in messages.files]
