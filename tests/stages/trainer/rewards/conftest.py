"""Small reward signals, random transitions for them, and demonstrations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.imitation.demonstrations import Demonstrations
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards.curiosity import Curiosity
from headrace.stages.trainer.rewards.gail import GAIL
from headrace.stages.trainer.rewards.rnd import RND

SMALL = {"hidden_units": 8, "num_layers": 1}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def make_context():
    """A trainer's context; keyword arguments are reward signals by name."""

    def make(spec, seed=0, folder=None, **signals):
        settings = BehaviorSettings.model_validate({"reward_signals": signals})
        return TrainerContext("Test", settings, spec, seed=seed, folder=folder)

    return make


@pytest.fixture
def make_spec():
    """Three numbers observed and two hybrid actions, unless other observations or actions are given."""

    def make(*observations, actions=None):
        seen = observations or (ObservationSpec("o", (3,)),)
        return BehaviorSpec("Test", seen, ActionSpec(2, (3, 2)) if actions is None else actions)

    return make


@pytest.fixture
def make_transitions():
    """n random transitions; what is given stands in place of random numbers."""

    def make(spec, n, seed=0, **given):
        random = np.random.default_rng(seed)
        made = {
            "inputs": _inputs(spec, n, random),
            "next_inputs": _inputs(spec, n, random),
            "continuous": torch.from_numpy(random.uniform(-1, 1, (n, spec.actions.continuous_size)).astype(np.float32)),
            "choices": torch.from_numpy(_choices(spec, n, random)),
            "rewards": torch.from_numpy(random.standard_normal(n, np.float32)),
            "terminated": torch.zeros(n),
        }
        return replace(Transitions(**made), **given)

    return make


@pytest.fixture
def make_demonstrations():
    """Random demonstrations in trajectories of the given lengths."""

    def make(spec, lengths=(5, 4), seed=1, terminated=None):
        random = np.random.default_rng(seed)
        n, k = sum(lengths), len(lengths)
        return Demonstrations(
            spec,
            tuple(_observation(o, n, random) for o in spec.observations),
            tuple(_observation(o, k, random) for o in spec.observations),
            random.uniform(-1, 1, (n, spec.actions.continuous_size)).astype(np.float32),
            _choices(spec, n, random),
            np.zeros(n, np.float32),
            np.array(lengths, np.int64),
            np.zeros(k, np.bool_) if terminated is None else np.array(terminated),
            np.ones(k, np.bool_),
        )

    return make


@pytest.fixture
def make_signal(make_context, make_demonstrations):
    """A signal by name; keyword arguments are keys of its block in the YAML."""

    def make(name, spec, seed=0, demonstrations=None, **settings):
        block = {"network_settings": SMALL, "learning_rate": 0.01, **settings}
        if name == "gail":
            block["demo_path"] = "demos"
        context = make_context(spec, **{name: block})
        own = context.settings.signals[name]
        if name == "gail":
            return GAIL(
                name, own, context, seed, make_demonstrations(spec) if demonstrations is None else demonstrations
            )
        return {"curiosity": Curiosity, "rnd": RND}[name](name, own, context, seed)

    return make


@pytest.fixture
def same():
    """Whether two states are equal bit for bit."""
    return _same


def _same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


def _observation(spec, n, random):
    if spec.dtype == "uint8":
        return random.integers(0, 256, (n, *spec.shape)).astype(np.uint8)
    return random.standard_normal((n, *spec.shape), np.float32)


def _inputs(spec, n, random):
    return Inputs.from_encoded(ObservationLayout(spec).encode([_observation(o, n, random) for o in spec.observations]))


def _choices(spec, n, random):
    branches = spec.actions.discrete_branches
    return random.integers(0, branches, (n, len(branches))) if branches else np.zeros((n, 0), np.int64)
