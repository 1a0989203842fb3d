"""Tasks with planted faults, each beside the same task without it, and the settings of runs that fail by settings alone.

`Line` is healthy: bring a point on a line to a target. Every subclass has one fault, unless it says otherwise. `PAIRS`
has a sick run of each cause and its sound twin.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Line(gymnasium.Env):
    """Move a point left, stay or right, to a target; each step costs the distance."""

    observation_space: Any = Box(-6, 6, (2,))
    action_space: Any = Discrete(3)
    limit = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.target = self.np_random.uniform(-1, 1, 2)
        self.t = 0
        return self.look(), {}

    def look(self):
        return np.array([self.at, self.target], np.float32)

    def move(self, action):
        self.at = float(np.clip(self.at + 0.2 * (int(action) - 1), -5, 5))

    def step(self, action):
        self.move(action)
        self.t += 1
        return self.look(), -abs(self.at - self.target), False, self.t >= self.limit, {}


class ActionIgnored(Line):
    def move(self, action):
        self.at = float(np.clip(self.at + self.np_random.uniform(-0.2, 0.2), -5, 5))


class ActionScale(Line):
    """The declared range is a thousand times the range that counts."""

    action_space = Box(0, 1000, (1,))

    def move(self, action):
        self.at = float(np.clip(self.at + 0.2 * np.clip(action[0], -1, 1), -5, 5))


class Continuous(Line):
    action_space = Box(-1, 1, (1,))

    def move(self, action):
        self.at = float(np.clip(self.at + 0.2 * action[0], -5, 5))


class Stale(Line):
    def step(self, action):
        before = self.look()
        _, *rest = super().step(action)
        return before, *rest


class Constant(Line):
    def look(self):
        return np.zeros(2, np.float32)


class Frozen(Line):
    def reset(self, *, seed=None, options=None):
        self.first = None
        return super().reset(seed=seed, options=options)

    def look(self):
        if self.first is None:
            self.first = super().look()
        return self.first


class EndsAtOnce(Line):
    def step(self, action):
        super().step(action)
        return self.look(), 0.0, True, False, {}


class Fifth(Line):
    """The fifth instance in a process ends it."""

    made = 0

    def __init__(self):
        type(self).made += 1
        if self.made == 5:
            os._exit(3)


class Huge(Line):
    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, 1e4 * reward, *rest


class Paid(Line):
    """The same reward whatever happens."""

    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, 1.0, *rest


class Guess(gymnasium.Env):
    """One step: name the cue. Healthy."""

    observation_space = Box(0, 1, (4,))
    action_space = Discrete(4)
    late = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self.cue], {}

    paid = 0.0

    def step(self, action):
        now = float(int(action) == self.cue)
        reward, self.paid = (self.paid if self.late else now), now
        return np.zeros(4, np.float32), reward, True, False, {}


class Late(Guess):
    """The reward of the episode before."""

    late = True


class Recall(gymnasium.Env):
    """Name a cue that only the first of four steps shows."""

    observation_space = Box(0, 1, (4,))
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cue = 0, int(self.np_random.integers(3))
        return self.look(), {}

    def look(self):
        seen = np.zeros(4, np.float32)
        if self.t == 0:
            seen[self.cue] = 1
        seen[3] = self.t == 3
        return seen

    def step(self, action):
        self.t += 1
        over = self.t >= 4
        return self.look(), float(over and int(action) == self.cue), over, False, {}


class NoVelocity(gymnasium.ObservationWrapper):
    """CartPole's positions without its velocities."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = Box(-np.inf, np.inf, (2,))

    def observation(self, observation):
        return observation[::2]


class Pole(gymnasium.Wrapper):
    """CartPole. Healthy."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))


class Reached(Line):
    """Reaching the target ends the episode. Healthy."""

    limit = 30

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.target = 0.0
        return self.look(), {}

    def step(self, action):
        seen, reward, _, over, info = super().step(action)
        return seen, reward, abs(self.at) < 0.15, over, info


class ResetNot(Reached):
    """The reset leaves the point where the last episode ended."""

    at = None

    def reset(self, *, seed=None, options=None):
        before = self.at
        super().reset(seed=seed, options=options)
        self.at = self.at if before is None else before
        return self.look(), {}


class Rewarded(Line):
    """Costs the distance times a factor. Healthy with the factor 1."""

    def __init__(self, factor=1.0):
        self.factor = factor

    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, self.factor * reward, *rest


class Pressure(Line):
    """The observation is a pressure in Pa. Healthy with `normalize`."""

    observation_space = Box(0, 2e5, (2,))

    def look(self):
        return (1e5 + 100 * super().look()).astype(np.float32)


class Lessons(Line):
    """The target is as far away as the lesson says. Healthy with a threshold that can be reached."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        far = (options or {}).get("far", 1.0)
        self.at, self.target = self.np_random.uniform(-far, far, 2)
        return self.look(), {}


class Named(gymnasium.Env):
    """Ten times, name the symbol that is shown; the mask forbids a choice. Healthy if the forbidden choice is wrong."""

    observation_space = Box(0, 1, (6,))
    action_space = Discrete(6)

    def __init__(self, forbidden=1):
        self.forbidden = forbidden

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.show()

    def show(self):
        self.shown = int(self.np_random.integers(6))
        mask = np.ones(6, np.int8)
        mask[(self.shown + self.forbidden) % 6] = 0
        return np.eye(6, dtype=np.float32)[self.shown], {"action_mask": mask}

    def step(self, action):
        reward, self.t = float(action == self.shown), self.t + 1
        seen, info = self.show()
        return seen, reward, False, self.t >= 10, info


class Goal(gymnasium.Env):
    """Go to the goal at 1; coming closer pays, and going away costs `fine` as much. Healthy with a fine of 1."""

    observation_space = Box(-15, 15, (1,))
    action_space = Discrete(2)

    def __init__(self, fine=1.0):
        self.fine = fine

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = float(self.np_random.uniform(-0.5, 0.5)), 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        before = abs(1 - self.at)
        self.at += 0.1 if action else -0.1
        self.t += 1
        gain, there = 10 * (before - abs(1 - self.at)), self.at >= 1
        reward = (gain if gain > 0 else self.fine * gain) + there - 0.02
        return np.array([self.at], np.float32), reward, there, self.t >= 60, {"is_success": there}


class Far(gymnasium.Env):
    """Walk six steps to the right, where 5 are paid; waiting at the left pays 0.05. Healthy with a far horizon."""

    observation_space = Box(-1, 1, (2,))
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.t = 0
        return self.look(), {}

    def look(self):
        return np.array([self.at / 3 - 1, 1], np.float32)

    def step(self, action):
        self.at = max(0, self.at + (1 if action else -1))
        self.t += 1
        there, waits = self.at >= 6, self.at == 0 and not action
        return self.look(), 5.0 * there + 0.05 * waits, there, self.t >= 40, {"is_success": there}


class Rare(gymnasium.Env):
    """Pays only for actions near a place that is shown, and far from 0. Healthy if the policy tries such actions."""

    observation_space = Box(-3, 3, (1,))
    action_space = Box(-3, 3, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.show(), {}

    def show(self):
        self.place = self.np_random.choice([-1.5, 1.5])
        return np.array([self.place], np.float32)

    def step(self, action):
        self.t += 1
        near = abs(action[0] - self.place) < 0.5
        return self.show(), float(near), False, self.t >= 10, {}


BASE: dict[str, Any] = {
    "environment": {"kind": "gymnasium", "factory": "diagnosis_tasks:Line", "num_envs": 16},
    "env_settings": {"seed": 1},
    "behaviors": {
        "Agent": {
            "trainer_type": "ppo",
            "max_steps": 30_000,
            "summary_freq": 3_000,
            "time_horizon": 64,
            "hyperparameters": {
                "buffer_size": 1024,
                "batch_size": 128,
                "learning_rate": 3e-3,
                "learning_rate_schedule": "constant",
                "beta": 1e-3,
                "num_epoch": 4,
            },
            "network_settings": {"hidden_units": 32, "num_layers": 2, "activation": "tanh"},
            "reward_signals": {"extrinsic": {"gamma": 0.95}},
        }
    },
    "pipeline": {
        "deterministic": True,
        "hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}},
    },
}
"""A sound run of `Line`, which takes a second or two."""


def settings_of(
    task: str = "Line",
    options: dict[str, Any] | None = None,
    network: dict[str, Any] | None = None,
    signals: dict[str, Any] | None = None,
    whole: dict[str, Any] | None = None,
    **behavior: Any,
) -> dict[str, Any]:
    """Return `BASE` with changes.

    Args:
        task: the name of a class in this module.
        options: of the task.
        network: changes to `network_settings`.
        signals: changes to `reward_signals`.
        whole: further sections of the file.
        behavior: changes to the behaviour; any other name is a hyperparameter.
    """
    plain = copy.deepcopy(BASE)
    plain["environment"] |= {"factory": f"diagnosis_tasks:{task}", "options": options or {}}
    agent = plain["behaviors"]["Agent"]
    agent["network_settings"] |= network or {}
    agent["reward_signals"] |= signals or {}
    for name, value in behavior.items():
        (agent if name in agent else agent["hyperparameters"])[name] = value
    return plain | (whole or {})


def _sac(**changes: Any) -> dict[str, Any]:
    plain = settings_of(max_steps=2500, summary_freq=250)
    plain["environment"]["num_envs"] = 1
    agent = plain["behaviors"]["Agent"]
    agent["trainer_type"] = "sac"
    agent["network_settings"]["activation"] = "relu"
    agent["hyperparameters"] = {
        "buffer_size": 20_000,
        "batch_size": 128,
        "learning_rate": 2e-3,
        "learning_rate_schedule": "constant",
        "buffer_init_steps": 300,
        "steps_per_update": 1,
        "init_entcoef": 0.2,
        "tau": 0.01,
        **changes,
    }
    return plain


def _lesson(threshold: float) -> dict[str, Any]:
    criteria = {"behavior": "Agent", "measure": "reward", "threshold": threshold, "min_lesson_length": 30}
    near = {"name": "near", "value": 0.3, "completion_criteria": criteria}
    return {"environment_parameters": {"far": {"curriculum": [near, {"name": "far", "value": 1.0}]}}}


def _bonus(strength: float) -> dict[str, Any]:
    return {
        "rnd": {"strength": strength, "gamma": 0.99, "learning_rate": 1e-5, "network_settings": {"hidden_units": 32}}
    }


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "action-ignored": (settings_of("ActionIgnored"), settings_of()),
    "action-scale": (settings_of("ActionScale"), settings_of("Continuous")),
    "curiosity-drowns": (settings_of(signals=_bonus(1000.0)), settings_of(signals=_bonus(0.01))),
    "deterministic-training": (settings_of(network={"deterministic": True}), settings_of()),
    "end-at-once": (settings_of("EndsAtOnce"), settings_of()),
    "entropy-bonus": (settings_of(beta=10.0), settings_of()),
    "exploration-small": (settings_of("Rare", network={"initial_log_std": -3.0}), settings_of("Rare")),
    "gamma-low": (
        settings_of("Far", signals={"extrinsic": {"gamma": 0.3}}),
        settings_of("Far", signals={"extrinsic": {"gamma": 0.97}}),
    ),
    "lesson-never-ends": (settings_of("Lessons", whole=_lesson(5.0)), settings_of("Lessons", whole=_lesson(-3.0))),
    "lr-high": (settings_of(learning_rate=1.0), settings_of()),
    "lr-high-of-sac": (_sac(learning_rate=0.1), _sac()),
    "lr-low": (settings_of(learning_rate=1e-7), settings_of()),
    "mask-forbids": (settings_of("Named", {"forbidden": 0}), settings_of("Named")),
    "memory-none": (
        settings_of("Recall", max_steps=60_000, summary_freq=6_000, time_horizon=16),
        settings_of(
            "Recall",
            network={"memory": {"sequence_length": 8, "memory_size": 32}},
            max_steps=60_000,
            summary_freq=6_000,
            time_horizon=16,
        ),
    ),
    "obs-aliased": (settings_of("NoVelocity"), settings_of("Pole")),
    "obs-constant": (settings_of("Constant"), settings_of()),
    "obs-frozen": (settings_of("Frozen"), settings_of()),
    "obs-scale": (
        settings_of("Pressure", network={"normalize": False}),
        settings_of("Pressure", network={"normalize": True}),
    ),
    "obs-stale": (settings_of("Stale"), settings_of()),
    "reset-not": (settings_of("ResetNot"), settings_of("Reached")),
    "reward-constant": (settings_of("Paid"), settings_of()),
    "reward-huge": (settings_of("Rewarded", {"factor": 1e4}, shared_critic=True), settings_of(shared_critic=True)),
    "reward-late": (settings_of("Late"), settings_of("Guess")),
    "reward-loop": (settings_of("Goal", {"fine": 0.0}), settings_of("Goal")),
    "reward-tiny": (settings_of("Rewarded", {"factor": 1e-5}), settings_of()),
    "too-few-updates": (settings_of(buffer_size=10_240, batch_size=10_240, num_epoch=1), settings_of()),
    "too-few-updates-of-sac": (_sac(steps_per_update=1000), _sac()),
}
"""A sick run and its sound twin, by cause; `-of-<trainer>` follows the cause of a second pair."""
