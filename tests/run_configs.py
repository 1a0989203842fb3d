"""Small configurations of whole runs, as plain data, and how to change them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TROUBLED_ENV = Path(__file__).parent / "end_to_end" / "troubled_env.py"
TOLD_ENV = TROUBLED_ENV.with_name("told_env.py")
TEAM_ENV = TROUBLED_ENV.with_name("team_env.py")

Plain = dict[str, Any]


def cartpole(**changes: Any) -> Plain:
    """A tiny run on CartPole: 16 environments, 500 rows per update. Keys of `changes` are paths with `__` for a dot."""
    plain: Plain = {
        "environment": {"kind": "gymnasium", "id": "CartPole-v1", "num_envs": 16},
        "env_settings": {"seed": 3},
        "behaviors": {
            "CartPole": {
                "trainer_type": "ppo",
                "max_steps": 3000,
                "time_horizon": 32,
                "summary_freq": 1000,
                "checkpoint_interval": 1000,
                "hyperparameters": {"buffer_size": 500, "batch_size": 100, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 32, "num_layers": 1},
            }
        },
    }
    return changed(plain, changes)


def volley(**changes: Any) -> Plain:
    """A tiny self-play run on the built-in game, in which teams, opponents and snapshots change many times.

    The game is made by its class: of `kind: builtin` there would be a film at the end, which takes a second.
    """
    game = "headrace.stages.games.volley:VolleyGroup"
    plain: Plain = {
        "environment": {"kind": "gymnasium", "factory": game, "num_envs": 16, "options": {"points_to_win": 1}},
        "env_settings": {"seed": 5},
        "behaviors": {
            "Volley": {
                "trainer_type": "ppo",
                "max_steps": 6000,
                "time_horizon": 32,
                "summary_freq": 2000,
                "checkpoint_interval": 2000,
                "hyperparameters": {"buffer_size": 500, "batch_size": 100, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 32, "num_layers": 1},
                "self_play": {"save_steps": 900, "team_change": 1700, "swap_steps": 600, "window": 4},
            }
        },
    }
    return changed(plain, changes)


def sac(**changes: Any) -> Plain:
    """A tiny run of SAC on Pendulum, whose checkpoints hold the replay buffer."""
    plain: Plain = {
        "environment": {"kind": "gymnasium", "id": "Pendulum-v1", "num_envs": 2},
        "env_settings": {"seed": 7},
        "behaviors": {
            "Pendulum": {
                "trainer_type": "sac",
                "max_steps": 600,
                "summary_freq": 200,
                "checkpoint_interval": 200,
                "hyperparameters": {
                    "batch_size": 16,
                    "buffer_size": 400,
                    "buffer_init_steps": 40,
                    "steps_per_update": 4,
                    "save_replay_buffer": True,
                },
                "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
                "reward_signals": {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 8}}},
            }
        },
    }
    return changed(plain, changes)


def remembering(**changes: Any) -> Plain:
    """A tiny run of PPO with a memory and curiosity on CartPole."""
    return cartpole(
        **{
            "environment__num_envs": 4,
            "behaviors__CartPole__max_steps": 1200,
            "behaviors__CartPole__summary_freq": 400,
            "behaviors__CartPole__checkpoint_interval": 400,
            "behaviors__CartPole__hyperparameters__buffer_size": 120,
            "behaviors__CartPole__hyperparameters__batch_size": 40,
            "behaviors__CartPole__network_settings__memory": {"memory_size": 8, "sequence_length": 8},
            "behaviors__CartPole__reward_signals": {
                "extrinsic": {},
                "curiosity": {"strength": 0.1, "network_settings": {"hidden_units": 8}},
            },
            **changes,
        }
    )


def unrolling(**changes: Any) -> Plain:
    """A tiny run of IMPALA on CartPole with a memory, half of whose unrolls are replayed."""
    return cartpole(
        **{
            "environment__num_envs": 4,
            "behaviors__CartPole__trainer_type": "impala",
            "behaviors__CartPole__max_steps": 1200,
            "behaviors__CartPole__time_horizon": 64,
            "behaviors__CartPole__hyperparameters": {
                "unroll_length": 5,
                "batch_size": 16,
                "batch_size_from_replay": 8,
                "replay_capacity": 20,
                "replay_sampling": "reservoir",
                "policy_cloning_cost": 0.01,
                "value_cloning_cost": 0.005,
                "critic_pretrain_steps": 200,
            },
            "behaviors__CartPole__network_settings__memory": {"memory_size": 8, "sequence_length": 8},
            "behaviors__CartPole__network_settings__normalize": True,
            **changes,
        }
    )


def cooperating(**changes: Any) -> Plain:
    """A tiny run of POCA on `end_to_end/team_env.py`, where members leave early, with a memory."""
    plain: Plain = {
        "environment": {
            "kind": "pettingzoo",
            "factory": "team_env:Teams",
            "num_envs": 4,
            "behaviors": {"*": {"behavior": "Team", "group": True}},
        },
        "env_settings": {"seed": 13},
        "behaviors": {
            "Team": {
                "trainer_type": "poca",
                "max_steps": 1200,
                "time_horizon": 8,
                "summary_freq": 400,
                "checkpoint_interval": 400,
                "hyperparameters": {"buffer_size": 120, "batch_size": 40, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {
                    "hidden_units": 8,
                    "num_layers": 1,
                    "normalize": True,
                    "memory": {"memory_size": 8, "sequence_length": 4},
                },
            }
        },
    }
    return changed(plain, changes)


def team_play(**changes: Any) -> Plain:
    """A tiny run of POCA with self-play on `end_to_end/team_env.py`: two against two."""
    return cooperating(
        **{
            "environment__options": {"sides": 2},
            "environment__behaviors": {
                "red_*": {"behavior": "Team", "team": 0, "group": True},
                "blue_*": {"behavior": "Team", "team": 1, "group": True},
            },
            "behaviors__Team__network_settings__memory": None,
            "behaviors__Team__self_play": {"save_steps": 200, "team_change": 400, "swap_steps": 100, "window": 4},
            **changes,
        }
    )


def copying(**changes: Any) -> Plain:
    """A tiny run of `bc` from demonstrations, with a memory: no environment, and in small minibatches, to last a while."""
    copier = {
        "trainer_type": "bc",
        "max_steps": 8_000,
        "summary_freq": 2000,
        "checkpoint_interval": 700,
        "hyperparameters": {"demo_path": EXPERT, "batch_size": 16, "buffer_size": 200, "num_epoch": 4},
        "network_settings": {
            "hidden_units": 16,
            "num_layers": 1,
            "normalize": True,
            "memory": {"memory_size": 8, "sequence_length": 8},
        },
    }
    return changed({"env_settings": {"seed": 17}, "behaviors": {"CartPole": copier}}, changes)


def adversarial(**changes: Any) -> Plain:
    """A tiny run of PPO with GAIL, curiosity and cloning, from demonstrations."""
    return cartpole(
        behaviors__CartPole__max_steps=1500,
        behaviors__CartPole__behavioral_cloning={"demo_path": EXPERT, "samples_per_update": 200, "num_epoch": 1},
        behaviors__CartPole__reward_signals={
            "extrinsic": {},
            "curiosity": {"strength": 0.1, "network_settings": {"hidden_units": 8}},
            "gail": {"strength": 0.1, "demo_path": EXPERT, "network_settings": {"hidden_units": 8}},
        },
        **changes,
    )


def schooled(**changes: Any) -> Plain:
    """A tiny run of PPO on CartPole with a student that imitates it as it learns."""
    plain = cartpole(environment__behavior="CartPole")
    plain["behaviors"]["Student"] = changed(IMITATOR, {"hyperparameters__teacher": "CartPole", "max_steps": 2500})
    return changed(plain, changes)


def taught(**changes: Any) -> Plain:
    """A tiny run on `end_to_end/told_env.py` through three lessons, whose episodes return -1.5, 0 and 0.75 by guessing."""
    criteria = {"behavior": "Guess", "min_lesson_length": 24}
    uniform = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 5, "max_value": 6}}
    plain: Plain = {
        "environment": {
            "kind": "gymnasium",
            "factory": "told_env:ToldEnv",
            "num_envs": 8,
            "options": {"base": -2.0},
        },
        "env_settings": {"seed": 11},
        "environment_parameters": {
            "worth": {
                "curriculum": [
                    {"name": "Low", "value": 1, "completion_criteria": {**criteria, "threshold": -1.9}},
                    {"name": "High", "value": 4, "completion_criteria": {**criteria, "threshold": -0.8}},
                    {"name": "Any", "value": uniform},
                ]
            }
        },
        "behaviors": {
            "Guess": {
                "trainer_type": "ppo",
                "max_steps": 3000,
                "time_horizon": 16,
                "summary_freq": 500,
                "checkpoint_interval": 500,
                "hyperparameters": {"buffer_size": 200, "batch_size": 100, "num_epoch": 2, "learning_rate": 1e-3},
                "network_settings": {"hidden_units": 16, "num_layers": 1},
            }
        },
    }
    return changed(plain, changes)


def troubled(**options: Any) -> Plain:
    """A tiny run on `end_to_end/troubled_env.py`, which has to lie beside the YAML; see there for the options."""
    plain = cartpole(environment__factory="troubled_env:TroubledEnv", environment__options=options)
    plain["environment"] |= {"num_envs": 4}
    del plain["environment"]["id"]
    return plain


def changed(plain: Plain, changes: Mapping[str, Any]) -> Plain:
    """The configuration with these keys set; maps on the way are made."""
    plain = copy.deepcopy(plain)
    for path, value in changes.items():
        *way, last = path.split("__")
        inner = plain
        for key in way:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return plain


IMITATOR: Plain = {
    "trainer_type": "bc",
    "max_steps": 6000,
    "summary_freq": 2000,
    "hyperparameters": {"batch_size": 50, "buffer_size": 200, "num_epoch": 2},
    "network_settings": {"hidden_units": 32, "num_layers": 1},
}
"""A behaviour that learns CartPole by imitation."""
EXPERT = "expert.stream"
"""Stands for what `record_expert` records, in configurations that are written before."""
INLINE: Plain = {
    "pipeline__hosts__actors__kind": "inline",
    "pipeline__hosts__learners__kind": "inline",
}
"""Everything in one process: the quick way where processes are not the point."""


def with_expert(plain: Plain, stream: str) -> Plain:
    """The configuration with this recording wherever it asks for the expert."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return stream if value == EXPERT else value

    return dict(filled(plain))


def late(**changes: Any) -> Plain:
    """A small run with a behaviour from the beginning, and one that appears after some updates of the first one."""
    learns: Plain = {
        "trainer_type": "ppo",
        "max_steps": 2000,
        "time_horizon": 16,
        "hyperparameters": {"buffer_size": 200, "batch_size": 50},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
    }
    plain: Plain = {
        "environment": {
            "kind": "pettingzoo",
            "factory": "late_env:Late",
            "num_envs": 2,
            "behaviors": {"early_*": "Early", "late_*": "Late"},
        },
        "env_settings": {"seed": 3},
        "behaviors": {"Early": learns, "Late": copy.deepcopy(learns)},
    }
    return changed(plain, changes)
