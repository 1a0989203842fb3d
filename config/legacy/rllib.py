"""Converts the RLlib YAML of Godot RL Agents' users to a run with `environment.kind: godot`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headrace.config.legacy.old_values import OldValue, Target, integral, is_number

_ALGORITHMS = {"PPO": "ppo", "SAC": "sac", "IMPALA": "impala", "APPO": "impala"}
_STEPS_OF_AN_UPDATE = 4000
"""RLlib's default for `train_batch_size`."""
_ENDLESS = 1_000_000_000
_BEHAVIOR = "default_settings"

Keys = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Maps an old key to the new key and the function that converts the value."""

_LEARNING: Keys = {
    "lr": ("hyperparameters.learning_rate", integral),
    "sgd_minibatch_size": ("hyperparameters.batch_size", integral),
    "train_batch_size": ("hyperparameters.buffer_size", integral),
    "num_sgd_iter": ("hyperparameters.num_epoch", integral),
    "lambda": ("hyperparameters.lambd", integral),
    "clip_param": ("hyperparameters.epsilon", integral),
    "entropy_coeff": ("hyperparameters.beta", integral),
    "grad_clip": ("hyperparameters.max_grad_norm", integral),
    "gamma": ("reward_signals.extrinsic.gamma", integral),
    "rollout_fragment_length": ("time_horizon", integral),
}
_NETWORK: Keys = {
    "fcnet_hiddens": ("network_settings.hidden_units", integral),
    "fcnet_activation": ("network_settings.activation", lambda name: "swish" if name == "silu" else name),
    "vf_share_layers": ("hyperparameters.shared_critic", integral),
    "lstm_cell_size": ("network_settings.memory.memory_size", lambda cells: 2 * cells),
    "max_seq_len": ("network_settings.memory.sequence_length", integral),
}
_GAME: Keys = {
    "env_path": ("env_settings.env_path", integral),
    "speedup": ("engine_settings.time_scale", integral),
    "show_window": ("engine_settings.no_graphics", lambda show: not show),
    "action_repeat": ("environment.action_repeat", integral),
    "framerate": ("environment.fixed_fps", integral),
    "port": ("env_settings.base_port", integral),
    "seed": ("env_settings.seed", integral),
}
_PPO_ALONE = ("num_epoch", "lambd", "epsilon", "beta", "shared_critic")
_DEFAULTS: Mapping[str, Any] = {
    # RLlib's defaults that differ from Headrace's.
    "hyperparameters.learning_rate_schedule": "constant",
    "hyperparameters.learning_rate": 5e-5,
    "hyperparameters.batch_size": 128,
    "hyperparameters.buffer_size": _STEPS_OF_AN_UPDATE,
    "hyperparameters.num_epoch": 30,
    "hyperparameters.lambd": 1.0,
    "hyperparameters.epsilon": 0.3,
    "hyperparameters.beta": 0.0,
    "network_settings.hidden_units": [256, 256],
    "network_settings.activation": "tanh",
}
_WITHOUT_EFFECT = ("env", "framework", "batch_mode", "explore", "clip_actions", "normalize_actions")
"""Keys that are superseded by other keys, or whose value is fixed in Headrace."""


def is_rllib(data: Mapping[str, Any]) -> bool:
    """Return True if a file's content has RLlib's form."""
    inner = data.get("config")
    return "algorithm" in data and isinstance(inner, dict) and ("env_config" in inner or inner.get("env") == "godot")


def convert_rllib(whole: OldValue, target: Target) -> None:
    """Convert an entire file. The game names the behaviours, so all of them learn with `default_settings`.

    Args:
        whole: the file's content.
        target: the top level of the new file.
    """
    inner = whole.at("config")
    target.notes.warn(
        whole.at("algorithm"), "algorithm", "this RLlib file is read as a run with environment.kind: godot"
    )
    trainer = _ALGORITHMS.get(str(whole.value["algorithm"]))
    if trainer is None:
        supported = ", ".join(_ALGORITHMS)
        target.notes.wrong(whole.at("algorithm"), f"is not supported ({supported})")
        trainer = "ppo"
    target.put("environment.kind", "godot", inner)
    target.put(f"{_BEHAVIOR}.trainer_type", trainer, whole.at("algorithm"))
    behavior = Target(target.notes, (_BEHAVIOR,))
    for key, value in _DEFAULTS.items() if trainer == "ppo" else ():
        behavior.put(key, value, inner)
    for key, old in inner.items():
        if key == "model":
            _convert_model(old, behavior, trainer)
        elif key == "env_config":
            _convert_game(old, target)
        elif key == "num_gpus":
            if old.value == 0:
                target.put("torch_settings.device", "cpu", old)
        elif key not in ("num_workers", "num_envs_per_worker", "entropy_coeff_schedule"):
            _convert_key(key, old, behavior, _LEARNING, trainer)
    if isinstance(old := inner.value.get("entropy_coeff_schedule"), list) and old:
        message = "is not supported; with 'beta_schedule: linear' the weight falls to almost 0 at max_steps"
        target.notes.warn(inner.at("entropy_coeff_schedule"), "entropy_coeff_schedule", message)
    _convert_builds(whole, inner, target)
    _convert_ends(whole, behavior, target)
    target.data[_BEHAVIOR] = {**target.data[_BEHAVIOR], **behavior.data}


def _convert_key(key: str, old: OldValue, target: Target, table: Keys, trainer: str = "ppo") -> None:
    """Write one value according to a table. Write nothing for null, which means RLlib's default."""
    new, write = table.get(key, ("", integral))
    if new and (trainer == "ppo" or new.rpartition(".")[2] not in _PPO_ALONE):
        if old.value is not None:
            target.put(new, write(old.value), old)
    elif key not in _WITHOUT_EFFECT and old.value not in (None, False):
        target.notes.warn(old, key, "has no counterpart, so it is left out")


def _convert_model(model: OldValue, target: Target, trainer: str) -> None:
    remembers = isinstance(model.value, dict) and bool(model.value.get("use_lstm"))
    if remembers:
        target.put("network_settings.memory", {"memory_size": 512, "sequence_length": 20}, model.at("use_lstm"))
    for key, old in model.items():
        if key == "use_lstm" or (key in ("lstm_cell_size", "max_seq_len") and not remembers):
            continue
        _convert_key(key, old, target, _NETWORK, trainer)


def _convert_game(game: OldValue, target: Target) -> None:
    """Convert `env_config`; unknown keys are passed to the game as arguments."""
    arguments = []
    for key, old in game.items():
        if key in _GAME:
            _convert_key(key, old, target, _GAME)
        elif old.value is not None:
            arguments.append(f"--{key}={old.value}")
    if arguments:
        target.put("env_settings.env_args", arguments, game)


def _convert_builds(whole: OldValue, inner: OldValue, target: Target) -> None:
    """Convert the number of builds.

    The result is the number of workers, multiplied by the environments per worker if `env_is_multiagent` is set.
    Without it, agents count as environments, so the environments per worker have no effect.
    """
    if not target.data.get("env_settings", {}).get("env_path"):
        return  # the editor runs only one game
    workers = inner.value.get("num_workers", 2)
    envs_per_worker = inner.value.get("num_envs_per_worker", 1) if whole.value.get("env_is_multiagent") else 1
    if _is_finite(workers) and _is_finite(envs_per_worker):
        target.put("env_settings.num_envs", max(1, int(workers)) * max(1, int(envs_per_worker)), inner)


def _convert_ends(whole: OldValue, target: Target, top: Target) -> None:
    """Convert `stop`, and `checkpoint_frequency`, which counts updates."""
    update = target.data.get("hyperparameters", {}).get("buffer_size", _STEPS_OF_AN_UPDATE)
    update = update if _is_finite(update) else _STEPS_OF_AN_UPDATE
    ends = dict(whole.at("stop").items()) if "stop" in whole.value else {}
    steps = [
        int(ends[key].value * steps_each)
        for key, steps_each in (("timesteps_total", 1), ("training_iteration", update))
        if key in ends and _is_finite(ends[key].value)
    ]
    for key in ("timesteps_total", "training_iteration"):
        if key in ends and not _is_finite(ends[key].value):
            target.notes.wrong(ends[key], f"{ends[key].value!r} is not valid; expected a finite number")
    target.put("max_steps", min(steps, default=_ENDLESS), whole)
    if "episode_reward_mean" in ends:
        target.put("stop_when.mean_reward", ends["episode_reward_mean"].value, ends["episode_reward_mean"])
    if "time_total_s" in ends:
        top.put("pipeline.max_wall_time_s", ends["time_total_s"].value, ends["time_total_s"])
    if _is_finite(whole.value.get("checkpoint_frequency")) and whole.value["checkpoint_frequency"] > 0:
        interval = int(whole.value["checkpoint_frequency"] * update)
        target.put("checkpoint_interval", interval, whole.at("checkpoint_frequency"))


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)
