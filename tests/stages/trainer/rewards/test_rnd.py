"""Random network distillation: rewards and loss against the formula written out, and what they do."""

import numpy as np
import pytest


def written_out(signal, vectors):
    state = signal.state_dict()

    def features(weights):
        x = vectors.numpy() @ weights["layers.0.weight"].T.astype(np.float64) + weights["layers.0.bias"]
        return x / (1.0 + np.exp(-x))

    return ((features(state["network"]["weights"]) - features(state["target"])) ** 2).sum(axis=1)


def test_reward_and_loss_are_the_predictors_squared_error(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal, transitions = make_signal("rnd", spec), make_transitions(spec, 6)
    expected = written_out(signal, transitions.inputs.vectors)
    np.testing.assert_allclose(signal.rewards(transitions), expected, rtol=1e-5)
    assert signal.learn(transitions)["Losses/RND Loss"] == pytest.approx(expected.mean(), rel=1e-5)
    assert signal.ignores_termination


def test_the_target_never_changes(make_spec, make_signal, make_transitions, same):
    spec = make_spec()
    signal = make_signal("rnd", spec)
    target = signal.state_dict()["target"]
    signal.learn(make_transitions(spec, 6))
    assert same(signal.state_dict()["target"], target)
    assert not np.array_equal(signal.state_dict()["network"]["weights"]["layers.0.weight"], target["layers.0.weight"])


@pytest.mark.lengthy
def test_frequent_observations_are_rewarded_less_than_new_ones(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal = make_signal("rnd", spec, network_settings={"hidden_units": 32, "num_layers": 2})
    known, new = make_transitions(spec, 16), make_transitions(spec, 16, seed=1)
    at_first = signal.rewards(known).mean()
    for _ in range(500):
        signal.learn(known)
    assert signal.rewards(known).mean() < 0.1 * at_first
    assert signal.rewards(new).mean() > 5 * signal.rewards(known).mean()
