"""The protocol's messages, made at run time from the compiled `proto/communicator_objects.proto`.

Code that protoc generates needs the versions of protobuf and grpcio that it was made with; a descriptor set works with
all. The classes are in a pool of their own, so ML-Agents' package can be imported too. `make proto` compiles
the set again.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

EXCHANGE = "/communicator_objects.UnityToExternalProto/Exchange"
"""The protocol's one method; requests and responses are `UnityMessageProto`."""
OK = 200
"""Header status of an exchange."""
CLOSE = 400
"""Header status by which either side ends the connection."""
STEP, RESET, QUIT = 0, 1, 2
"""`CommandProto`."""
NONE, PNG = 0, 1
"""`CompressionTypeProto`."""
DEFAULT, GOAL_SIGNAL = 0, 1
"""`ObservationTypeProto`."""


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    found = files("stages.unity").joinpath("proto/communicator_objects.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(found).file:
        pool.Add(file)
    return pool


_POOL = _load()
_CLASSES: list[Any] = []
"""Keeps the classes of nested messages: protobuf before 4.25 crashes after one was garbage collected."""


def _message(name: str) -> Any:
    descriptor = _POOL.FindMessageTypeByName(f"communicator_objects.{name}")
    _keep(descriptor)
    return message_factory.GetMessageClass(descriptor)


def _keep(descriptor: Any) -> None:
    made = message_factory.GetMessageClass(descriptor)
    if made not in _CLASSES:
        _CLASSES.append(made)
        for field in descriptor.fields:
            if field.message_type is not None:
                _keep(field.message_type)


UnityMessageProto = _message("UnityMessageProto")
UnityOutputProto = _message("UnityOutputProto")
UnityInputProto = _message("UnityInputProto")
UnityRLInitializationInputProto = _message("UnityRLInitializationInputProto")
UnityRLInitializationOutputProto = _message("UnityRLInitializationOutputProto")
UnityRLCapabilitiesProto = _message("UnityRLCapabilitiesProto")
UnityRLInputProto = _message("UnityRLInputProto")
UnityRLOutputProto = _message("UnityRLOutputProto")
AgentActionProto = _message("AgentActionProto")
ListAgentActionProto = _message("UnityRLInputProto.ListAgentActionProto")
AgentInfoProto = _message("AgentInfoProto")
ListAgentInfoProto = _message("UnityRLOutputProto.ListAgentInfoProto")
AgentInfoActionPairProto = _message("AgentInfoActionPairProto")
BrainParametersProto = _message("BrainParametersProto")
ActionSpecProto = _message("ActionSpecProto")
ObservationProto = _message("ObservationProto")
DemonstrationMetaProto = _message("DemonstrationMetaProto")
