"""Factories of the zoo's environments that have no maker of their own: what a user would write beside the YAML."""

from __future__ import annotations

from typing import Any


def gymnax(name: str) -> Any:
    """Return an environment of gymnax, behind its own wrapper for Gymnasium."""
    import gymnax
    from gymnax.wrappers import GymnaxToGymWrapper

    return GymnaxToGymWrapper(*gymnax.make(name))


def jumanji(name: str) -> Any:
    """Return an environment of Jumanji, behind its own wrapper for Gymnasium."""
    import jumanji
    from jumanji.wrappers import JumanjiToGymWrapper

    return JumanjiToGymWrapper(jumanji.make(name))


def weighed(env: Any, weight: list[float]) -> Any:
    """Return an environment of MO-Gymnasium whose reward is the weighed sum of its parts."""
    import numpy as np
    from mo_gymnasium.wrappers import LinearReward

    return LinearReward(env, np.array(weight, np.float32))


def trading(render_mode: str | None = None) -> Any:
    """Return an environment of Gym Trading Env with prices of 200 hours."""
    import numpy as np
    import pandas as pd
    from gym_trading_env.environments import TradingEnv

    price = 100 + np.sin(np.arange(200) / 9)
    hours = pd.date_range("2024-01-01", periods=len(price), freq="h")
    table = {"open": price, "high": price + 1, "low": price - 1, "close": price, "feature_close": price / 100}
    return TradingEnv(df=pd.DataFrame(table, index=hours), positions=[-1, 0, 1], verbose=0)


def crafter(render_mode: str | None = None) -> Any:
    """Return Crafter, which has the old Gym's interface and needs no Gym, as an environment of Gymnasium."""
    import crafter
    import gymnasium
    from gymnasium import spaces

    class Crafter(gymnasium.Env):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

        def __init__(self):
            self.render_mode = render_mode
            self.old = crafter.Env()
            low, high, shape, dtype = self.old.observation_space
            self.observation_space = spaces.Box(low, high, shape, dtype)
            self.action_space = spaces.Discrete(self.old.action_space.n)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.old.reset(), {}

        def step(self, action):
            observation, reward, done, info = self.old.step(action)
            return observation, float(reward), done and info["discount"] == 0, done and info["discount"] > 0, {}

        def render(self):
            return self.old.render((128, 128))

    return Crafter()


def pool(task_id: str, num_envs: int) -> Any:
    """Return environments of EnvPool, which steps all of them together."""
    import envpool

    return envpool.make_gymnasium(task_id, num_envs=num_envs)
