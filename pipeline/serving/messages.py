"""The messages of the gRPC server, made at run time from the compiled `proto/policy_server.proto`."""

from __future__ import annotations

from importlib.resources import files

from headrace.stages.proto_messages import ProtoMessages

SERVICE = "headrace.v1.PolicyServer"

_message = ProtoMessages(
    files("headrace.pipeline.serving").joinpath("proto/policy_server.binpb").read_bytes(), "headrace.v1"
).message

ListModelsRequest = _message("ListModelsRequest")
ListModelsResponse = _message("ListModelsResponse")
ActRequest = _message("ActRequest")
ActResponse = _message("ActResponse")
OpenSessionRequest = _message("OpenSessionRequest")
OpenSessionResponse = _message("OpenSessionResponse")
CloseSessionRequest = _message("CloseSessionRequest")
CloseSessionResponse = _message("CloseSessionResponse")
