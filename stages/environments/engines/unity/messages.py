"""The protocol's messages, made at run time from the compiled `proto/communicator_objects.proto`.

ML-Agents' own package can be imported in the same process. `make proto` recompiles the description.
"""

from __future__ import annotations

from importlib.resources import files

from headrace.stages.proto_messages import ProtoMessages

EXCHANGE = "/communicator_objects.UnityToExternalProto/Exchange"
"""The protocol's only method; requests and responses are `UnityMessageProto`."""
OK = 200
"""Header status of an ordinary exchange."""
CLOSE = 400
"""Header status that ends the connection; either side may send it."""
STEP, RESET, QUIT = 0, 1, 2
"""Values of `CommandProto`."""
NONE, PNG = 0, 1
"""Values of `CompressionTypeProto`."""
DEFAULT, GOAL_SIGNAL = 0, 1
"""Values of `ObservationTypeProto`."""


_message = ProtoMessages(
    files("headrace.stages.environments.engines.unity").joinpath("proto/communicator_objects.binpb").read_bytes(),
    "communicator_objects",
).message

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
AgentInfoActionPairProto = _message("AgentInfoActionPairProto")
BrainParametersProto = _message("BrainParametersProto")
ActionSpecProto = _message("ActionSpecProto")
ObservationProto = _message("ObservationProto")
DemonstrationMetaProto = _message("DemonstrationMetaProto")
