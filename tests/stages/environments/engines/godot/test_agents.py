"""A game's messages become rows: endings with what is known of their end, decisions of all agents, groups, successes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.errors import GameBroken, GameRefused
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.godot.game import GodotGame
from headrace.stages.environments.engines.godot.messages import AgentSpaces, Announcement

SEEN = {"obs": {"space": "box", "size": [1]}}
ACTS = {"press": {"size": 2, "action_type": "discrete"}}


class ScriptedGame(GodotGame):
    """A game that answers what the test says."""

    def __init__(self, policies, groups):
        announced = Announcement(tuple(AgentSpaces(name, SEEN, ACTS) for name in policies), True)

        def roles(announcement, owner):
            return [(name, groups.get(name, 0)) for name in policies]

        super().__init__(GameSettings(0, 0, 7, 30.0), None, roles)
        self.announcement = announced
        self.answers = []
        self.sent = []

    async def start(self):
        self._assign_agents(self._roles(self.announcement, self.label))

    async def request_reset(self):
        return {"type": "reset", "obs": [{"obs": [10 * agent]} for agent in range(len(self.announcement.agents))]}

    async def request_step(self, message):
        self.sent.append(json.loads(message))
        return self.answers.pop(0)


async def begun(*policies, groups=None):
    game = ScriptedGame(policies, groups or {})
    return game, await game.begin()


def step(*observed, reward=None, done=(), info=None):
    count = len(observed)
    message = {
        "type": "step",
        "obs": [{"obs": [value]} for value in observed],
        "reward": reward or [0] * count,
        "done": [agent in done for agent in range(count)],
    }
    return message if info is None else {**message, "info": info}


def pressed(*choices):
    return ActionBatch(np.zeros((len(choices), 0), np.float32), np.array(choices, np.int32)[:, None])


async def test_all_agents_decide_from_the_first_message_on():
    game, answer = await begun("A", "A")
    rows = answer.rows["A"].columns
    assert (rows.ids.tolist(), rows.ended, rows.observations[0].tolist()) == ([0, 1], 0, [[0], [10]])
    game.answers.append(step(1, 2, reward=[0.5, 1]))
    answer = await game.step({"A": pressed(1, 0)})
    assert game.sent == [{"type": "action", "action": [{"press": 1}, {"press": 0}]}]
    assert answer.rows["A"].columns.rewards.tolist() == [0.5, 1]


async def test_the_observation_that_comes_with_done_is_the_next_episodes_first():
    game, _ = await begun("A", "A")
    game.answers += [step(1, 2), step(7, 3, reward=[5, 0], done=(0,))]
    before = (await game.step({"A": pressed(0, 0)})).rows["A"].episodes.episode_ids.tolist()
    answer = await game.step({"A": pressed(0, 0)})
    rows, episodes = answer.rows["A"].columns, answer.rows["A"].episodes
    assert (rows.ids.tolist(), rows.ended) == ([0, 0, 1], 1)
    assert rows.observations[0].tolist() == [[1], [7], [3]]  # the end: what was decided on last
    assert rows.rewards[0] == 5
    assert not rows.interrupted[0]
    assert episodes.episode_ids[0] == before[0] != episodes.episode_ids[1]
    assert episodes.first.tolist() == [False, True, False]


async def test_a_game_can_send_the_time_limit_and_the_last_observation():
    game, _ = await begun("A", "A")
    info = [{}, {"TimeLimit.truncated": True, "terminal_observation": {"obs": [99]}}]
    game.answers.append(step(1, 7, done=(0, 1), info=info))
    rows = (await game.step({"A": pressed(0, 0)})).rows["A"].columns
    assert rows.interrupted.tolist() == [False, True]
    assert rows.observations[0].tolist() == [[0], [99], [1], [7]]


async def test_a_mask_in_an_info_is_refused():
    game, _ = await begun("A", "A")
    game.answers.append(step(1, 7, info=[{}, {"action_mask": [1, 0]}]))
    with pytest.raises(GameRefused, match="sent 'action_mask' in an info: .*use kind: open_protocol"):
        await game.step({"A": pressed(0, 0)})


async def test_success_is_reported_for_ended_episodes():
    game, _ = await begun("A", "A", "B", "B?team=1")
    info = [{"is_success": True}, {"is_success": False}, {"is_success": False}, {"is_success": True}]
    game.answers.append(step(1, 7, 1, 1, done=(0, 2, 3), info=info))
    answer = await game.step({"A": pressed(0, 0), "B": pressed(0), "B?team=1": pressed(0)})
    assert answer.behavior_statistics["A"]["Environment/Success Rate"].values == (1.0,)
    assert answer.behavior_statistics["B"]["Environment/Success Rate"].values == (0.0, 1.0)


async def test_actions_of_several_behaviours_go_to_their_agents():
    game, answer = await begun("A", "B", "A")
    assert answer.rows["B"].columns.ids.tolist() == [1]
    game.answers.append(step(1, 2, 3))
    await game.step({"A": pressed(1, 0), "B": pressed(1)})
    assert [action["press"] for action in game.sent[0]["action"]] == [1, 1, 0]


async def test_agents_of_a_group_share_their_rewards_across_behaviours():
    game, _ = await begun("A", "B", "A", groups={"A": 1, "B": 1})
    game.answers.append(step(1, 2, 3, reward=[1, 2, 4], done=(2,)))
    rows = (await game.step({"A": pressed(1, 0), "B": pressed(1)})).rows
    assert rows["A"].columns.rewards.tolist() == [4, 1, 4]
    assert rows["A"].columns.group_rewards.tolist() == [3, 6, 3]
    assert rows["B"].columns.group_rewards.tolist() == [5]
    assert rows["B"].columns.group_ids.tolist() == [1]


@pytest.mark.lengthy
async def test_agents_that_are_never_done_are_warned_of_once(caplog):
    game, _ = await begun("A", "A")
    for number in range(10_003):
        game.answers.append(step(1, 2, done=(0,) if number % 2 else ()))
        await game.step({"A": pressed(0, 0)})
    assert len(caplog.messages) == 1
    assert "agent 1 has not been done for 10000 decisions" in caplog.text
    assert "environment.max_episode_steps" in caplog.text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (step(1), "1 entries as 'obs'; expected one for each of the 2 agents"),
        ({**step(1, 2), "reward": None}, "None as 'reward'"),
        (step(1, "nan"), "behaviour 'A', agent 1 has nan"),
    ],
)
async def test_a_message_that_does_not_fit_names_game_behaviour_and_agent(answer, problem):
    game, _ = await begun("A", "A")
    game.answers.append(answer)
    with pytest.raises(GameBroken, match=f"Godot worker 0.*{problem}"):
        await game.step({"A": pressed(0, 0)})


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (step(1, 2, done=[1], info=[{}, "won"]), "agent 1 has 'won' as its info; expected a map"),
        (
            step(1, 2, done=[1], info=[{}, {"terminal_observation": {"obs": [3, 4]}}]),
            "agent 1 has 2 numbers as the observation 'obs'.*in the 'terminal_observation' of its info",
        ),
        (step(1, 2) | {"done": [False, None]}, "agent 1 has None as 'done'; expected true or false"),
    ],
)
async def test_a_field_of_one_agent_that_is_wrong_is_named(message, problem):
    game, _ = await begun("A", "A")
    game.answers.append(message)
    with pytest.raises(GameBroken, match=f"behaviour 'A', {problem}"):
        await game.step({"A": pressed(0, 1)})


@pytest.mark.parametrize("done", [[0, 1], [0.0, 1.0], [False, 1]])
async def test_done_may_be_a_number_and_an_info_null(done):
    game, _ = await begun("A", "A")
    game.answers.append(step(1, 2, info=[{}, None]) | {"done": done})
    assert (await game.step({"A": pressed(0, 1)})).rows["A"].columns.ended == 1
