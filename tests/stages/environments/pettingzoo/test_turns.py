"""Environments that go by turns (AEC), as a group of instances."""

from __future__ import annotations

import numpy as np
import pytest
from small_zoo import Counting

from headrace.config import RoleSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.errors import BrokenEnvironmentError

ZERO, ONE = "Count?team=0", "Count?team=1"


def group_of(*envs, **settings):
    return PettingZooGroup([instance_of(env, "Zoo") for env in envs], "Count", "Zoo", **settings)


def moves(**by_behavior):
    """Actions by team: `moves(team_0=[1, 0])`."""
    return {
        f"Count?team={name[-1]}": ActionBatch(np.zeros((len(a), 0), np.float32), np.array(a, np.int32)[:, None])
        for name, a in by_behavior.items()
    }


def told(steps):
    """(ended, env ids, rewards) in short."""
    return steps.ended, steps.env_ids.tolist(), [round(float(reward), 3) for reward in steps.rewards]


def test_only_the_agent_to_move_decides():
    group = group_of(Counting(), Counting(), rotate_sides=False)

    first = group.reset(0)
    assert list(first.steps) == [ZERO]
    assert told(first.steps[ZERO]) == (0, [0, 1], [0, 0])

    second = group.step(moves(team_0=[0, 1]))
    assert list(second.steps) == [ONE]
    assert told(second.steps[ONE]) == (0, [0, 1], [0, 0])
    np.testing.assert_array_equal(second.steps[ONE].observations[0], [[1, 1], [2, 1]])
    assert len(second.games.env_ids) == 0


def test_rewards_add_up_while_others_move():
    group = group_of(
        Counting(target=9, players=3, tax=0.25), roles={"*": RoleSettings(team="each")}, rotate_sides=False
    )
    group.reset(0)

    second = group.step(moves(team_0=[0]))
    third = group.step(moves(team_1=[0]))
    fourth = group.step(moves(team_2=[0]))

    # What came before an agent's first decision is of no decision of its own.
    assert told(second.steps[ONE]) == (0, [0], [0.0])
    assert told(third.steps["Count?team=2"]) == (0, [0], [0.0])
    assert told(fourth.steps[ZERO]) == (0, [0], [-0.5])


def test_all_agents_get_their_last_rewards_and_the_next_game_starts_in_the_same_tick():
    group = group_of(Counting(target=3, tax=0.25), rotate_sides=False)
    group.reset(0)
    group.step(moves(team_0=[0]))

    last = group.step(moves(team_1=[1]))

    winner, loser = last.steps[ONE], last.steps[ZERO]
    assert told(winner) == (1, [0], [1.0])
    assert told(loser) == (1, [0, 0], [-1.25, 0.0]), "the loser ends, and is first to move in the next game"
    assert winner.terminated.tolist() == loser.terminated.tolist() == [True]
    np.testing.assert_array_equal(loser.episode_ids, [0, 1])
    np.testing.assert_array_equal(loser.observations[0], [[3, 0], [0, 0]])
    np.testing.assert_array_equal(last.games.env_ids, [0])
    np.testing.assert_array_equal(last.games.outcomes, [[0, 1]])


def test_a_game_that_is_cut_short_is_truncated_for_all():
    group = group_of(Counting(target=9, patience=2), rotate_sides=False)
    group.reset(0)
    group.step(moves(team_0=[0]))
    last = group.step(moves(team_1=[0]))

    for steps in last.steps.values():
        assert (steps.ended, steps.terminated.tolist(), steps.truncated.tolist()) == (1, [False], [True])
    np.testing.assert_array_equal(last.games.outcomes, [[0.5, 0.5]])


def test_an_agent_that_never_moved_has_no_ending():
    group = group_of(Counting(target=1), rotate_sides=False)
    group.reset(0)
    last = group.step(moves(team_0=[0]))

    assert list(last.steps) == [ZERO]
    assert told(last.steps[ZERO]) == (1, [0, 0], [1.0, 0.0])
    np.testing.assert_array_equal(last.games.outcomes, [[1, 0]])


@pytest.mark.parametrize("masks", ["observation", "info"])
def test_masks_belong_to_the_agent_to_move(masks):
    group = group_of(Counting(target=2, masks=masks), rotate_sides=False)
    first = group.reset(0)
    assert group.behavior_specs[ZERO].actions.masked
    assert group.behavior_specs[ONE].actions.masked
    np.testing.assert_array_equal(first.steps[ZERO].action_masks, [[True, True]])
    second = group.step(moves(team_0=[0]))
    np.testing.assert_array_equal(second.steps[ONE].action_masks, [[True, False]])
    last = group.step(moves(team_1=[0]))
    assert len(last.steps[ONE].action_masks) == 0, "a row that ends does not request a decision"


def test_teams_take_turns_at_moving_first():
    group = group_of(Counting(target=1), Counting(target=1))

    first = group.reset(0)
    assert {i: steps.env_ids.tolist() for i, steps in first.steps.items()} == {ZERO: [0], ONE: [1]}
    second = group.step(moves(team_0=[0], team_1=[0]))
    assert {i: steps.env_ids[steps.ended :].tolist() for i, steps in second.steps.items()} == {ZERO: [1], ONE: [0]}
    np.testing.assert_array_equal(second.games.outcomes, [[1, 0], [0, 1]])
    third = group.step(moves(team_0=[0], team_1=[0]))
    np.testing.assert_array_equal(third.games.outcomes, [[0, 1], [1, 0]])


def test_an_agent_never_changes_its_behaviour_id_or_meets_its_number_again():
    group = group_of(*[Counting(target=3) for _ in range(3)])
    result = group.reset(0)
    behavior_of, episodes = {}, {}
    random = np.random.default_rng(0)
    for _ in range(40):
        for behavior_id, steps in result.steps.items():
            rows = zip(steps.agent_ids.tolist(), steps.env_ids.tolist(), steps.episode_ids.tolist(), strict=True)
            for row, (agent, env_id, episode) in enumerate(rows):
                assert behavior_of.setdefault(agent, (behavior_id, env_id)) == (behavior_id, env_id)
                if row >= steps.ended:
                    assert episode >= episodes.get(agent, 0)
                    episodes[agent] = episode
                else:
                    assert episode == episodes[agent]
        result = group.step(
            {
                behavior_id: ActionBatch(
                    np.zeros((len(steps.action_masks), 0), np.float32),
                    (random.random(len(steps.action_masks)) < steps.action_masks[:, 1]).astype(np.int32)[:, None],
                )
                for behavior_id, steps in result.steps.items()
            }
        )
    assert len(behavior_of) == 3 * 2 * 2, "each of two agents is of each team in each of three instances"


def test_a_mask_that_forbids_everything_is_reported():
    class Stuck(Counting):
        def _mask(self, agent):
            return np.zeros(2, np.int8)

    with pytest.raises(
        BrokenEnvironmentError, match="agent .* of Count in instance 0: action_mask in the observation forbids all 2"
    ):
        group_of(Stuck()).reset(0)


def test_ended_agents_that_stay_are_reported():
    group = group_of(Counting(target=1, stubborn=True), rotate_sides=False)
    group.reset(0)

    with pytest.raises(BrokenEnvironmentError, match="agent 'player_1' was stepped with None at its end, but is still"):
        group.step(moves(team_0=[0]))
