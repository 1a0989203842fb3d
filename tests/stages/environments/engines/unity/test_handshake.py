"""The handshake's content: who is compatible with whom, and what is said."""

from __future__ import annotations

import logging

import pytest

from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.unity.messages import (
    UnityRLInitializationOutputProto,
    check,
    our_greeting,
)


def test_headrace_declares_all_seven_capabilities():
    said = our_greeting(seed=7, num_areas=3)
    assert (said.seed, said.num_areas, said.communication_version, said.package_version) == (7, 3, "1.5.0", "1.1.0")
    declared = {field.name for field, value in said.capabilities.ListFields() if value}
    assert declared == {
        "baseRLCapabilities",
        "concatenatedPngObservations",
        "compressedChannelMapping",
        "hybridActions",
        "trainingAnalytics",
        "variableLengthObservation",
        "multiAgentGroups",
    }


@pytest.mark.parametrize("version", ["0.15.0", "2.0.0", "API-13", ""])
def test_a_refusal_names_both_versions_and_the_fix(version):
    greeting = UnityRLInitializationOutputProto(package_version="0.15.1", communication_version=version)
    with pytest.raises(
        GameRefused,
        match=rf"worker 3 speaks version {version or 'unknown'} .*0\.15\.1.* 1\.5\.0: the major versions.*rebuild it",
    ):
        check(greeting, "worker 3")


def test_a_unity_without_the_protocols_base_is_warned_of(caplog):
    greeting = UnityRLInitializationOutputProto(package_version="1.0.8", communication_version="1.0.0")
    with caplog.at_level(logging.WARNING):
        check(greeting, "worker 3")
    assert "worker 3 does not declare baseRLCapabilities" in caplog.text
