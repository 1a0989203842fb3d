"""Curiosity: its rewards and losses against the formulae written out, and what they do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.queues.specs import ActionSpec
from headrace.stages.trainer.rewards.curiosity import forward_errors, inverse_errors


def swish(x):
    return x / (1.0 + np.exp(-x))


def layer(weights, name, x):
    return x @ weights[f"{name}.weight"].T.astype(np.float64) + weights[f"{name}.bias"]


class WrittenOut:
    """Encoder, forward and inverse model in float64, from the weights of a signal with one hidden layer."""

    def __init__(self, signal, transitions):
        weights = signal.state_dict()["network"]["weights"]
        before = swish(layer(weights, "body.layers.0", transitions.inputs.vectors.numpy()))
        self.after = swish(layer(weights, "body.layers.0", transitions.next_inputs.vectors.numpy()))
        continuous, choices = transitions.continuous.numpy(), transitions.choices.numpy()
        actions = np.hstack([continuous, np.eye(3)[choices[:, 0]], np.eye(2)[choices[:, 1]]])
        hidden = swish(layer(weights, "forward_model.0", np.hstack([before, actions])))
        self.foreseen = layer(weights, "forward_model.2", hidden)
        hidden = swish(layer(weights, "inverse_model.0", np.hstack([before, self.after])))
        told = layer(weights, "inverse_model.2", hidden)
        self.inverse = ((told[:, :2] - continuous) ** 2).sum(axis=1)
        for logits, chosen in ((told[:, 2:5], choices[:, 0]), (told[:, 5:], choices[:, 1])):
            probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            self.inverse -= np.log(probabilities[np.arange(len(chosen)), chosen])
        self.forward = 0.5 * ((self.after - self.foreseen) ** 2).sum(axis=1)


def test_forward_error_is_half_the_squared_distance():
    foreseen, after = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 2.0]])
    assert forward_errors(foreseen, after).tolist() == [12.5, 2.0]


def test_inverse_error_adds_squares_and_cross_entropies_of_all_branches():
    heads = torch.tensor([[0.5, 0.0, np.log(3.0), 0.0, 0.0, np.log(2.0)]], dtype=torch.float64)
    errors = inverse_errors(ActionSpec(1, (2, 3)), heads, torch.tensor([[-1.0]]), torch.tensor([[0, 2]]))
    assert errors.item() == pytest.approx(1.5**2 + np.log(4.0) + np.log(2.0))


def test_reward_is_the_forward_error_and_zero_before_the_first_update(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal, transitions = make_signal("curiosity", spec, strength=1e-3), make_transitions(spec, 6)
    assert signal.rewards(transitions).tolist() == [0.0] * 6
    signal.learn(make_transitions(spec, 6, seed=1))
    np.testing.assert_allclose(signal.rewards(transitions), WrittenOut(signal, transitions).forward, rtol=1e-5)


@pytest.mark.parametrize("strength", [0.5, -0.5])
def test_reward_is_at_most_one_after_strength(make_spec, make_signal, make_transitions, strength):
    spec = make_spec()
    signal, transitions = make_signal("curiosity", spec, strength=strength), make_transitions(spec, 64)
    signal.learn(transitions)
    uncapped = WrittenOut(signal, transitions).forward
    np.testing.assert_allclose(signal.rewards(transitions), np.minimum(uncapped, 2.0), rtol=1e-5)
    assert (uncapped > 2.0).any() and (uncapped < 2.0).any(), "the case should show both sides of the cap"


def test_loss_is_ten_times_two_tenths_forward_and_eight_tenths_inverse(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal, transitions = make_signal("curiosity", spec), make_transitions(spec, 6)
    expected = WrittenOut(signal, transitions)
    loss, reported = signal.losses(transitions)
    forward, inverse = expected.forward.mean(), expected.inverse.mean()
    assert loss.item() == pytest.approx(10.0 * (0.2 * forward + 0.8 * inverse), rel=1e-5)
    assert reported["Losses/Curiosity Forward Loss"].item() == pytest.approx(forward, rel=1e-5)
    assert reported["Losses/Curiosity Inverse Loss"].item() == pytest.approx(inverse, rel=1e-5)


def test_the_end_of_an_episode_counts_for_nothing(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal, going_on = make_signal("curiosity", spec), make_transitions(spec, 6)
    signal.learn(going_on)
    ended = make_transitions(spec, 8)
    unknown = ended.next_inputs.vectors.clone()
    unknown[6:] = torch.nan  # as of a simulator that blew up
    ended = replace(
        ended,
        terminated=torch.tensor([0.0] * 6 + [1.0] * 2),
        next_inputs=ended.next_inputs._replace(vectors=unknown),
    )
    expected = WrittenOut(signal, ended)
    assert signal.losses(ended)[1]["Losses/Curiosity Forward Loss"].item() == pytest.approx(
        expected.forward[:6].mean(), rel=1e-5
    )
    np.testing.assert_allclose(signal.rewards(ended)[:6], np.minimum(expected.forward[:6], 1.0), rtol=1e-5)
    assert signal.rewards(ended)[6:].tolist() == [0.0, 0.0]
    assert signal.ignores_termination


def test_a_minibatch_of_endings_alone_changes_no_weights(make_spec, make_signal, make_transitions, same):
    spec = make_spec()
    signal = make_signal("curiosity", spec)
    before = signal.state_dict()["network"]["weights"]
    losses = signal.learn(make_transitions(spec, 4, terminated=torch.ones(4)))
    assert set(losses.values()) == {0.0}
    assert same(signal.state_dict()["network"]["weights"], before)


@pytest.mark.lengthy
def test_frequent_observations_are_rewarded_less_than_new_ones(make_spec, make_signal, make_transitions):
    spec = make_spec(actions=ActionSpec(0, (3,)))
    signal = make_signal("curiosity", spec, strength=1e-3)
    known, new = make_transitions(spec, 16), make_transitions(spec, 16, seed=1)
    signal.learn(known)
    at_first = signal.rewards(known).mean()
    for _ in range(200):
        signal.learn(known)
    assert signal.rewards(known).mean() < 0.1 * at_first
    assert signal.rewards(new).mean() > 5 * signal.rewards(known).mean()


@pytest.mark.lengthy
def test_the_inverse_model_learns_to_tell_actions(make_spec, make_signal, make_transitions):
    spec = make_spec(actions=ActionSpec(0, (3,)))
    signal, transitions = make_signal("curiosity", spec), make_transitions(spec, 64)
    moved = transitions.inputs.vectors + torch.nn.functional.one_hot(transitions.choices[:, 0], 3)
    transitions = replace(transitions, next_inputs=transitions.next_inputs._replace(vectors=moved))
    losses = [signal.learn(transitions)["Losses/Curiosity Inverse Loss"] for _ in range(150)]
    assert losses[-1] < 0.2 < losses[0]
