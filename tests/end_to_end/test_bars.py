"""The same YAML but for `kind:` reaches the same bars on every kind of hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import Command

from headrace.config.host_kinds import HOST_KINDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "config" / "examples"
BOUND_S = 1500.0
BARS = {"cartpole": ("CartPole", 475.0), "pendulum-sac-parallel": ("Pendulum", -171.0)}
"""By example: behaviour, and the mean return of 30 episodes of the last policy (docs/learning.md)."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(params=[*HOST_KINDS])
def hosts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """All hosts of one kind."""
    if HOST_KINDS[request.param].extra == "ray" and find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    return {part: {"kind": request.param} for part in ("actors", "learners", "evaluation")}


def example(name: str, hosts: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    plain["env_settings"] = {"seed": 0}
    plain.setdefault("pipeline", {})["hosts"] = hosts
    return plain


def learned(start: Any, plain: dict[str, Any]) -> Command:
    command: Command = start(plain)
    assert command.process.wait(BOUND_S) == 0, command.output
    command.assert_left_nothing()
    return command


@pytest.mark.parametrize("name", [*BARS])
def test_the_last_policy_reaches_the_bar(start, hosts, name):
    behavior, bar = BARS[name]
    plain = example(name, hosts)
    plain["evaluation"] = {"every": 10**6, "episodes": 30}  # the last policy alone
    command = learned(start, plain)
    score = float(re.findall(r"Evaluation: (-?[\d.]+) ± .* over 30 episodes", command.output)[-1])
    print(f"{name} on {hosts['actors']['kind']}: {score}")
    assert score >= bar


def test_self_play_beats_the_scripted_player_and_its_own_past(start, hosts):
    command = learned(start, example("volley", hosts))
    judged = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "main_job.py"), str(command.run_folder)],
        capture_output=True,
        text=True,
    )
    print(judged.stdout)
    assert judged.returncode == 0
