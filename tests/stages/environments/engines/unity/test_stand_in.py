"""The stand-in Unity itself: it refuses the mistakes that tests of training rely on it to refuse."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from unity_client.academy import Academy
from unity_client.channels import Channels
from unity_client.connection import Connection
from unity_client.faults import Violation
from unity_client.misbehavior import Misbehavior
from unity_client.options import options_of
from unity_client.report import Report
from unity_client.scenes import make_scene
from unity_runs import Actor

from headrace.stages.environments.engines.unity.messages import (
    RESET,
    STEP,
    AgentActionProto,
    ListAgentActionProto,
    UnityMessageProto,
)

pytestmark = pytest.mark.lengthy


def infos(output: Any, behavior: str = "Simple?team=0") -> list[Any]:
    return list(output.rl_output.agentInfos[behavior].value)


class Trainer(Connection):
    """Orders for an academy: a reset, then what a rule makes of each message."""

    def __init__(self, rule: Callable[[Any], dict[str, Any]]) -> None:  # connects to nothing
        self._rule = rule

    def exchange(self, output: Any = None, wait: bool = False) -> Any:
        order = UnityMessageProto().unity_input
        order.rl_input.command = RESET if output is None else STEP
        for behavior, chosen in ({} if output is None else self._rule(output)).items():
            order.rl_input.agent_actions[behavior].CopyFrom(chosen)
        return order


def complaint_of(*arguments: str, rule: Callable[[Any], dict[str, Any]]) -> str:
    """What the stand-in says of orders that it refuses."""
    options = options_of([*arguments])
    channels, report = Channels(), Report(None, None, None, [])
    scene = make_scene(options, random.Random(1), channels, report)
    with pytest.raises(Violation) as caught:
        Academy(scene, Trainer(rule), channels, report, Misbehavior(options), options).run()
    return str(caught.value)


def told_to(*actions: Any, behavior: str = "Simple?team=0") -> Callable[[Any], dict[str, Any]]:
    return lambda output: {behavior: ListAgentActionProto(value=actions)}


def test_the_stand_in_refuses_forbidden_choices():
    def rule(output: Any) -> dict[str, Any]:
        (info,) = infos(output)
        choice = list(info.action_mask).index(True)
        return told_to(AgentActionProto(discrete_actions=[choice], vector_actions_deprecated=[choice]))(output)

    assert re.search(r"choice \d+ is forbidden", complaint_of("--branches", "40", "--mask", rule=rule))


def test_the_stand_in_refuses_actions_in_the_wrong_order():
    actor = Actor()

    def rule(output: Any) -> dict[str, Any]:
        (acts,) = actor(output).values()
        return told_to(*reversed(acts.value), behavior="Many?team=0")(output)

    complaint = complaint_of("--scene", "many", "--agents", "2", "--echo", rule=rule)
    assert re.search("agent 0 of .* saw .* and was told", complaint)
