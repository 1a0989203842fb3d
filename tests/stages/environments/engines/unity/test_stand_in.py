"""The stand-in Unity itself: that its scenes do what tests of training rely on."""

from __future__ import annotations

import functools
import math
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
from unity_client.main import main
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

BALANCE = "Balance?team=0"

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


async def test_an_agent_that_ends_asks_again_in_the_same_message_and_keeps_its_id(start):
    async with start() as game:
        last = (await told(game, steps=5))[-1]
    assert [(info.done, info.id, info.max_step_reached) for info in infos(last)] == [
        (True, 0, False),
        (False, 0, False),
    ]
    assert [info.reward for info in infos(last)] == pytest.approx([1.06, 0.0])


async def test_old_packages_draw_a_new_id_for_each_episode(start):
    async with start("--new-ids") as game:
        outputs = await told(game, steps=10)
    first, second = infos(outputs[5]), infos(outputs[10])
    assert first[0].id != first[1].id == second[0].id != second[1].id


async def test_an_episode_may_be_interrupted(start):
    async with start("--max-steps", "3") as game:
        last = (await told(game, 3, Actor(lambda behavior, seen: 0.0)))[-1]
    assert [(info.done, info.max_step_reached) for info in infos(last)] == [(True, True), (False, False)]


async def test_a_behaviour_is_introduced_with_its_first_agent_and_named_ever_after(start):
    async with start("--scene", "crowd", "--agents", "1") as game:
        outputs = await told(game, steps=60)
    introduced = [bool(output.rl_initialization_output.brain_parameters) for output in outputs]
    assert introduced == [True] + [False] * 60
    assert all("Crowd?team=0" in output.rl_output.agentInfos for output in outputs)


async def test_a_second_behaviour_may_appear_later(start):
    async with start("--behaviors", "A?team=0", "B?team=1", "--second-at", "4") as game:
        outputs = await told(game, steps=4)
    assert [sorted(output.rl_output.agentInfos) for output in outputs] == [["A?team=0"]] * 3 + [
        ["A?team=0", "B?team=1"]
    ] * 2


async def test_the_goal_is_shown_only_at_first_where_memory_is_asked_for(start):
    async with start("--memory") as game:
        outputs = await told(game, 4, Actor(lambda behavior, seen: 0.0))
    seen = [abs(infos(output)[0].observations[0].float_data.data[0]) for output in outputs]
    assert seen == [1.0, 1.0, 1.0, 0.0, 0.0]


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


async def test_the_right_direction_wins_a_duel(start, tmp_path):
    def uneven(behavior: str, goal: float) -> float:
        return goal if behavior == "Duel?team=0" else -goal

    async with start("--scene", "duel", "--agents", "2") as game:
        await told(game, 40, Actor(uneven))
    (report,) = reports(tmp_path)
    assert set(report["episodes"]["Duel?team=0"]) == {1.0}
    assert set(report["episodes"]["Duel?team=1"]) == {-1.0}
    assert set(report["measures"]["Duel?team=1"]) == {0.0}


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


async def test_a_crowd_in_groups_is_rewarded_as_groups(start):
    async with start("--scene", "crowd", "--agents", "6", "--groups") as game:
        outputs = await told(game, steps=30)
    rows = [info for output in outputs for info in infos(output, "Crowd?team=0")]
    assert {info.group_id for info in rows} == {1, 2}
    assert {info.reward for info in rows} == {0.0}
    assert max(info.group_reward for info in rows) == pytest.approx(1.0)


@pytest.mark.parametrize("agents", [12, 64])
async def test_a_pole_that_nobody_holds_falls(start, tmp_path, agents):
    async with start("--scene", "balance", "--agents", str(agents)) as game:
        outputs = await told(game, 60, Actor(lambda behavior, angle: 0.0))
    ends = [info for output in outputs for info in infos(output, BALANCE) if info.done]
    assert len(ends) >= agents / 2
    assert not any(end.max_step_reached for end in ends)
    assert all(abs(end.observations[0].float_data.data[0]) > math.radians(12) for end in ends)
    assert [len(output.rl_output.agentInfos[BALANCE].value) - agents for output in outputs] == [
        sum(info.done for info in infos(output, BALANCE)) for output in outputs
    ], "all agents decide at every step, those that have just ended too"
    (report,) = reports(tmp_path)
    assert all(20 < steps < 60 for steps in report["episodes"][BALANCE]), "every step is worth 1"


async def test_a_pole_held_for_200_steps_is_enough(start, tmp_path):
    async with start("--scene", "balance") as game:
        outputs = await told(game, 200, Actor(lambda behavior, angle: 5.0 * angle))
    assert len(infos(outputs[0], BALANCE)) == 12, "unless more are asked for"
    ends = [info for info in infos(outputs[-1], BALANCE) if info.done]
    assert ends
    assert all(end.max_step_reached and end.reward == 1.0 for end in ends)
    (report,) = reports(tmp_path)
    assert max(report["episodes"][BALANCE]) == 200.0
    assert max(report["measures"][BALANCE]) == 1.0
    assert [steps for steps, _ in report["ends"][BALANCE]] == sorted(steps for steps, _ in report["ends"][BALANCE])
    assert report["ends"][BALANCE][-1][0] == report["agent_steps"] == 12 * 200


async def test_the_same_seed_gives_the_same_world(start):
    worlds = []
    for seed in (5, 5, 6):
        async with start("--scene", "crowd", seed=seed) as game:
            worlds.append([output.rl_output.SerializeToString(deterministic=True) for output in await told(game, 40)])
    assert worlds[0] == worlds[1] != worlds[2]


async def test_trouble_with_agents_comes_at_its_step(start):
    for kind, symptom in (
        ("nan-reward", lambda output: math.isnan(infos(output)[0].reward)),
        ("duplicate-ids", lambda output: [info.id for info in infos(output)] == [0, 0]),
        ("unknown-behavior", lambda output: "Stranger?team=0" in output.rl_output.agentInfos),
    ):
        async with start("--misbehave", kind, "--at-step", "3") as game:
            outputs = [await game.request_reset()]
            actor = Actor()
            for _ in range(2):
                outputs.append(await game.request_step(actor(outputs[-1])))
        assert [symptom(output) for output in outputs] == [False, False, True], kind


def test_without_a_port_it_plays_alone():
    assert main([]) == 94


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


@pytest.mark.parametrize(
    ("scene", "action", "complaint"),
    [
        (("--continuous", "2"), {"continuous_actions": [0.0]}, "1 continuous and 0 discrete actions, expected 2 and 0"),
        (("--continuous", "1"), {"continuous_actions": [math.nan]}, "isn't finite"),
        (("--branches", "2"), {"discrete_actions": [2]}, "choice 2 of 2"),
        (("--branches", "2"), {"continuous_actions": [1.0]}, "1 continuous and 0 discrete actions, expected 0 and 1"),
        (
            ("--continuous", "1"),
            {"continuous_actions": [0.5], "vector_actions_deprecated": [0.4]},
            "the vector for old",
        ),
    ],
    ids=["too few", "not a number", "no such choice", "the other kind", "another vector for old packages"],
)
def test_it_refuses_what_its_agents_cannot_do(scene, action, complaint):
    assert complaint in complaint_of(*scene, rule=told_to(AgentActionProto(**action)))


def test_it_refuses_forbidden_choices():
    def rule(output: Any) -> dict[str, Any]:
        (info,) = infos(output)
        choice = list(info.action_mask).index(True)
        return told_to(AgentActionProto(discrete_actions=[choice], vector_actions_deprecated=[choice]))(output)

    assert re.search(r"choice \d+ is forbidden", complaint_of("--branches", "40", "--mask", rule=rule))


def test_it_refuses_actions_in_another_order():
    actor = Actor()

    def rule(output: Any) -> dict[str, Any]:
        (acts,) = actor(output).values()
        return told_to(*reversed(acts.value), behavior="Many?team=0")(output)

    complaint = complaint_of("--scene", "many", "--agents", "2", "--echo", rule=rule)
    assert re.search("agent 0 of .* saw .* and was told", complaint)


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (lambda output: {}, "0 actions for 1 agents"),
        (told_to(AgentActionProto(), AgentActionProto()), "2 actions for 1 agents"),
        (told_to(AgentActionProto(), behavior="Nobody"), "where no agent asked for a decision"),
    ],
    ids=["none", "too many", "for others"],
)
def test_it_wants_one_action_for_each_agent_that_asked(rule, complaint):
    assert complaint in complaint_of(rule=rule)


def test_trouble_may_be_had_only_once(tmp_path):
    arguments = ["--misbehave", "exit-mid-step", "--once", str(tmp_path / "had")]
    kinds = []
    for _ in range(2):
        options = options_of(arguments)
        Misbehavior(options)
        kinds.append(options.misbehave)
    assert kinds == ["exit-mid-step", None]
