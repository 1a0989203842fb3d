"""The smallest task with a run's own spaces, to tell a trainer's settings from its environment.

An episode is one step, and what pays does not depend on the observation: choice 0 of every branch, and positive
continuous actions. A trainer that does not learn this can't learn anything (Andy Jones, Debugging RL: probe
environments with one action and one timestep).
"""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium
import numpy as np

from headrace.config import ConfigError, RunConfig
from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.queues.specs import BehaviorSpec

STEPS, UPDATES = 4096, 16
"""Steps of the probe; more if `UPDATES` updates take more, up to `MOST_STEPS`."""
MOST_STEPS = 60_000
SECONDS = 12


class OneStepTask(gymnasium.Env[Any, Any]):
    """Pays 1 for choice 0 in every branch and positive values in every dimension, in proportion."""

    def __init__(self, size: int, continuous: int, branches: list[int]) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.MultiDiscrete(branches)
        if continuous:
            self.action_space = gymnasium.spaces.Box(-1, 1, (continuous,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a random observation."""
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the share of the action's parts that pay."""
        box = isinstance(self.action_space, gymnasium.spaces.Box)
        pays = np.asarray(action) > 0 if box else np.asarray(action) == 0
        return self.reset()[0], float(np.mean(pays)), True, False, {}


async def one_step_run(config: RunConfig, spec: BehaviorSpec) -> float | None:
    """Return the share of the reward above chance that the run's settings reach; None if they can't be tried alone."""
    from headrace.pipeline.run import run_async
    from headrace.stages.trainer.protocol import rows_per_update

    settings, actions = config.behavior_settings(spec.name), spec.actions
    plain = config.to_plain()
    block = plain["behaviors"].get(spec.name) or settings.model_dump(mode="json", by_alias=True)
    steps = max(STEPS, UPDATES * rows_per_update(settings, 8, settings.trainer_type == "sac"))
    block |= {"max_steps": min(steps, MOST_STEPS), "summary_freq": 10**9, "self_play": None, "league": None}
    block |= {"brain": (), "behavioral_cloning": None, "init_path": None, "stop_when": None, "even_checkpoints": False}
    block["reward_signals"] = {"extrinsic": block["reward_signals"].get("extrinsic") or {}}
    size, branches = sum(one.size for one in spec.observations), [*actions.discrete_branches]
    options = {"size": size, "continuous": actions.continuous_size, "branches": branches}
    task = {"kind": "gymnasium", "factory": f"{__name__}:OneStepTask", "num_envs": 8, "options": options}
    with tempfile.TemporaryDirectory() as folder:
        run = {"run_id": "one-step", "results_dir": folder}
        hosts = {which: {"kind": "inline"} for which in ("actors", "learners")}
        pipeline = {"hosts": hosts, "deterministic": True, "max_wall_time_s": SECONDS}
        small = {"environment": {**task, "behavior": spec.name}, "behaviors": {spec.name: block}}
        whole = small | {"checkpoint_settings": run, "pipeline": pipeline, "env_settings": {"seed": 1}}
        try:
            result = await run_async(RunConfig.from_plain(whole), console=False)
        except (ConfigError, RunError, RunFailed):
            return None
    chance = 0.5 if actions.continuous_size else float(np.mean([1 / size for size in actions.discrete_branches]))
    last = result.behaviors[spec.name].recent_return if spec.name in result.behaviors else None
    return None if last is None else (last - chance) / (1 - chance)
