"""`predict` is what `--inference` plays: for every kind of observation and action, from `.pt` and `.onnx`."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from predicted import MEMORY, Acting, group_of, saved

from headrace import load_policy

VECTOR = spaces.Box(-2, 2, (3,))
THING = spaces.Dict(kind=spaces.Discrete(2), at=spaces.Box(-9, 9, (2,)))
PIXELS = partial(spaces.Box, 0, 255, dtype=np.uint8)
OBSERVED: dict[str, Any] = {
    "vector": VECTOR,
    "doubles": spaces.Box(-2, 2, (2, 3), np.float64),
    "a number": spaces.Box(-1, 1, ()),
    "bytes": spaces.Box(0, 9, (4,), np.uint8),
    "discrete": spaces.Discrete(4, start=-1),
    "several discrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[1, 0], [0, 5]])),
    "binary": spaces.MultiBinary((2, 2)),
    "picture": PIXELS((20, 20, 3)),
    "picture, channels first": PIXELS((3, 20, 20)),
    "grey picture": PIXELS((20, 24)),
    "stacked pictures": PIXELS((2, 20, 20, 3)),
    "set": spaces.Sequence(THING),
    "stacked set": spaces.Sequence(spaces.Box(-9, 9, (2,)), stack=True),
    "goal": spaces.Dict(observation=VECTOR, desired_goal=spaces.Box(-1, 1, (2,))),
    "nested": spaces.Dict(
        body=spaces.Tuple([spaces.Discrete(3), spaces.Dict(at=VECTOR, on=spaces.MultiBinary(2))]),
        eye=PIXELS((20, 20, 1)),
    ),
}
DONE: dict[str, Any] = {
    "box": spaces.Box(np.array([0, -2], np.float32), np.array([10, 6], np.float32)),
    "box of a shape": spaces.Box(-3, 3, (2, 2), np.float64),
    "box without bounds": spaces.Box(-np.inf, np.inf, (2,)),
    "whole numbers": spaces.Box(0, 9, (3,), np.int32),
    "discrete": spaces.Discrete(5, start=2),
    "several discrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "binary": spaces.MultiBinary(3),
    "nested": spaces.Dict(arm=spaces.Tuple([spaces.Box(-1, 5, (2,)), spaces.Discrete(3)]), walk=spaces.MultiBinary(2)),
}
CASES = [
    *(pytest.param(seen, DONE["nested"], id=f"observes {name}") for name, seen in OBSERVED.items()),
    *(pytest.param(VECTOR, done, id=f"does {name}") for name, done in DONE.items()),
]


def batched(space, items):
    return concatenate(space, items, create_empty_array(space, len(items)))


def assert_same(one, other):
    """Assert that two actions are equal to 1e-6, and of the same types and shapes."""
    if isinstance(one, dict | tuple):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key])
    else:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6, strict=True)


def files() -> list[Any]:
    """Each case as both kinds of file, one of which has a memory; the two others are slow tests."""
    kinds = list(product((".pt", ".onnx"), ({}, MEMORY)))
    return [
        pytest.param(
            *case.values,
            suffix,
            network,
            id=f"{case.id}-{suffix}{'-memory' * bool(network)}",
            marks=[] if (number + (suffix == ".pt") + bool(network)) % 2 else [pytest.mark.slow],
        )
        for number, case in enumerate(CASES)
        for suffix, network in kinds
    ]


@pytest.mark.lengthy
@pytest.mark.parametrize(("observed", "done", "suffix", "network"), files())
def test_predictions_are_what_inference_plays_one_by_one_and_in_a_batch(tmp_path, observed, done, suffix, network):
    group, envs, result = group_of(observed, done)
    file = saved(tmp_path, group.behavior_specs["Test"], suffix, normalize=True, **network)
    acting, policy = Acting(file, group), load_policy(file)
    states: list[Any] = [None] * len(envs)
    states_of_batch = None
    for _ in range(3):
        result = acting.step(result)
        for i, env in enumerate(envs):
            action, states[i] = policy.predict(env.seen[-2], state=states[i])
            assert_same(action, env.given[-1])
            assert action in done
        batch = batched(observed, [env.seen[-2] for env in envs])
        actions, states_of_batch = policy.predict(batch, state=states_of_batch)
        assert_same(actions, batched(done, [env.given[-1] for env in envs]))
    assert (states_of_batch is None) == (not network)


@pytest.mark.lengthy
@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
def test_settings_of_observations_and_squashed_actions_are_part_of_the_file(tmp_path, suffix):
    observed = spaces.Dict(
        rows=spaces.Box(-1, 1, (4, 3)), board=PIXELS((24, 20, 64)), others=spaces.Sequence(spaces.Discrete(3))
    )
    settings = {"rows": {"kind": "set"}, "board": {"channels": "first"}, "others": {"max_entities": 40}}
    group, envs, result = group_of(observed, DONE["box"], settings)
    file = saved(tmp_path, group.behavior_specs["Test"], suffix, squashed=True)
    acting, policy = Acting(file, group), load_policy(file)
    for _ in range(2):
        result = acting.step(result)
        for env in envs:
            assert_same(policy.predict(env.seen[-2])[0], env.given[-1])


@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
def test_a_policy_in_the_environments_own_numbers_is_clipped_at_its_bounds(tmp_path, suffix):
    done = spaces.Dict(arm=spaces.Box(np.array([0.2, -9], np.float32), np.array([0.3, 9], np.float32)))
    group, envs, result = group_of(VECTOR, done, clips=True)
    assert group.behavior_specs["Test"].actions.unbounded == (0, 1)
    file = saved(tmp_path, group.behavior_specs["Test"], suffix)
    acting, policy = Acting(file, group), load_policy(file)
    for _ in range(3):
        result = acting.step(result)
        for env in envs:
            action, given = policy.predict(env.seen[-2])[0], env.given[-1]
            assert_same(action, given)
            assert given["arm"] in done["arm"]
            assert given["arm"][0] in (np.float32(0.2), np.float32(0.3)), "the policy begins near 0"


@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
@pytest.mark.parametrize(
    ("done", "masks"),
    [
        (spaces.Discrete(4, start=1), [[0, 0, 1, 1], [1, 0, 0, 0]]),
        (spaces.MultiDiscrete([2, 3]), [([0, 1], [1, 0, 1]), ([1, 0], [0, 0, 1])]),
        (DONE["nested"]["arm"], [(None, [0, 0, 1]), (None, [1, 1, 0])]),
    ],
)
def test_masks_are_taken_in_the_forms_that_environments_give_them_in(tmp_path, suffix, done, masks):
    as_arrays = [
        np.array(mask, np.int8)
        if isinstance(mask, list)
        else tuple(None if m is None else np.array(m, np.int8) for m in mask)
        for mask in masks
    ]
    given = iter(as_arrays * 20)
    group, envs, result = group_of(VECTOR, done, mask=lambda: next(given), num_envs=1)
    file = saved(tmp_path, group.behavior_specs["Test"], suffix)
    acting, policy = Acting(file, group), load_policy(file)
    differs = False
    for _ in range(4):
        result = acting.step(result)
        action, _ = policy.predict(envs[0].seen[-2], mask=envs[0].masks[-2])
        assert_same(action, envs[0].given[-1])
        differs |= str(action) != str(policy.predict(envs[0].seen[-2])[0])
    assert differs, "a mask changes something"


def test_masks_of_a_batch_are_rows_or_a_tuple_of_rows(tmp_path):
    group, envs, _ = group_of(VECTOR, spaces.MultiDiscrete([2, 3]))
    policy = load_policy(saved(tmp_path, group.behavior_specs["Test"]))
    batch = np.stack([env.seen[-1] for env in envs])
    rows = np.array([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 0]])

    together, _ = policy.predict(batch, mask=rows)
    apart, _ = policy.predict(batch, mask=(rows[:, :2], rows[:, 2:]))

    assert together.tolist() == apart.tolist() == [[1, 0], [0, 2], [0, 1]]


def test_an_observation_may_bring_its_mask_as_pettingzoos_do(tmp_path):
    group, envs, _ = group_of(spaces.Dict(observation=VECTOR), spaces.Discrete(3))
    policy = load_policy(saved(tmp_path, group.behavior_specs["Test"]))
    seen = envs[0].seen[-1]

    for choice in range(3):
        assert policy.predict({**seen, "action_mask": np.arange(3) == choice})[0] == choice


def test_an_episode_that_begins_forgets_its_row_of_the_state(tmp_path):
    group, envs, _ = group_of(VECTOR, DONE["box"])
    policy = load_policy(saved(tmp_path, group.behavior_specs["Test"], **MEMORY))
    batch = np.stack([env.seen[-1] for env in envs])
    first, state = policy.predict(batch)

    later, _ = policy.predict(batch, state=state)
    mixed, after = policy.predict(batch, state=state, episode_start=[False, True, False])

    assert state.shape == (3, policy.state_size)
    assert_same(mixed[1], first[1])
    assert_same(mixed[[0, 2]], later[[0, 2]])
    assert not np.allclose(first, later)
    again, _ = policy.predict(batch[0], state=after[0])
    assert_same(again, policy.predict(batch, state=after)[0][0])


def test_samples_are_those_of_the_seed(tmp_path):
    group, envs, _ = group_of(VECTOR, DONE["box"])
    file = saved(tmp_path, group.behavior_specs["Test"])
    drawn = [[load_policy(file, seed=seed).predict(envs[0].seen[0], deterministic=False)[0]] for seed in (1, 1, 2)]

    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_a_batch_of_none_is_answered_by_none(tmp_path):
    group, _, _ = group_of(VECTOR, DONE["nested"])
    policy = load_policy(saved(tmp_path, group.behavior_specs["Test"], **MEMORY))

    actions, state = policy.predict(np.empty((0, 3), np.float32))

    assert actions["arm"][0].shape == (0, 2)
    assert state.shape == (0, policy.state_size)
