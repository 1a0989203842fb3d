"""The stand-in Unity itself: that its scenes do what tests of training rely on."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unity_client.academy import Academy
from unity_client.channels import Channels
from unity_client.connection import Connection
from unity_client.faults import Violation
from unity_client.misbehavior import Misbehavior
from unity_client.options import options_of
from unity_client.report import Report
from unity_client.scenes import make_scene
from unity_runs import Actor, playing, reports

from headrace.stages.environments.engines.unity.columns import BehaviorReader
from headrace.stages.environments.engines.unity.game import UnityGame
from headrace.stages.environments.engines.unity.messages import (
    RESET,
    STEP,
    AgentActionProto,
    ListAgentActionProto,
    UnityMessageProto,
)

pytestmark = pytest.mark.lengthy


StartScene = Callable[..., AbstractAsyncContextManager[UnityGame]]


@pytest.fixture
def start(tmp_path: Path) -> StartScene:
    """Starts a scene with these arguments, and ends it."""
    return functools.partial(playing, tmp_path)


async def told(game: UnityGame, steps: int, actor: Actor | None = None) -> list[Any]:
    """All that a stand-in says in so many steps."""
    actor = actor or Actor()
    outputs = [await game.request_reset()]
    for _ in range(steps):
        outputs.append(await game.request_step(actor(outputs[-1])))
    return outputs


def infos(output: Any, behavior: str = "Simple?team=0") -> list[Any]:
    return list(output.rl_output.agentInfos[behavior].value)


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("rgb", (3, 20, 20)),
        ("gray", (1, 20, 20)),
        ("stack", (6, 20, 20)),
        ("mapped", (2, 20, 20)),
        ("uncompressed", (3, 20, 20)),
    ],
)
async def test_pictures_show_the_goal(start, form, shape):
    async with start("--scene", "visual", "--picture", form, "--agents", "8") as game:
        output = await game.request_reset()
    seen = infos(output)
    (pictures,) = (
        BehaviorReader(output.rl_initialization_output.brain_parameters[0], seen[0], "a test").read(seen).observations
    )
    assert pictures.shape == (8, *shape)
    values = {float(value) for value in np.unique(pictures)}
    assert values == ({-1.0, 1.0} if form == "uncompressed" else {0.0, 255.0})
    assert all(np.ptp(picture) == 0 for picture in pictures), "each agent sees its own goal, all over"


async def test_a_crowd_comes_and_goes_and_decides_at_every_fifth_step(start, tmp_path):
    async with start("--scene", "crowd", "--agents", "12") as game:
        outputs = await told(game, steps=200)
    ids = {info.id for output in outputs for info in infos(output, "Crowd?team=0")}
    assert len(ids) > 12, "more than there are places"
    asking = [sum(not info.done for info in infos(output, "Crowd?team=0")) for output in outputs]
    assert len(set(asking)) > 4
    ends = [info for output in outputs for info in infos(output, "Crowd?team=0") if info.done]
    assert {info.max_step_reached for info in ends} == {True, False}
    marks = {tuple(info.observations[0].dimension_properties) for info in ends}
    assert marks == {(4, 1)}
    assert reports(tmp_path)[0]["endings_only"] > 0


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
