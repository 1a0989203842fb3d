"""Whatever agents do, their rows tell of all of it: random lives, told apart by an account kept beside."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from small_zoo import Counting, Crowd

from headrace.config import RoleSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of

STEPS = 6
"""Length of a world's episode."""
LIVES = st.tuples(st.integers(0, 3), st.integers(1, 5), st.floats(-2, 2, width=16))


@st.composite
def crowds(draw):
    """The scripts of up to three instances with the same agents, at least one of which is there from the start."""
    agents = [f"a_{number}" for number in range(draw(st.integers(1, 4)))]
    scripts = []
    for _ in range(draw(st.integers(1, 3))):
        lives = [draw(LIVES) for _ in agents]
        lives[0] = (0, STEPS, lives[0][2])  # so that nobody joins a world that has ended
        scripts.append(
            {a: (first, min(first + length, STEPS), pay) for a, (first, length, pay) in zip(agents, lives, strict=True)}
        )
    return scripts


def choose(steps, spec, random):
    count = len(steps.agent_ids) - steps.ended
    allowed = np.ones((count, spec.actions.mask_size)) if steps.action_masks is None else steps.action_masks
    discrete = (random.random(allowed.shape) * allowed).argmax(axis=1) if count else np.zeros(0)
    return ActionBatch(np.zeros((count, 0), np.float32), discrete[:, None].astype(np.int32))


@pytest.mark.lengthy
@examples(25)
@given(crowds())
def test_every_life_is_one_episode_with_all_its_rewards(scripts):
    group = PettingZooGroup(
        [instance_of(Crowd(script), "Zoo") for script in scripts], "A", "Zoo", {"*": RoleSettings(team=0)}
    )
    result, random = group.reset(1), np.random.default_rng(1)
    returns, decisions, ended = defaultdict(float), defaultdict(int), set()
    for _ in range(2 * STEPS + 1):  # two whole episodes of each instance, and the beginning of the third
        for steps in result.steps.values():
            rows = list(zip(steps.agent_ids.tolist(), steps.episode_ids.tolist(), strict=True))
            for row, life in enumerate(rows):
                assert life not in ended
                returns[life] += float(steps.rewards[row])
                if row < steps.ended:
                    ended.add(life)
                else:
                    decisions[life] += 1
        result = group.step({i: choose(s, group.behavior_specs[i], random) for i, s in result.steps.items()})
    number = {agent: position for position, agent in enumerate(scripts[0])}
    for env_id, script in enumerate(scripts):
        for agent, (first, last, pay) in script.items():
            for episode in (0, 1):
                life = (number[agent] * len(scripts) + env_id, episode)
                assert life in ended
                assert decisions[life] == last - first
                np.testing.assert_allclose(returns[life], pay * (last - first), rtol=1e-5, atol=1e-6)


@pytest.mark.lengthy
@examples(15)
@given(st.integers(1, 4), st.integers(2, 3), st.integers(1, 9), st.sampled_from([0.0, 0.25]), st.integers(0, 99))
def test_games_by_turns_pay_out_what_their_moves_earned(instances, players, target, tax, seed):
    group = PettingZooGroup(
        [instance_of(Counting(target, players, tax), "Zoo") for _ in range(instances)],
        *("A", "Zoo", {"*": RoleSettings(team="each")}),
        rotate_sides=False,
    )
    result, random = group.reset(seed), np.random.default_rng(seed)
    paid, moved = np.zeros((instances, players)), np.zeros((instances, players), int)
    for _ in range(30):
        movers = {}
        for behavior_id, steps in result.steps.items():
            team = group.behavior_specs[behavior_id].team
            paid[steps.env_ids[steps.ended :], team] += steps.rewards[steps.ended :]
            for env_id in steps.env_ids[steps.ended :].tolist():
                assert env_id not in movers, "one agent is to move"
                movers[env_id] = team
        assert sorted(movers) == list(range(instances))
        result = group.step({i: choose(s, group.behavior_specs[i], random) for i, s in result.steps.items()})
        over = set(result.games.env_ids.tolist())
        for env_id, team in movers.items():
            moved[env_id, team] += 1
            if env_id in over:
                last = {group.behavior_specs[i].team: s for i, s in result.steps.items()}
                for player in np.flatnonzero(moved[env_id]):
                    steps = last[int(player)]
                    (row,) = np.flatnonzero(steps.env_ids[: steps.ended] == env_id)
                    earned = paid[env_id, player] + steps.rewards[row]
                    # As many others moved before one's own first move as one's seat says: these taxes count for none.
                    others = moved[env_id].sum() - moved[env_id, player] - player
                    won = 1.0 if player == team else -1.0
                    np.testing.assert_allclose(earned, won - tax * others, atol=1e-5)
                paid[env_id], moved[env_id] = 0, 0
