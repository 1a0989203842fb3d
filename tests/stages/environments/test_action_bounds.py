"""`environment.action_bounds: clip`: actions in the environment's own numbers, of every kind that has spaces."""

from __future__ import annotations

import numpy as np
import pytest
from environment_requests import group_of

from headrace.config import EnvironmentSettings
from headrace.queues.messages import ActionBatch

MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box
from small_zoo import Crowd

TOLD = []


class Alone(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (1,)), Box(-0.5, 4, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        TOLD.append(float(action[0]))
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Several(Crowd):
    def __init__(self):
        super().__init__({"a": (0, 99, 0.0)}, action_spaces={"a": Alone.action_space})

    def step(self, actions):
        TOLD.append(float(actions["a"][0]))
        return super().step(actions)
"""


@pytest.mark.parametrize(("kind", "made"), [("gymnasium", "Alone"), ("pettingzoo", "Several")])
@pytest.mark.parametrize(("bounds", "expected"), [("scale", [1.75, 4, 4]), ("clip", [0, 1, 4])])
def test_actions_are_scaled_to_the_bounds_or_clipped_at_them(tmp_path, kind, made, bounds, expected):
    module = f"bounded_{kind}_{bounds}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    settings = EnvironmentSettings(kind=kind, factory=f"{module}:{made}", action_bounds=bounds)
    group = group_of(settings, "B", 1, tmp_path)
    group.reset(0)
    (spec,) = group.behavior_specs.values()
    assert spec.actions.unbounded == ((0,) if bounds == "clip" else ())
    for action in (0.0, 1.0, 9.0):
        group.step({spec.behavior_id: ActionBatch(np.full((1, 1), action, np.float32), np.zeros((1, 0), np.int32))})
    told = __import__(module).TOLD
    group.close()
    assert told[-3:] == expected
