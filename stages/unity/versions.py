"""The handshake: who Unity and we say that we are, and whether the two understand each other."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from stages.unity.errors import UnityRefused
from stages.unity.messages import UnityRLCapabilitiesProto, UnityRLInitializationInputProto

log = logging.getLogger(__name__)

COMMUNICATION_VERSION = "1.5.0"
"""The protocol that is spoken here."""
PACKAGE_VERSION = "1.1.0"
"""The release of the Python package `mlagents` whose place is taken here; Unity shows it and looks at nothing else."""
CAPABILITIES = tuple(field.name for field in UnityRLCapabilitiesProto.DESCRIPTOR.fields)
"""All that the protocol knows, and all that is done here."""
_BASE = "baseRLCapabilities"


@dataclass(frozen=True, slots=True)
class Hello:
    """What Unity said of itself as it connected."""

    name: str
    """Its academy's."""
    package_version: str
    """Of the Unity package com.unity.ml-agents."""
    communication_version: str
    capabilities: frozenset[str]
    """Names of `UnityRLCapabilitiesProto`'s fields."""
    log_path: str
    """Where it writes its log; empty where it doesn't say."""


def hello_of(said: Any) -> Hello:
    """Read Unity's greeting, a `UnityRLInitializationOutputProto`."""
    return Hello(
        name=said.name,
        package_version=said.package_version,
        communication_version=said.communication_version,
        capabilities=frozenset(name for name in CAPABILITIES if getattr(said.capabilities, name)),
        log_path=said.log_path,
    )


def greeting(seed: int, num_areas: int) -> Any:
    """Our answer to Unity's greeting, a `UnityRLInitializationInputProto`."""
    return UnityRLInitializationInputProto(
        seed=seed,
        communication_version=COMMUNICATION_VERSION,
        package_version=PACKAGE_VERSION,
        capabilities=UnityRLCapabilitiesProto(**dict.fromkeys(CAPABILITIES, True)),
        num_areas=num_areas,
    )


def compatible(ours: str, theirs: str) -> bool:
    """Whether two versions understand each other: the same major one, and while that is 0 the same minor one.

    What isn't a version at all, such as the `API-13` of 2019, is compatible with nothing.
    """
    mine, other = _numbers(ours), _numbers(theirs)
    if mine is None or other is None or mine[0] != other[0]:
        return False
    return mine[0] != 0 or mine[1] == other[1]


def _numbers(version: str) -> tuple[int, int] | None:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    # isdecimal alone takes digits of other scripts too.
    return (int(major), int(minor)) if (major + minor).isascii() and major.isdecimal() and minor.isdecimal() else None


def check(hello: Hello, who: str) -> None:
    """Refuse a Unity that speaks another protocol, and warn of one that lacks the protocol's base.

    Args:
        hello: what Unity said.
        who: names the worker.

    Raises:
        UnityRefused: for a version that isn't compatible.
    """
    if not compatible(COMMUNICATION_VERSION, hello.communication_version):
        raise UnityRefused(
            f"{who} speaks version {hello.communication_version or 'unknown'} of the communication protocol (its "
            f"package com.unity.ml-agents is {hello.package_version or 'one that does not say its version'}), and here "
            f"it is {COMMUNICATION_VERSION}: the first number must be the same. Put a release of com.unity.ml-agents "
            "from 1.0 on into the Unity project, and build it again"
        )
    if _BASE not in hello.capabilities:
        log.warning(
            "%s doesn't declare %s: its package com.unity.ml-agents (%s) is from before 1.1 and may lack features. "
            "Training goes on; a newer package is better.",
            who,
            _BASE,
            hello.package_version,
        )
