"""Whatever trains is shown, whichever way its environments are made; what has no pictures is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from headrace.config import RunConfig
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import make_shown_group

MODULE = """
import gymnasium, numpy as np, pettingzoo
from gymnasium import spaces as S


class Seen(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = S.Box(-1, 1, (2,), np.float32), S.Discrete(2)
    picture = np.zeros((6, 8, 3), np.uint8)

    def __init__(self, render_mode=None, **others):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        return self.picture


class Blind(Seen):
    metadata = {}

    def __init__(self):
        self.render_mode = None


class Grey(Seen):
    picture = np.zeros((6, 8), np.uint8)


class Nothing(Seen):
    picture = None


class Window(Nothing):
    metadata = {"render_modes": ["human"]}


def sets_it_itself():
    return Seen(render_mode="rgb_array")


def passes_it_on(**options):
    return Blind(**options)


def keyword_only(*, render_mode):
    return Seen(render_mode)


class PoolEnvPool(Seen, gymnasium.vector.VectorEnv):
    def __init__(self, num_envs=1):
        self.num_envs, self.render_mode, self.metadata = num_envs, None, {}
        self.single_observation_space, self.single_action_space = self.observation_space, self.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}


class Two(pettingzoo.ParallelEnv):
    metadata, possible_agents = {"name": "two", "render_modes": ["rgb_array"]}, ["a", "b"]

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def observation_space(self, agent):
        return S.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return S.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return {a: np.zeros(2, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def render(self):
        return np.zeros((6, 8, 3), np.uint8)


gymnasium.register("ShownSeen-v0", entry_point=Seen)
gymnasium.register("ShownBlind-v0", entry_point=Blind)
"""


@pytest.fixture
def beside(tmp_path: Path):
    (tmp_path / "shown_module.py").write_text(MODULE, encoding="utf-8")
    yield tmp_path / "file.yaml"
    sys.modules.pop("shown_module", None)
    for name in ("ShownSeen-v0", "ShownBlind-v0"):
        gymnasium.registry.pop(name, None)


def configured(beside: Path, kind: str = "gymnasium", **environment: Any) -> RunConfig:
    instances = {} if kind in ("godot", "open_protocol") else {"num_envs": 3}
    plain = {"environment": {"kind": kind, **instances, **environment}, "behaviors": {"B": {}}}
    return RunConfig.from_plain(plain, beside)


def picture(config: RunConfig):
    group, film = make_shown_group(EnvironmentRequest(config), raw=True)
    try:
        group.reset(1)
        return group, film.now().pixels
    finally:
        group.close()


@pytest.mark.parametrize(
    "environment",
    [
        {"id": "shown_module:ShownSeen-v0"},
        {"id": "shown_module:ShownSeen-v0", "wrappers": ["gymnasium.wrappers:FlattenObservation"]},
        {"factory": "shown_module:Seen", "wrappers": ["gymnasium.wrappers:FlattenObservation"]},
        {"factory": "shown_module:keyword_only", "options": {"render_mode": "human"}},
        {"factory": "shown_module:Grey"},
        {"kind": "pettingzoo", "factory": "shown_module:Two"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
def test_environments_that_train_can_be_shown(environment, beside):
    group, pixels = picture(configured(beside, **environment))
    assert group.num_envs == 1
    assert pixels is not None
    assert pixels.shape == (6, 8, 3)


@pytest.mark.parametrize("option", [{}, {"vectorization_mode": "vector_entry_point"}], ids=str)
@pytest.mark.parametrize("name", ["CartPole-v1", "gymnasium.envs.classic_control:CartPole-v1"])
def test_vectorised_implementations_are_shown_as_single_environments(name, option, beside):
    _, pixels = picture(configured(beside, id=name, options=option))
    assert pixels is not None
    assert pixels.shape == (400, 600, 3)


@pytest.mark.parametrize(
    ("name", "option", "shape"),
    [
        ("ale_py:ALE/Pong-v5", {}, (84, 84, 3)),
    ],
    ids=str,
)
@pytest.mark.lengthy
def test_atari_is_shown_as_policies_see_it(name, option, shape, beside):
    if "mode" in option:  # which single ones alone have
        option = {**option, "vectorization_mode": "sync"}
    config = configured(beside, num_envs=2, id=name, options=option)
    group, pixels = picture(config)
    assert pixels is not None
    assert pixels.shape == shape
    played = make_group(EnvironmentRequest(config))
    played.reset(1)
    seen = [spec.observations for spec in group.behavior_specs.values()]
    assert seen == [spec.observations for spec in played.behavior_specs.values()]
    played.close()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"id": "shown_module:ShownBlind-v0"},
            "images need render_mode: rgb_array, but with that setting, .*ShownBlind-v0",
        ),
        (
            {"factory": "shown_module:passes_it_on"},
            "images need render_mode: rgb_array, but with that setting, .*passes_it_on",
        ),
        (
            {"factory": "shown_module:Blind"},
            r"shown_module:Blind' \(Blind\) renders no images: .* \[\], but not",
        ),
        ({"factory": "shown_module:Window"}, r"\(Window\) renders no images: .* \['human'\], but not 'rgb_array'"),
        ({"factory": "shown_module:Nothing"}, r"render\(\) returned a NoneType; expected an RGB image"),
        ({"kind": "godot"}, "Godot shows its games itself"),
        ({"kind": "open_protocol"}, "a game that uses the open protocol opens its own window"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_environments_without_images_are_refused_by_name(environment, words, beside):
    with pytest.raises(StageError, match=words):
        picture(configured(beside, **environment))
