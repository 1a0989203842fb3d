"""What the page calls the sides of a game: by the YAML, the environment's metadata, or the agents' names."""

from __future__ import annotations

import numpy as np
import pytest
from small_zoo import Counting

from headrace.config import RunConfig
from headrace.pipeline.parts.exhibition.hosted_game import described_side, unknown_names
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.exhibition.film import FilmedGroup

RED = {"player_0": "red pieces", "player_1": "yellow pieces"}


def config(keys=(), **sides):
    environment = {"kind": "pettingzoo", "factory": "small_zoo:Counting", "sides": sides}
    environment["keys"] = {key: {"press": {"a": {"branch": 0, "value": 0}}} for key in keys}
    return RunConfig.model_validate({"environment": environment, "behaviors": {"Count": {"trainer_type": "ppo"}}})


def filmed(**metadata):
    env = Counting(target=1)
    env.metadata = metadata  # type: ignore[attr-defined]
    group = PettingZooGroup([instance_of(env, "Zoo")], "Count", "Zoo")
    group.reset(0)
    return group, FilmedGroup(group)


def called(config, group, film):
    return {key: described_side(config, film, spec, ())["name"] for key, spec in group.behavior_specs.items()}


@pytest.mark.parametrize(
    ("sides", "metadata", "first", "second"),
    [
        ({}, {}, "player_0", "player_1"),
        ({}, {"sides": RED}, "red pieces", "yellow pieces"),
        ({"player_1": "the later"}, {"sides": RED}, "red pieces", "the later"),
    ],
)
def test_a_side_is_called_by_what_its_agent_is_in_the_running_game(sides, metadata, first, second):
    group, film = filmed(**metadata)
    zero, one = "Count?team=0", "Count?team=1"
    assert called(config(**sides), group, film) == {zero: f"Count, team 0: {first}", one: f"Count, team 1: {second}"}
    group.step({zero: ActionBatch(np.zeros((1, 0), np.float32), np.array([[0]], np.int32))})  # it ends the game
    assert called(config(**sides), group, film) == {zero: f"Count, team 0: {second}", one: f"Count, team 1: {first}"}


def test_an_unknown_player_name_is_reported():
    group, film = filmed()
    assert unknown_names(config(player_0="red"), film, group.behavior_specs) == ""
    assert unknown_names(config(palyer_0="red"), film, group.behavior_specs) == (
        "environment.sides: unknown player palyer_0; available: player_0, player_1, Count?team=0, Count?team=1, Count"
    )
    assert unknown_names(config(keys=["Count", "Count?team=1"]), film, group.behavior_specs) == ""
    assert unknown_names(config(keys=["Count?team=7"]), film, group.behavior_specs) == (
        "environment.keys: unknown player Count?team=7; available: Count?team=0, Count?team=1, Count"
    )
