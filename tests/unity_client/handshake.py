"""The greeting, from Unity's side."""

from __future__ import annotations

import argparse
from typing import Any

from unity_client.connection import Connection
from unity_client.faults import Violation

from headrace.stages.environments.engines.unity.messages import UnityOutputProto, UnityRLCapabilitiesProto

CAPABILITIES = (
    "baseRLCapabilities",
    "concatenatedPngObservations",
    "compressedChannelMapping",
    "hybridActions",
    "trainingAnalytics",
    "variableLengthObservation",
    "multiAgentGroups",
)


def greet(connection: Connection, options: argparse.Namespace) -> Any:
    """Say who we are; the trainer's `UnityRLInitializationInputProto`, looked at."""
    output = UnityOutputProto()
    hello = output.rl_initialization_output
    hello.name = "AcademySingleton"
    hello.communication_version = options.communication_version
    hello.package_version = options.package_version
    hello.log_path = str(options.log_file or "")
    declared = dict.fromkeys(CAPABILITIES, True)
    hello.capabilities.CopyFrom(UnityRLCapabilitiesProto(**declared))
    answer = connection.exchange(output, wait=True)
    if not answer.HasField("rl_initialization_input"):
        raise Violation("the answer to a greeting has to be a greeting")
    _check(answer.rl_initialization_input)
    return answer.rl_initialization_input


def _check(theirs: Any) -> None:
    if theirs.communication_version.split(".")[0] != "1":
        raise Violation(f"communication version {theirs.communication_version!r} isn't 1.x")
    if not theirs.package_version:
        raise Violation("no package version")
    if missing := [name for name in CAPABILITIES if not getattr(theirs.capabilities, name)]:
        raise Violation(f"without the capabilities {missing}")
    if theirs.num_areas < 1:
        raise Violation(f"{theirs.num_areas} areas")
