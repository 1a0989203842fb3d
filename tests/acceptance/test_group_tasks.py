"""The tasks for groups give what they promise, to players who know them."""

from __future__ import annotations

import numpy as np
import pytest
from acceptance.group_tasks import EXAMPLE, MultiAgent, TheDoor, the_door

from headrace.config import load_config
from headrace.queues.messages import ActionBatch

WAIT, PUSH, GO = the_door.WAIT, the_door.PUSH, the_door.GO


def choose(task, *choices):
    """Play on; what there is to tell of the only behaviour."""
    chosen = np.array(choices, np.int32)[:, None]
    result = task.step({"T": ActionBatch(np.zeros((len(chosen), 0), np.float32), chosen)})
    return result.steps["T"]


def rows(steps):
    """Agent, episode, reward and group reward of endings, then of those who go on."""
    told = list(
        zip(
            steps.agent_ids.tolist(),
            steps.episode_ids.tolist(),
            steps.rewards.astype(float).round(3).tolist(),
            steps.group_rewards.astype(float).round(3).tolist(),
            strict=True,
        )
    )
    return told[: steps.ended], told[steps.ended :]


@pytest.fixture
def door():
    task = TheDoor(1, "T")
    first = task.reset(0).steps["T"]
    assert first.observations[0].tolist() == [[1, 0, 0, 1, 1], [0, 1, 0, 1, 1]]
    assert first.group_ids.tolist() == [1, 1]
    return task


def test_the_agent_that_opens_the_door_is_gone_and_the_other_one_gets_the_groups_reward(door):
    steps = choose(door, WAIT, PUSH)
    assert rows(steps) == ([(1, 0, -0.1, 0)], [(0, 0, 0, 0)])
    assert steps.observations[0][1, :4].tolist() == [1, 0, 1, 0], "open, and the other one gone"
    assert steps.observations[0][1, 4] == pytest.approx(0.9), "of the time is left"
    steps = choose(door, GO)
    assert rows(steps) == ([(0, 0, 0, 1)], [(0, 1, 0, 0), (1, 1, 0, 0)])
    assert steps.observations[0][1:].tolist() == [[1, 0, 0, 1, 1], [0, 1, 0, 1, 1]]


def test_a_closed_door_stays_closed(door):
    assert rows(choose(door, GO, GO)) == ([], [(0, 0, 0, 0), (1, 0, 0, 0)])
    assert rows(choose(door, PUSH, GO))[1] == [(1, 0, 0, 0)], "nor through one that opens at this moment"


def test_all_agents_end_when_the_time_is_up(door):
    choose(door, WAIT, PUSH)
    for _ in range(8):
        assert not choose(door, WAIT).ended
    steps = choose(door, WAIT)
    assert rows(steps)[0] == [(0, 0, 0, 0)]
    assert steps.terminated.all()
    assert not steps.truncated.any()


def test_the_result_of_the_last_agent_is_the_groups_reward():
    task = MultiAgent(1, "T", branches=1)
    goals = task.reset(3).steps["T"].observations[0][:, 0]
    forth, back = (goals > 0).astype(int), (goals < 0).astype(int)
    for _ in range(4):
        assert rows(choose(task, forth[0], forth[1])) == ([], [(0, 0, -0.01, 0), (1, 0, -0.01, 0)])
    ended, going_on = rows(choose(task, back[0], forth[1]))
    assert ended == [(1, 0, -0.01, 0)], "no reward of its own for the right end"
    assert going_on == [(0, 0, -0.01, 0)]
    assert not choose(task, forth[0]).ended
    ended, going_on = rows(choose(task, forth[0]))
    assert ended == [(0, 0, 0, 1.06)]
    assert [row[:2] for row in going_on] == [(0, 1), (1, 1)]


def test_the_examples_configuration_is_valid():
    config = load_config(EXAMPLE / "config.yaml")
    assert not config.warnings
    assert config.behavior_settings("Door").trainer_type == "poca"
