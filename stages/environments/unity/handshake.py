"""The handshake: both sides' greetings, and the check of their versions. Also describes likely causes of timeouts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from google.protobuf.message import DecodeError

from headrace.stages.environments.unity.errors import UnityRefused
from headrace.stages.environments.unity.messages import (
    OK,
    UnityMessageProto,
    UnityRLCapabilitiesProto,
    UnityRLInitializationInputProto,
)
from headrace.stages.environments.unity.versions import COMMUNICATION_VERSION, PACKAGE_VERSION

log = logging.getLogger(__name__)

CAPABILITIES = tuple(field.name for field in UnityRLCapabilitiesProto.DESCRIPTOR.fields)
"""The protocol's capabilities. Headrace supports all of them."""
_BASE = "baseRLCapabilities"
_MORE_TIME = "If it only needs more time, raise --timeout-wait (env_settings.timeout_wait)."
_NO_AGENT = (
    "Check that the scene has an active agent, with a Decision Requester or a script that calls RequestDecision, and "
    "with Behavior Type 'Default' in its Behavior Parameters."
)


@dataclass(frozen=True, slots=True)
class UnityGreeting:
    """Unity's first message."""

    name: str
    """The academy's name."""
    package_version: str
    """Version of the Unity package com.unity.ml-agents."""
    communication_version: str
    capabilities: frozenset[str]
    """Capabilities that Unity declares, as field names of `UnityRLCapabilitiesProto`."""
    log_path: str
    """Path of Unity's log; empty if Unity states no path."""


def read_greeting(proto: Any) -> UnityGreeting:
    """Read Unity's greeting, a `UnityRLInitializationOutputProto`."""
    return UnityGreeting(
        name=proto.name,
        package_version=proto.package_version,
        communication_version=proto.communication_version,
        capabilities=frozenset(name for name in CAPABILITIES if getattr(proto.capabilities, name)),
        log_path=proto.log_path,
    )


def greeting_in(request: bytes) -> UnityGreeting | None:
    """Return the greeting in a message; None if there is none."""
    message = _message_in(request)
    if message is None or not message.unity_output.HasField("rl_initialization_output"):
        return None
    return read_greeting(message.unity_output.rl_initialization_output)


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


def compatible(ours: str, theirs: str) -> bool:
    """Return True if the major versions are equal and, if they are 0, also the minor versions.

    Text that isn't a version, such as the `API-13` of 2019, is compatible with nothing.
    """
    mine, other = _numbers(ours), _numbers(theirs)
    if mine is None or other is None or mine[0] != other[0]:
        return False
    return mine[0] != 0 or mine[1] == other[1]


def _numbers(version: str) -> tuple[int, int] | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    # isdecimal also accepts digits of other scripts.
    return (int(major), int(minor)) if (major + minor).isascii() and major.isdecimal() and minor.isdecimal() else None


def check(greeting: UnityGreeting, worker: str) -> None:
    """Reject Unity if its protocol version is incompatible, and warn if it lacks the base capabilities.

    Args:
        greeting: Unity's greeting.
        worker: the worker's name, used in messages.

    Raises:
        UnityRefused: for a version that isn't compatible.
    """
    if not compatible(COMMUNICATION_VERSION, greeting.communication_version):
        raise UnityRefused(
            f"{worker} speaks version {greeting.communication_version or 'unknown'} of the communication protocol (its "
            f"package com.unity.ml-agents is {greeting.package_version or 'of unknown version'}), but Headrace speaks "
            f"{COMMUNICATION_VERSION}: the major versions must match. Install com.unity.ml-agents 1.0 or newer in the "
            "Unity project and rebuild it"
        )
    if _BASE not in greeting.capabilities:
        log.warning(
            "%s does not declare %s: its package com.unity.ml-agents (%s) is older than 1.1 and may lack features. "
            "Training continues; install a newer package if possible.",
            worker,
            _BASE,
            greeting.package_version,
        )


# Messages for timeouts: each state of a connection has its own likely cause for Unity's silence.


class ConnectionState(Enum):
    """The states of a connection with Unity."""

    STARTING = auto()
    """Not connected yet."""
    GREETED = auto()
    """Connected, but Unity has not requested its first command."""
    FIRST_RESET = auto()
    """Reset, but no agent has appeared."""
    RUNNING = auto()
    """Agents have requested decisions."""


def describe_timeout(state: ConnectionState, editor: bool, timeout_s: float) -> str:
    """Describe a timeout of `timeout_s` seconds and its remedy, as the end of a sentence about Unity."""
    return f"{_LATE[state].format(seconds=f'{timeout_s:g} s')} {_cure(state, editor)} {_MORE_TIME}"


_LATE = {
    ConnectionState.STARTING: "hasn't connected within {seconds}.",
    ConnectionState.GREETED: "has connected, but hasn't requested its first command within {seconds}.",
    ConnectionState.FIRST_RESET: "is connected, but within {seconds} no agent has requested a decision.",
    ConnectionState.RUNNING: "hasn't finished its step within {seconds}: it hangs, or its agents no longer request "
    "decisions.",
}


def _cure(state: ConnectionState, editor: bool) -> str:
    if state is ConnectionState.STARTING:
        return (
            "Press Play in the Editor, with a scene that has an agent; restart a scene that is already playing."
            if editor
            else "The program is running. Check in its log that it has started, that its scene has an agent (without "
            "an agent it doesn't connect), and that its package com.unity.ml-agents is 1.0 or newer."
        )
    if state is ConnectionState.GREETED:
        return (
            f"Its log says why; most likely it rejects these versions: {COMMUNICATION_VERSION} of the protocol and "
            f"{PACKAGE_VERSION} of the package."
        )
    if state is ConnectionState.FIRST_RESET:
        return _NO_AGENT
    return f"The cause may be a paused Editor, an infinite loop or an open dialog. {_NO_AGENT}"
