"""Every trainer with every reward signal with memory and without, on each kind of action and of observation."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from trainer_samples import (
    CONTINUOUS,
    DISCRETE,
    HYBRID,
    IMAGE,
    VECTOR,
    Reported,
    demonstrations,
    experience,
    flat_weights,
    trainer_of,
)

from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.design import design_of

pytestmark = pytest.mark.lengthy

TRAINERS = ("ppo", "poca", "sac", "impala")
SIGNALS = ("extrinsic", "curiosity", "gail", "rnd", "bc")
ACTIONS = {"continuous": CONTINUOUS, "discrete": DISCRETE, "hybrid": HYBRID}
OBSERVATIONS = {"vector": (VECTOR,), "visual": (VECTOR, IMAGE)}
MEMORIES = {"feed-forward": None, "recurrent": {"memory_size": 8, "sequence_length": 4}}

EVERY = list(product(TRAINERS, SIGNALS, ACTIONS, OBSERVATIONS, MEMORIES))


def chosen():
    """One cell for each trainer and signal; memory and the kinds of actions and observations take turns."""
    for (i, kind), (j, signal) in product(enumerate(TRAINERS), enumerate(SIGNALS)):
        yield kind, signal, [*ACTIONS][(i + j) % 3], [*OBSERVATIONS][(i + j) % 2], [*MEMORIES][(i // 2 + j) % 2]


CHOSEN = [*chosen()]


def test_each_two_kinds_of_anything_meet():
    for first, second in combinations(range(5), 2):
        assert {(cell[first], cell[second]) for cell in CHOSEN} == {(cell[first], cell[second]) for cell in EVERY}


@pytest.mark.parametrize(
    ("kind", "signal", "actions", "observations", "memory"),
    [pytest.param(*cell, marks=() if cell in CHOSEN else pytest.mark.slow) for cell in EVERY],
)
def test_a_few_updates_have_finite_losses_and_change_the_policy(kind, signal, actions, observations, memory, tmp_path):
    spec = BehaviorSpec("Test", OBSERVATIONS[observations], ACTIONS[actions], grouped=kind == "poca")
    demo = {"demo_path": str(demonstrations(tmp_path / "expert.stream", spec))}
    learned: dict[str, dict[str, Any]] = {"extrinsic": {}, "curiosity": {}, "gail": demo, "rnd": {}, "bc": {}}
    signals = {"extrinsic": {}, **({} if signal in ("extrinsic", "bc") else {signal: {**learned[signal]}})}
    cloning: dict[str, Any] = {"behavioral_cloning": {**demo, "batch_size": 8}} if signal == "bc" else {}
    reported = Reported()
    trainer = trainer_of(
        kind,
        spec,
        statistics=reported,
        reward_signals=signals,
        network_settings={"memory": MEMORIES[memory]},
        **cloning,
    )
    design = design_of(spec, trainer.context.settings)
    before, updates = flat_weights(trainer), 0
    for seed in range(2):
        trainer.add(experience(spec, [16, 12, 8], seed, design.memory_size, design.squashed))
        while trainer.ready():
            trainer.learn()
            updates += 1
    assert updates >= 2
    after = flat_weights(trainer)
    assert np.isfinite(after).all()
    assert not np.array_equal(before, after)
    losses = {name: values for name, values in reported.values.items() if name.lower().startswith(("losses/", "loss/"))}
    of_policy = "loss/policy_gradient" if kind == "impala" else "Losses/Policy Loss"
    assert all(np.isfinite(values).all() for values in losses.values())
    expected = {
        "extrinsic": of_policy,
        "curiosity": "Losses/Curiosity Forward Loss",
        "gail": "Losses/GAIL Loss",
        "rnd": "Losses/RND Loss",
        "bc": "Losses/Pretraining Loss",
    }
    assert {of_policy, expected[signal]} <= losses.keys()
    assert trainer.policy().version == trainer.version
