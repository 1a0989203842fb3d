"""What does not fit a policy is told in one message: which argument, what was expected, what was got."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from predicted import MEMORY, group_of, saved

from headrace import PredictError, load_policy

TWO = spaces.Discrete(2)
BOX: Any = spaces.Box(-2, 2, (3,))
STACKED = spaces.Box(0, 255, (4, 84, 84), np.uint8)
PICTURE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
BOTH = spaces.Dict(at=BOX, gear=spaces.Discrete(3, start=1))
PAIR: Any = spaces.Tuple([BOX, spaces.Box(0, 9, (2,), np.int64)])
THINGS = spaces.Sequence(spaces.Dict(kind=spaces.Discrete(2), at=spaces.Box(-9, 9, (2,))))
AT, GEAR = np.zeros(3, np.float32), np.int64(1)


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory):
    """Returns a policy that observes a space, and acts in another."""
    known = {}

    def make(observed, done=TWO, **network):
        key = f"{observed} {done} {network}"
        if key not in known:
            group, _, _ = group_of(observed, done, num_envs=1)
            spec = group.behavior_specs["Test"]
            known[key] = load_policy(saved(tmp_path_factory.mktemp("policy"), spec, **network))
        return known[key]

    return make


@pytest.mark.parametrize(
    ("observed", "given", "message"),
    [
        (BOX, np.zeros(4), r"obs: expected an observation in Box\(-2.0, 2.0, \(3,\), float32\), or a batch of observations, got an array of shape \(4,\) \(float64\)$"),
        (BOX, [[1, 2, 3], [1, 2]], "got a list of 2 of different shapes"),
        (BOX, None, "got None$"),
        (BOX, {"at": AT}, "got a dict with the keys \\['at'\\]$"),
        (BOX, (AT, {}), r"env\.reset\(\) returns \(observation, info\): pass only the observation$"),
        (BOX, [0, np.nan, 0], r"obs: the observation 'observation' at \[1\] is nan; expected a finite number"),
        (BOX, [[0, 0, 0], [0, 1e300, 0]], r"obs, row 1: the observation 'observation' at \[1\] is 1e\+300, which is too large for float32"),
        (PICTURE, np.zeros((3, 20, 20), np.uint8), r"expected an observation in Box\(0, 255, \(20, 20, 3\), uint8\)"),
        (PICTURE, np.full((20, 20, 3), 0.5), "expected integers in .*; pass images as unscaled bytes, 0 to 255$"),
        (PICTURE, np.full((20, 20, 3), 256), r"obs: the observation 'observation' has 256 at \[0, 0, 0\], which uint8 can't hold; expected .* Box\(0, 255"),
        (STACKED, np.zeros((210, 160, 3), np.uint8), r"got an array of shape \(210, 160, 3\) \(uint8\)$"),
        (STACKED, np.zeros((4, 84, 85), np.uint8), r"got an array of shape \(4, 84, 85\) \(uint8\)$"),
        (BOTH, {"at": AT}, r"obs: 'gear' is missing; expected Dict\('at': Box.*'gear': Discrete\(3, start=1\)\)$"),
        (BOTH, {"at": AT, "gaer": GEAR}, r"obs: the space has no 'gaer'; did you mean 'gear'\?"),
        (BOTH, {"at": AT, "gear": 0}, r"obs: the observation 'gear' is 0, outside its space Discrete\(3, start=1\); expected 1 to 3$"),
        (BOTH, {"at": AT, "gear": 1.5}, r"obs\['gear'\]: expected integers in Discrete"),
        (BOTH, {"at": [AT, AT], "gear": [GEAR]}, r"obs: \['at'\] is a batch of 2, but \['gear'\] is a batch of 1$"),
        (PAIR, (AT,), r"obs: expected an observation in Tuple\(Box.*\), got a tuple of shape \(1, 3\)"),
        (THINGS, [{"kind": 0}], r"obs: expected an observation in Sequence\(Dict\('kind': .*, got a list"),
        (THINGS, [{"kind": 2, "at": [0, 0]}], r"obs: the observation 'observation.kind' is 2, outside its space Discrete\(2\); expected 0 to 1$"),
        (THINGS, [{"kind": 1, "at": [0, 0]}] * 33, "obs: .* has 33 entities, more than the maximum of 32"),
    ],
)  # fmt: skip
def test_an_observation_that_does_not_fit_is_refused_with_the_expected_form(policy_of, observed, given, message):
    with pytest.raises(PredictError, match=message):
        policy_of(observed).predict(given)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([1, 0, 1], r"mask: has shape \(3,\); expected 1 for each allowed choice .*: 5 \(2 \+ 3\)$"),
        ([1, 0, 0, 0, 0], "mask: forbids all 3 choices of branch 1"),
        ({"arm": [1]}, "mask: is a map, but the space is MultiDiscrete"),
        ([0, -np.inf, 0, 0, 0], r"mask: has -inf at index 1; expected 1 for each allowed"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_with_the_expected_form(policy_of, mask, message):
    policy = policy_of(BOX, spaces.MultiDiscrete([2, 3]))
    with pytest.raises(PredictError, match=message):
        policy.predict(AT, mask=mask)
    with pytest.raises(PredictError, match=message.replace("mask: ", "mask: row 1 ").replace("(3,)", "(5, 3)")):
        policy.predict([AT, AT], mask=[[1] * 5, mask])


def test_a_mask_for_continuous_actions_is_refused(policy_of):
    with pytest.raises(PredictError, match=r"mask: is for Box\(.*\), which can't be masked"):
        policy_of(BOX, BOX).predict(AT, mask=[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"state": np.zeros(3)},
            r"state: expected the state that predict returned .*, \[\d+\], .* got an array of shape \(3,\)",
        ),
        ({"state": "x"}, "got str 'x'"),
        ({"state": (None, None)}, "got a tuple"),
        ({"deterministic": None}, "deterministic: expected True or False, got a NoneType; pass the other arguments"),
    ],
)
def test_a_state_of_another_policy_is_refused(policy_of, given, message):
    with pytest.raises(PredictError, match=message):
        policy_of(BOX, **MEMORY).predict(AT, **given)


def test_the_number_of_episode_starts_must_match_the_observations(policy_of):
    policy = policy_of(BOX, **MEMORY)
    _, state = policy.predict([AT, AT])
    with pytest.raises(
        PredictError, match="episode_start: expected true or false for each of 2 observations, got a list"
    ):
        policy.predict([AT, AT], state=state, episode_start=[True])
    with pytest.raises(PredictError, match=r"state: .*\[2, \d+\], a row for each observation"):
        policy.predict([AT, AT], state=state[0])


def test_a_policy_without_memory_takes_no_state(policy_of):
    action, state = policy_of(BOX).predict(AT)
    policy_of(BOX).predict(AT, state=state)
    with pytest.raises(PredictError, match="this policy has no memory, so the state must be None"):
        policy_of(BOX).predict(AT, state=action)


def test_plain_lists_numbers_and_other_dtypes_are_fine(policy_of):
    expected = policy_of(BOTH).predict({"at": np.ones(3, np.float32), "gear": np.int64(2)})[0]
    for at, gear in (([1, 1, 1], 2), (np.ones(3, np.int64), np.float64(2)), ((1.0, 1, True), np.uint8(2))):
        assert policy_of(BOTH).predict({"gear": gear, "at": at})[0] == expected


def test_a_tensor_is_fine_unless_it_wants_a_gradient(policy_of):
    expected = policy_of(BOX).predict([1, 1, 1])[0]
    assert policy_of(BOX).predict(torch.ones(3))[0] == expected
    with pytest.raises(
        PredictError, match=r"got an array of shape \(3,\) \(torch.float32\); for a tensor, pass obs\.detach"
    ):
        policy_of(BOX).predict(torch.ones(3, requires_grad=True))


def test_single_and_batched_sequences_are_distinguished(policy_of):
    policy = policy_of(THINGS)
    one = ({"kind": 1, "at": [0, 1]},)
    actions = [policy.predict(given)[0] for given in ((), one, [(), one], [one], ((), ()))]
    assert [np.shape(action) for action in actions] == [(), (), (2,), (1,), (2,)]


def test_numbers_beyond_the_bounds_of_a_box_are_warned_about_once(policy_of, caplog):
    policy = policy_of(spaces.Box(-2.25, 2.25, (3,)))
    policy.predict([[0, 0, 0], [0, 2, 0]])
    assert not caplog.messages
    for _ in range(2):
        policy.predict([[0, 0, 0], [0, 2.5, 0]])
    (message,) = caplog.messages
    assert message.startswith("obs, row 1: the observation 'observation' has 2.5 at [1], outside its space Box(-2.25")
