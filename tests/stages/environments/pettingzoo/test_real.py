"""Environments of PettingZoo itself, and of mpe2, where they are installed."""

from __future__ import annotations

import environment_requests
import numpy as np
import pytest
from fakes import at_once

from headrace.config import EnvironmentSettings
from headrace.queues.messages import ActionBatch

pettingzoo = pytest.importorskip("pettingzoo", reason="python -m pip install 'headrace[pettingzoo]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pygame.*"),
]

TAG = {"adversary_*": {"behavior": "Predator", "team": 0}, "agent_*": {"behavior": "Prey", "team": 1}}


def group_of(env_id, num_envs=2, behavior="All", **settings):
    plain = {"kind": "pettingzoo", "id": env_id, **settings}
    return environment_requests.group_of(EnvironmentSettings.model_validate(plain), behavior, num_envs)


def at_random(result, group, random):
    """An action that is allowed for everybody who is asked."""
    batches = {}
    for behavior_id, steps in result.steps.items():
        spec, count = group.behavior_specs[behavior_id].actions, len(steps.agent_ids) - steps.ended
        allowed = np.ones((count, spec.mask_size)) if steps.action_masks is None else steps.action_masks
        branches = np.split(random.random(allowed.shape) * allowed, np.cumsum(spec.discrete_branches)[:-1], axis=1)
        discrete = (
            np.stack([branch.argmax(axis=1) for branch in branches], axis=1) if spec.discrete_branches else allowed
        )
        continuous = random.uniform(-1, 1, (count, spec.continuous_size))
        batches[behavior_id] = ActionBatch(continuous.astype(np.float32), discrete.astype(np.int32))
    return batches


def play(group, ticks, seed=0):
    random = np.random.default_rng(seed)
    result = group.reset(seed)
    yield result
    for _ in range(ticks):
        result = group.step(at_random(result, group, random))
        yield result
    group.close()


@pytest.mark.parametrize("env_id", ["pettingzoo.classic.connect_four_v3", "classic/connect_four-v3"])
def test_connect_four_is_found_as_a_module_and_in_the_registry(env_id):
    pytest.importorskip("pygame")
    group = group_of(env_id, observations={"observation": {"kind": "vector"}})
    group.reset(0)

    assert list(group.behavior_specs) == ["All?team=0", "All?team=1"]
    spec = group.behavior_specs["All?team=0"]
    assert (spec.actions.discrete_branches, spec.actions.masked) == ((7,), True)
    assert [(o.name, o.shape, o.dtype) for o in spec.observations] == [("observation", (84,), "int8")]
    group.close()


@pytest.mark.lengthy
def test_connect_four_is_the_same_game_as_the_built_in_one():
    pytest.importorskip("pygame")
    theirs = group_of("classic/connect_four-v3", 4, observations={"observation": {"kind": "vector"}})
    ours = environment_requests.group_of(EnvironmentSettings(kind="builtin", id="ConnectFour"), "All", 4)
    random = np.random.default_rng(3)
    assert at_once(theirs.reset(0)).steps.keys() | at_once(ours.reset(0)).steps.keys() == set(ours.behavior_specs)
    assert theirs.behavior_specs == ours.behavior_specs
    results, games = (at_once(theirs.reset(0)), at_once(ours.reset(0))), 0
    for _ in range(150):
        by_team = []
        for behavior_id in ours.behavior_specs:
            rows = [result.steps.get(behavior_id) for result in results]
            if rows[0] is None:  # ours gives empty rows, PettingZoo's group none
                assert not len(rows[1].agent_ids)
                continue
            for one, other in [rows]:
                assert one.ended == other.ended
                np.testing.assert_array_equal(one.env_ids, other.env_ids)
                np.testing.assert_array_equal(one.rewards, other.rewards)
                np.testing.assert_array_equal(one.observations[0], other.observations[0])
                np.testing.assert_array_equal(one.action_masks, other.action_masks)
                np.testing.assert_array_equal(one.terminated, other.terminated)
            by_team.append(behavior_id)
        actions = at_random(results[0], theirs, random)
        results = (at_once(theirs.step(actions)), at_once(ours.step(actions)))
        ended = results[0].games
        if len(ended.env_ids):
            np.testing.assert_array_equal(ended.env_ids, results[1].games.env_ids)
            np.testing.assert_array_equal(ended.outcomes, results[1].games.outcomes)
            games += len(ended.env_ids)
        else:
            assert results[1].games is None
    assert games > 10
    theirs.close()


def test_tag_has_two_behaviours_with_different_observations():
    pytest.importorskip("mpe2")
    group = group_of("mpe2.simple_tag_v3", 3, behaviors=TAG, options={"max_cycles": 5})
    results = list(play(group, 11))

    predators, prey = (group.behavior_specs[name] for name in ("Predator?team=0", "Prey?team=1"))
    assert (predators.observations[0].shape, prey.observations[0].shape) == ((16,), (14,))
    assert len(results[0].steps["Predator?team=0"].agent_ids) == 9
    assert len(results[0].steps["Prey?team=1"].agent_ids) == 3
    ended = results[5].steps["Prey?team=1"]
    assert (ended.ended, ended.truncated.tolist()) == (3, [True] * 3)
    np.testing.assert_array_equal(results[5].games.env_ids, [0, 1, 2])


def test_tag_by_turns_is_the_same_as_in_parallel():
    pytest.importorskip("mpe2")
    told = []
    for api in ("parallel", "aec"):
        group = group_of("mpe2.simple_tag_v3", 1, api=api, behaviors=TAG, options={"max_cycles": 25})
        result, seen = group.reset(7), {}
        while not any(steps.ended for steps in result.steps.values()):
            actions = {}
            for behavior_id, steps in result.steps.items():
                for agent, observation in zip(steps.agent_ids.tolist(), steps.observations[0], strict=True):
                    seen.setdefault(agent, []).append(observation)
                choices = np.full((len(steps.agent_ids), 1), 1 if behavior_id.startswith("Prey") else 3, np.int32)
                actions[behavior_id] = ActionBatch(np.zeros((len(choices), 0), np.float32), choices)
            result = group.step(actions)
        told.append(seen)
        group.close()
    assert told[0].keys() == told[1].keys()
    for agent, seen in told[0].items():
        np.testing.assert_allclose(seen, told[1][agent], atol=1e-6)


def test_a_tag_without_a_map_is_reported_how_to_write_one():
    pytest.importorskip("mpe2")
    from headrace.stages.errors import StageError

    with pytest.raises(StageError, match=r"environment\.behaviors: \{'adversary_\*': Name1, 'agent_\*': Name2\}"):
        group_of("mpe2.simple_tag_v3")


def test_an_unregistered_id_is_reported_with_a_similar_one():
    from headrace.stages.errors import LoadError

    with pytest.raises(LoadError, match="did you mean 'classic/tictactoe-v3'"):
        group_of("classic/tictactoe_v1")
