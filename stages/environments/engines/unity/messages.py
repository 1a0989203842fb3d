"""The protocol's messages, made at run time from the compiled `proto/communicator_objects.proto`, and the handshake.

ML-Agents' own package can be imported in the same process. `make proto` recompiles the description. The handshake
consists of both sides' greetings, and the check of their versions.
"""

from __future__ import annotations

import logging
from importlib.resources import files
from typing import Any

from google.protobuf.message import DecodeError

from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.unity.versions import COMMUNICATION_VERSION, PACKAGE_VERSION
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
ObservationProto = _message("ObservationProto")
DemonstrationMetaProto = _message("DemonstrationMetaProto")


log = logging.getLogger(__name__)

CAPABILITIES = tuple(field.name for field in UnityRLCapabilitiesProto.DESCRIPTOR.fields)
"""The protocol's capabilities. Headrace supports all of them."""


def greeting_in(request: bytes) -> Any:
    """Return the greeting in a message, a `UnityRLInitializationOutputProto`; None if there is none."""
    message = _message_in(request)
    if message is None or not message.unity_output.HasField("rl_initialization_output"):
        return None
    return message.unity_output.rl_initialization_output


def asks_for_orders(request: bytes) -> bool:
    """Return True if the request is the empty call that follows a greeting."""
    message = _message_in(request)
    return message is not None and not message.HasField("unity_output")


def _message_in(request: bytes) -> Any:
    """Return the message in a request; None if it is garbage or its status isn't that of an open connection."""
    try:
        message = UnityMessageProto.FromString(request)
    except DecodeError:
        return None
    return message if message.header.status == OK else None


def our_greeting(seed: int, num_areas: int) -> Any:
    """Return our answer to Unity's greeting, a `UnityRLInitializationInputProto`."""
    return UnityRLInitializationInputProto(
        seed=seed,
        communication_version=COMMUNICATION_VERSION,
        package_version=PACKAGE_VERSION,
        capabilities=UnityRLCapabilitiesProto(**dict.fromkeys(CAPABILITIES, True)),
        num_areas=num_areas,
    )


def check(greeting: Any, name: str) -> None:
    """Reject Unity if its protocol has another major version, and warn if Unity lacks the base capabilities.

    Args:
        greeting: Unity's greeting, a `UnityRLInitializationOutputProto`.
        name: the game's name, used in messages.

    Raises:
        GameRefused: for a version that isn't compatible.
    """
    if greeting.communication_version.partition(".")[0] != COMMUNICATION_VERSION.partition(".")[0]:
        raise GameRefused(
            f"{name} speaks version {greeting.communication_version or 'unknown'} of the communication protocol (its "
            f"package com.unity.ml-agents is {greeting.package_version or 'of unknown version'}), but Headrace speaks "
            f"{COMMUNICATION_VERSION}: the major versions must match. Install com.unity.ml-agents 1.0 or newer in the "
            "Unity project and rebuild it"
        )
    if not greeting.capabilities.baseRLCapabilities:
        log.warning(
            "%s does not declare baseRLCapabilities: its package com.unity.ml-agents (%s) is older than 1.1 and may "
            "lack features. Training continues; install a newer package if possible.",
            name,
            greeting.package_version,
        )
