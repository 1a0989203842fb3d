"""What all reward signals with a network must do: any observations and actions, guards, resuming."""

import numpy as np
import pytest
import torch

from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import EncodedObservations

SIGNALS = ["curiosity", "gail", "rnd"]
VECTOR = ObservationSpec("vector", (3,))
GOAL = ObservationSpec("goal", (2,), goal=True)
IMAGE = ObservationSpec("image", (3, 20, 20), "uint8")
LAST = ObservationSpec("last", (6, 6, 1), channels_last=True)
THINGS = ObservationSpec("things", (4, 5))
OBSERVATIONS = {
    "vector": (VECTOR,),
    "goal": (VECTOR, GOAL),
    "image": (IMAGE,),
    "set": (THINGS,),
    "all": (VECTOR, IMAGE, LAST, THINGS, GOAL),
}
NORMALIZED = {"hidden_units": 8, "num_layers": 1, "normalize": True}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize(
    ("observed", "actions"),
    [
        ("vector", ActionSpec(2)),
        ("goal", ActionSpec(0, (3, 2))),
        ("image", ActionSpec(2, (3, 2))),
        ("set", ActionSpec(2)),
        ("all", ActionSpec(2, (3, 2))),
        ("vector", ActionSpec(0, (3, 2))),
    ],
)
def test_every_kind_of_observation_and_action_is_learned_from(
    name, observed, actions, make_spec, make_signal, make_transitions, same
):
    spec = make_spec(*OBSERVATIONS[observed], actions=actions)
    encoder = "fully_connected" if observed == "all" else "simple"
    extra = {"use_actions": True, "use_vail": True} if name == "gail" else {}
    signal = make_signal(name, spec, network_settings={**NORMALIZED, "vis_encode_type": encoder}, **extra)
    before = signal.state_dict()
    for seed in range(2):
        losses = signal.learn(make_transitions(spec, 5, seed))
        assert losses and all(np.isfinite(loss) for loss in losses.values())
    weights = signal.state_dict()["network"]["weights"]
    unchanged = [key for key, old in before["network"]["weights"].items() if same(old, weights[key])]
    assert unchanged == [], "every tensor takes part"
    rewards = signal.rewards(make_transitions(spec, 4, 9))
    assert rewards.shape == (4,) and rewards.dtype == np.float32 and (rewards > 0).all()


@pytest.mark.parametrize("name", SIGNALS)
def test_a_resumed_signal_continues_bit_for_bit(name, make_spec, make_signal, make_transitions, same):
    spec = make_spec()
    extra = {"use_actions": True, "use_vail": True} if name == "gail" else {}
    original = make_signal(name, spec, network_settings=NORMALIZED, **extra)
    for seed in range(3):
        transitions = make_transitions(spec, 5, seed)
        original.observe(transitions.inputs.vectors.numpy())
        original.learn(transitions)
    resumed = make_signal(name, spec, seed=99, network_settings=NORMALIZED, **extra)
    assert not same(resumed.state_dict(), original.state_dict())
    resumed.load_state_dict(original.state_dict())
    for seed in range(3, 6):
        transitions = make_transitions(spec, 5, seed)
        for signal in (original, resumed):
            signal.observe(transitions.inputs.vectors.numpy())
        assert resumed.learn(transitions) == original.learn(transitions)
        assert resumed.rewards(transitions).tobytes() == original.rewards(transitions).tobytes()
    assert same(resumed.state_dict(), original.state_dict())


@pytest.mark.parametrize("name", SIGNALS)
def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing(name, make_spec, make_signal, make_transitions, same):
    spec = make_spec()
    signal = make_signal(name, spec, network_settings=NORMALIZED)
    signal.learn(make_transitions(spec, 5))
    before = signal.state_dict()
    broken = make_transitions(spec, 5)
    broken.inputs.vectors[2, 1] = torch.nan
    with pytest.raises(NotFiniteError, match=f"Test: reward signal {name}: a loss or its gradient is NaN"):
        signal.learn(broken)
    after = signal.state_dict()
    assert same(after["network"], before["network"]) and same(after["normalizer"], before["normalizer"])
    assert all(np.isfinite(loss) for loss in signal.learn(make_transitions(spec, 5, 3)).values())


@pytest.mark.parametrize("name", SIGNALS)
def test_a_reward_that_is_not_finite_is_refused(name, make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal = make_signal(name, spec)
    signal.learn(make_transitions(spec, 5))
    broken = make_transitions(spec, 5)
    broken.inputs.vectors[2, 1] = torch.inf
    with pytest.raises(NotFiniteError, match=f"Test: reward signal {name}: the reward of 1 of 5 steps"):
        signal.rewards(broken)


@pytest.mark.parametrize("name", SIGNALS)
def test_a_state_of_another_network_is_refused(name, make_spec, make_signal):
    spec = make_spec()
    other = make_signal(name, spec, network_settings={"hidden_units": 4, "num_layers": 1}).state_dict()
    with pytest.raises(
        StageError, match=rf"Test: reward signal {name}: weights: expected tensor [\w.]*layers.0.weight "
    ):
        make_signal(name, spec).load_state_dict(other)


@pytest.mark.parametrize("name", ["curiosity", "rnd"])
def test_the_normaliser_counts_what_it_is_shown_and_nothing_else(name, make_spec, make_signal, make_transitions, same):
    spec = make_spec()
    signal, transitions = make_signal(name, spec, network_settings=NORMALIZED), make_transitions(spec, 2000)
    transitions.inputs.vectors.mul_(3.0).add_(50.0)
    signal.observe(transitions.inputs.vectors.numpy())
    state = signal.state_dict()["normalizer"]
    np.testing.assert_allclose(state["mean"], transitions.inputs.vectors.mean(dim=0), rtol=1e-3)
    assert state["steps"] == 2000
    signal.learn(transitions)
    signal.rewards(transitions)
    assert same(signal.state_dict()["normalizer"], state)


def test_float64_is_normalised_before_it_is_rounded(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal = make_signal("rnd", spec, network_settings=NORMALIZED)
    seen = 1.7e9 + 60.0 * np.random.default_rng(0).integers(0, 2, (20, 3))
    signal.observe(seen)
    inputs = signal.normalized(Inputs.from_encoded(EncodedObservations(seen)))
    np.testing.assert_allclose(inputs.vectors, signal.normalizer.apply(seen), atol=1e-5)
    assert inputs.vectors.abs().max() < 3
    assert inputs.vectors_rest is None


def test_normalised_vectors_are_clipped_to_five_standard_deviations(make_spec, make_signal, make_transitions):
    spec = make_spec()
    signal = make_signal("rnd", spec, network_settings=NORMALIZED)
    state = signal.state_dict()
    signal.load_state_dict({**state, "normalizer": {"steps": 4, "mean": np.ones(3), "squares": np.full(3, 16.0)}})

    def reward(*vector):
        return signal.rewards(make_transitions(spec, 1, inputs=Inputs(torch.tensor([vector])))).item()

    # With a mean of 1 and a deviation of 2, the limits are at -9 and 11.
    assert reward(-50.0, 3.0, 90.0) == reward(-9.0, 3.0, 11.0) != reward(-8.0, 3.0, 10.0)
