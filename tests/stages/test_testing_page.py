"""docs/testing-stages.md: its examples are one script, which runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing-stages.md"
STAGES = (
    "TrainerStage",
    "EnvironmentStage",
    "AgentProcessor",
    "Actor",
    "GhostStage",
    "GhostPolicies",
    "PolicyPublisher",
)


@pytest.mark.lengthy
def test_every_example_of_the_page_runs():
    script = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for stage in (*STAGES, "EvaluationStage", "ReplaySource", "StageRunner"):
        assert f"{stage}(" in script, f"the page has no example of {stage}"
    exec(compile(script, str(PAGE), "exec"), {"__name__": "page"})
