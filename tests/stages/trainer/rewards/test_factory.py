"""Making reward signals from settings."""

import numpy as np
import pytest
import torch
from trainer_samples import demonstrations

from headrace.stages.errors import LoadError, NotFiniteError, StageError
from headrace.stages.trainer.rewards.signal import make_signals

SMALL = {"network_settings": {"hidden_units": 8, "num_layers": 1}}


def test_signals_come_in_the_order_of_the_settings(make_context, make_spec, tmp_path):
    spec = make_spec()
    demonstrations(tmp_path / "expert.stream", spec)
    context = make_context(
        spec,
        folder=tmp_path,
        rnd={"gamma": 0.9, **SMALL},
        gail={"demo_path": "expert.stream", "strength": 0.5, **SMALL},
        curiosity=SMALL,
        extrinsic={"strength": 3.0, "gamma": 0.5},
    )
    signals = make_signals(context)
    assert [signal.name for signal in signals] == list(context.settings.signals)
    assert {signal.name: (signal.gamma, signal.strength) for signal in signals} == {
        "extrinsic": (0.5, 3.0),
        "curiosity": (0.99, 1.0),
        "gail": (0.99, 0.5),
        "rnd": (0.9, 1.0),
    }


def test_extrinsic_is_what_the_environment_gave(make_context, make_spec, make_transitions):
    spec = make_spec()
    (extrinsic,) = make_signals(make_context(spec, extrinsic={"strength": 3.0}))
    transitions = make_transitions(spec, 4)
    rewards = extrinsic.rewards(transitions)
    assert rewards.tolist() == transitions.rewards.tolist()
    rewards[:] = 0.0
    assert transitions.rewards.abs().min() > 0, "the array is the caller's own"
    assert extrinsic.learn(transitions) == {} and extrinsic.state_dict() == {}
    assert not extrinsic.ignores_termination


def test_the_initial_weights_depend_only_on_the_seed(make_context, make_spec, same):
    spec = make_spec()

    def states(seed, **signals):
        return {s.name: s.state_dict() for s in make_signals(make_context(spec, seed=seed, **signals))}

    torch.manual_seed(1)
    first = states(5, curiosity=SMALL, rnd=SMALL)
    torch.manual_seed(2)
    assert same(states(5, curiosity=SMALL, rnd=SMALL), first)
    assert same(states(5, rnd=SMALL)["rnd"], first["rnd"]), "whichever other signals there are"
    assert not same(states(6, rnd=SMALL)["rnd"], first["rnd"])


OWN = """
import torch
from headrace.stages.trainer.rewards.signal import RewardSignal


class Calm(RewardSignal):
    def __init__(self, name, settings, context, seed, free=0.0):
        if free < 0:
            raise ValueError("free must be at least 0")
        super().__init__(name, settings, context, seed)
        self.free = free

    def compute(self, transitions):
        return self.free - transitions.continuous.abs().sum(dim=1)


class Odd(RewardSignal):
    def compute(self, transitions):
        return transitions.rewards.unsqueeze(1)


class Endless(RewardSignal):
    def compute(self, transitions):
        return transitions.rewards / 0


class NoSignal: ...
"""


@pytest.fixture
def own(tmp_path, make_context, make_spec):
    """Make the signals of a block whose classes lie beside the YAML."""
    (tmp_path / "own_signals.py").write_text(OWN, encoding="utf-8")
    return lambda **signals: make_signals(make_context(make_spec(), folder=tmp_path, **signals))


def test_a_custom_signal_follows_the_built_in_ones(own, make_spec, make_transitions):
    signals = own(calm={"use": "own_signals:Calm", "with": {"free": 2.0}, "strength": 0.5, "gamma": 0.9}, extrinsic={})
    assert [signal.name for signal in signals] == ["extrinsic", "calm"]
    calm, transitions = signals[1], make_transitions(make_spec(), 5000)
    assert (calm.gamma, calm.strength, calm.learn(transitions), calm.state_dict()) == (0.9, 0.5, {}, {})
    expected = 2.0 - np.abs(transitions.continuous.numpy()).sum(axis=1)
    np.testing.assert_allclose(calm.rewards(transitions), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("block", "key", "problem"),
    [
        ({"use": "own_signals:Clam"}, "use", r"has no attribute 'Clam'; did you mean 'Calm'\?"),
        ({"use": "own_signals:NoSignal"}, "use", "is not derived from headrace.RewardSignal"),
        (
            {"use": "own_signals:Calm", "with": {"fre": 1}},
            "with",
            r"does not accept {'fre': 1}.*its parameters are \(free=0.0\)",
        ),
        ({"use": "own_signals:Calm", "with": {"free": -1}}, None, "raised ValueError: free must be at least 0"),
    ],
)
def test_a_signal_that_cant_be_made_is_a_mistake_at_its_key(own, block, key, problem):
    with pytest.raises(LoadError, match=rf"behaviors\.Test\.reward_signals\.mine.*{problem}") as caught:
        own(mine=block)
    path = ("behaviors", "Test", "reward_signals", "mine")
    assert caught.value.key == (path if key is None else (*path, key))


@pytest.mark.parametrize(
    ("name", "error", "problem"),
    [
        (
            "Odd",
            StageError,
            r"compute returned a tensor of shape \[4, 1\]; expected \[4\]: one reward for each transition",
        ),
        ("Endless", NotFiniteError, r"the reward of 4 of 4 steps is NaN or infinite.*see Endless\.compute"),
    ],
)
def test_invalid_rewards_of_a_custom_signal_are_named(own, make_spec, make_transitions, name, error, problem):
    (signal,) = own(mine={"use": f"own_signals:{name}"})
    with pytest.raises(error, match=rf"Test: reward signal mine: {problem}"):
        signal.rewards(make_transitions(make_spec(), 4))
