"""`distribution` and `value`: what a loaded policy draws from, and what its trainer's critic says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from predicted import MEMORY, group_of, saved

from headrace import PredictError, load_policy
from headrace.config import BehaviorSettings
from headrace.pipeline.policies.export import export_policy
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.protocol import TrainerContext

SEEN = spaces.Box(-1, 1, (3,))
PICTURE = spaces.Box(0, 255, (20, 24, 3), np.uint8)


def spec_of(seen, done, **more):
    return group_of(seen, done, **more)[0].behavior_specs["Test"]


def trained(folder, spec, trainer="ppo", **block):
    """A trainer, and the file of its policy as a run exports it."""
    network = {"hidden_units": 16, "num_layers": 2, "vis_encode_type": "simple", **block.pop("network_settings", {})}
    settings = BehaviorSettings.model_validate({"trainer_type": trainer, "network_settings": network, **block})
    made = make_trainer(TrainerContext("Test", settings, spec, seed=3))
    return made, export_policy(folder, made.policy(), spec, settings, learner=made.warm_state())


@pytest.mark.parametrize("deterministic", [True, False])
def test_probabilities_are_those_that_predict_draws_by(tmp_path, deterministic):
    policy = load_policy(saved(tmp_path, spec_of(SEEN, spaces.Discrete(3, start=1))), seed=1)
    obs = np.array([0.3, -0.2, 0.9], np.float32)
    (chances,) = policy.distribution(obs).probabilities
    assert chances.sum() == pytest.approx(1.0)
    if deterministic:
        assert policy.predict(obs).action == 1 + chances.argmax()
        return
    drawn, _ = policy.predict(np.tile(obs, (20_000, 1)), deterministic=False)
    np.testing.assert_allclose(np.bincount(drawn - 1, minlength=3) / 20_000, chances, atol=0.02)


def test_a_batch_has_rows_and_what_a_mask_forbids_has_no_chance(tmp_path):
    spec = spec_of(SEEN, spaces.MultiDiscrete([3, 2]), mask=lambda: (np.ones(3, np.int8), np.ones(2, np.int8)))
    policy = load_policy(saved(tmp_path, spec))
    batch = np.zeros((4, 3), np.float32)
    free = policy.distribution(batch)
    assert [each.shape for each in free.probabilities] == [(4, 3), (4, 2)]
    masks = np.tile([True, False, True, False, True], (4, 1))
    three, two = policy.distribution(batch, mask=masks).probabilities
    np.testing.assert_array_equal(two, [[0.0, 1.0]] * 4)
    np.testing.assert_allclose(
        three[:, 0] / three[:, 2], free.probabilities[0][:, 0] / free.probabilities[0][:, 2], 1e-5
    )
    np.testing.assert_array_equal(three[:, 1], 0.0)


@pytest.mark.parametrize("squashed", [False, True])
def test_means_and_deviations_are_those_of_the_continuous_draws(tmp_path, squashed):
    policy = load_policy(saved(tmp_path, spec_of(SEEN, spaces.Box(-2, 2, (2,))), squashed=squashed), seed=1)
    obs = np.array([0.3, -0.2, 0.9], np.float32)
    found = policy.distribution(obs)
    assert found.squashed == squashed
    likely = np.tanh(found.means) if squashed else np.clip(found.means, -3, 3) / 3
    np.testing.assert_allclose(policy.predict(obs).action, 2 * likely, rtol=1e-5)
    drawn = policy.predict(np.tile(obs, (20_000, 1)), deterministic=False).action / 2
    inside = np.abs(drawn) < 0.999
    back = np.arctanh(np.clip(drawn, -0.999, 0.999)) if squashed else 3 * drawn
    for c in range(2):
        median = np.median(back[:, c])
        assert median == pytest.approx(found.means[c], abs=0.05)
        spread = np.median(np.abs(back[inside[:, c], c] - median)) / 0.6745
        assert spread == pytest.approx(found.deviations[c], rel=0.1)


def test_of_a_policy_with_memory_they_are_of_its_state(tmp_path):
    policy = load_policy(saved(tmp_path, spec_of(SEEN, spaces.Discrete(3)), **MEMORY))
    obs = np.array([0.3, -0.2, 0.9], np.float32)
    _, state = policy.predict(obs)
    first, later = (policy.distribution(obs, state=each).probabilities[0] for each in (None, state))
    assert not np.allclose(first, later)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("trainer", ["ppo", "impala"])
@pytest.mark.parametrize("seen", [SEEN, PICTURE], ids=["vector", "picture"])
def test_a_value_is_that_of_the_trainers_critic(tmp_path, trainer, shared, seen):
    spec = spec_of(seen, spaces.Discrete(3))
    made, file = trained(tmp_path, spec, trainer, hyperparameters={"shared_critic": shared})
    batch = np.stack([seen.sample() for _ in range(5)])
    with torch.no_grad():
        inputs = (
            Inputs(torch.from_numpy(batch)) if seen is SEEN else Inputs(torch.empty(5, 0), (torch.from_numpy(batch),))
        )
        expected = made._network.evaluate(inputs)[0][:, 0].numpy()
    policy = load_policy(file)
    np.testing.assert_allclose(policy.value(batch), expected, rtol=1e-5, atol=1e-6)
    assert policy.value(batch[2]) == pytest.approx(float(expected[2]), abs=1e-5)


def test_observations_are_normalised_for_the_critic_as_for_the_actor(tmp_path):
    spec = spec_of(spaces.Box(-100, 100, (3,)), spaces.Discrete(3))
    made, file = trained(tmp_path, spec, network_settings={"normalize": True})
    state = made.warm_state()
    state["normalizer"] = {**state["normalizer"], "mean": np.full(3, 50.0), "count": 10.0}
    made.warm_start(state)
    batch = np.random.default_rng(0).uniform(40, 60, (5, 3)).astype(np.float32)
    settings = BehaviorSettings.model_validate(
        {"trainer_type": "ppo", "network_settings": {"hidden_units": 16, "num_layers": 2, "normalize": True}}
    )
    file = export_policy(tmp_path, made.policy(), spec, settings, learner=made.warm_state())
    tensors = made.policy().tensors()
    seen = np.clip((batch - tensors["normalizer.mean"]) * tensors["normalizer.inverse_std"], -5, 5)
    with torch.no_grad():
        expected = made._network.evaluate(Inputs(torch.from_numpy(seen.astype(np.float32))))[0][:, 0].numpy()
    np.testing.assert_allclose(load_policy(file).value(batch), expected, rtol=1e-4)


def test_the_value_has_one_entry_per_reward_signal(tmp_path):
    signals = {"extrinsic": {"strength": 1.0}, "curiosity": {"strength": 0.1}}
    _, file = trained(tmp_path, spec_of(SEEN, spaces.Discrete(3)), reward_signals=signals)
    policy = load_policy(file)
    assert policy.value(np.zeros(3, np.float32)).shape == (2,)
    assert policy.value(np.zeros((4, 3), np.float32)).shape == (4, 2)


def test_sacs_value_is_the_smaller_q_of_the_most_likely_action(tmp_path):
    spec = spec_of(SEEN, spaces.Box(-2, 2, (2,)))
    made, file = trained(tmp_path, spec, "sac")
    policy, batch = load_policy(file), np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    actions = torch.from_numpy(policy.predict(batch).action / 2)
    critics = made._update.critics.module
    with torch.no_grad():
        both = [q(Inputs(torch.from_numpy(batch)), actions)[:, 0, 0].numpy() for q in (critics.q1, critics.q2)]
    np.testing.assert_allclose(policy.value(batch), np.minimum(*both), rtol=1e-4)


def test_sacs_value_with_discrete_actions_is_its_v(tmp_path):
    made, file = trained(tmp_path, spec_of(SEEN, spaces.Discrete(3)), "sac")
    batch = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    with torch.no_grad():
        expected = made._update.critics.module.value(Inputs(torch.from_numpy(batch)))[:, 0].numpy()
    np.testing.assert_allclose(load_policy(file).value(batch), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "call", "message"),
    [
        (lambda folder: saved(folder, spec_of(SEEN, spaces.Discrete(3)), ".onnx"), "value", "holds only a policy"),
        (
            lambda folder: saved(folder, spec_of(SEEN, spaces.Discrete(3)), ".onnx"),
            "distribution",
            "gives only actions",
        ),
        (lambda folder: saved(folder, spec_of(SEEN, spaces.Discrete(3))), "value", "that has no state-value critic"),
        (
            lambda folder: trained(folder, spec_of(SEEN, spaces.Discrete(3)), "poca")[1],
            "value",
            "from a trainer .poca.",
        ),
        (
            lambda folder: trained(folder, spec_of(SEEN, spaces.Discrete(3)), network_settings=MEMORY)[1],
            "value",
            "has its own memory",
        ),
    ],
)
def test_a_value_or_distribution_that_the_file_lacks_is_refused(tmp_path, make, call, message):
    with pytest.raises(PredictError, match=message):
        getattr(load_policy(make(tmp_path)), call)(np.zeros(3, np.float32))
