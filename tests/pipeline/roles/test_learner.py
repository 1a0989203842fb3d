"""The learner's host."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "of_actors",
    [
        "gymnasium",
        "grpc",
        "headrace.stages.actor.actor",
        "headrace.stages.agent",
        "headrace.stages.environments.factory",
        "headrace.stages.environments.stage",
        "headrace.stages.games",
        "headrace.stages.environments.engines.unity",
    ],
)
def test_it_imports_nothing_that_only_actors_need(of_actors, loaded):
    assert of_actors not in loaded


@pytest.fixture(scope="module")
def loaded():
    """The modules that importing the host loads, in a process of its own."""
    code = "import sys, headrace.pipeline.roles.learner; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
