"""Where an environment draws nothing, what an agent observes is shown."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ObservationSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import make_shown_group, to_rgb


class Plain(gymnasium.Env):
    """A single one is seen as a vector, and draws itself."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)


class Grey(VectorEnv):
    """The vectorised implementation observes two grey frames, which brighten with each step, and draws nothing."""

    space: Any = spaces.Box(0, 255, (2, 8, 10), np.uint8)

    def __init__(self, num_envs=1):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = self.space, spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.now = 0

    def seen(self):
        frames = np.stack([np.full((8, 10), self.now, np.uint8), np.full((8, 10), self.now + 1, np.uint8)])
        return np.repeat(frames[None], self.num_envs, 0)

    def reset(self, *, seed=None, options=None):
        self.now = 0
        return self.seen(), {}

    def step(self, actions):
        self.now += 1
        none = np.zeros(self.num_envs, np.bool_)
        return self.seen(), np.zeros(self.num_envs), none, none, {}


class Blind(Grey):
    """Observes no image either."""

    space = spaces.Box(0, 1, (3,), np.float32)

    def seen(self):
        return np.zeros((self.num_envs, 3), np.float32)


@pytest.fixture
def shown():
    def make(vectorised):
        entries: dict[str, Any] = {"entry_point": Plain, "vector_entry_point": vectorised}
        gymnasium.register("Shown-v0", **entries)
        config = RunConfig.from_plain({"environment": {"kind": "gymnasium", "id": "Shown-v0"}, "behaviors": {"B": {}}})
        return make_shown_group(EnvironmentRequest(config), raw=True)

    yield make
    gymnasium.registry.pop("Shown-v0", None)


def test_a_vectorised_implementation_unlike_single_ones_is_shown_as_it_is_seen(shown):
    group, film = shown(Grey)
    group.reset(1)
    one = ActionBatch(np.zeros((1, 0), np.float32), np.zeros((1, 1), np.int32))
    group.step(dict.fromkeys(group.behavior_specs, one))
    assert [spec.observations[0].shape for spec in group.behavior_specs.values()] == [(2, 8, 10)]
    pixels = film.now().pixels
    assert pixels.shape == (8, 10, 3)
    assert (pixels == 2).all(), "the last frame"
    group.close()


def test_an_environment_without_any_image_is_refused(shown):
    group, _ = shown(Blind)
    with pytest.raises(StageError, match="does not render, and has no image"):
        group.reset(1)
    group.close()


@pytest.mark.parametrize(
    ("image", "channels_last", "pixel"),
    [
        (np.arange(12, dtype=np.uint8).reshape(3, 2, 2), False, [0, 4, 8]),
        (np.arange(12, dtype=np.uint8).reshape(2, 2, 3), True, [0, 1, 2]),
        (np.full((1, 2, 2), 0.5, np.float32), False, [127, 127, 127]),
        (np.full((2, 2, 1), 2.0, np.float32), True, [255, 255, 255]),
    ],
)
def test_an_observed_image_is_rgb(image, channels_last, pixel):
    rgb = to_rgb(image, ObservationSpec("eye", image.shape, str(image.dtype), channels_last))
    assert rgb.dtype == np.uint8
    assert rgb[0, 0].tolist() == pixel
