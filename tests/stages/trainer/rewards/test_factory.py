"""Making reward signals from settings."""

import numpy as np
import pytest
import torch
from trainer_samples import demonstrations

from stages.errors import StageError
from stages.trainer.randomness import new_random
from stages.trainer.rewards import make_signals

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


def test_the_seed_decides_everything_and_nothing_else_does(make_context, make_spec, same):
    spec = make_spec()

    def states(seed, random=None, **signals):
        return {s.name: s.state_dict() for s in make_signals(make_context(spec, seed=seed, **signals), random)}

    torch.manual_seed(1)
    first = states(5, curiosity=SMALL, rnd=SMALL)
    torch.manual_seed(2)
    assert same(states(5, curiosity=SMALL, rnd=SMALL), first)
    assert same(states(5, rnd=SMALL)["rnd"], first["rnd"]), "whichever other signals there are"
    assert not same(states(6, rnd=SMALL)["rnd"], first["rnd"])
    assert same(states(5, new_random(3), rnd=SMALL), states(6, new_random(3), rnd=SMALL))
    assert not same(states(5, new_random(3), rnd=SMALL), states(5, new_random(4), rnd=SMALL))


def test_no_network_starts_as_a_copy_of_another(make_context, make_spec):
    curiosity, rnd = make_signals(make_context(make_spec(), curiosity=SMALL, rnd=SMALL))
    weights = (
        curiosity.state_dict()["network"]["weights"]["body.layers.0.weight"],
        rnd.state_dict()["network"]["weights"]["layers.0.weight"],
        rnd.state_dict()["target"]["layers.0.weight"],
    )
    assert not any(np.allclose(weights[a], weights[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_missing_demonstrations_are_named(make_context, make_spec, tmp_path):
    context = make_context(make_spec(), folder=tmp_path, gail={"demo_path": "nowhere.stream"})
    with pytest.raises(StageError, match=r"nowhere\.stream"):
        make_signals(context)
