"""The table of keys in Stable-Baselines3 and its zoo, each with Headrace's key, or the reason why it has none.

To support another key, add a line to this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from headrace.config.fields import to_number
from headrace.config.legacy.old_values import integral, is_number
from headrace.config.network_settings import Activation

IDLE = ""
"""Value of `Key.to` for a key that has no effect on learning."""


@dataclass(frozen=True, slots=True)
class Key:
    """How one of Stable-Baselines3's keys is converted."""

    to: str | None
    """Headrace's key, below the behaviour. None if Headrace has no such key, and `IDLE` if it needs none."""
    default: Any = None
    """Stable-Baselines3's default. If `to` is None, Headrace always uses this value, unless `here` is set."""
    write: Callable[[Any], Any] = integral
    """Function that converts a Stable-Baselines3 value to a Headrace value. For a value that it can't convert, it
    raises a ValueError with the reason."""
    falls: bool = False
    """True if the key also accepts `lin_…`, a value that decreases linearly to 0, which sets `<to>_schedule`."""
    why: str = ""
    """What Headrace does instead, if `to` is None."""
    needs: str = ""
    """Another key, without which this key has no effect; empty if there is none."""
    here: Any = None
    """The value that Headrace always uses, if `to` is None and that value is not the default."""
    top: bool = False
    """True if `to` starts at the top of the file rather than at the behaviour."""
    note: str = ""
    """Difference in meaning between the two keys, to add to the comment."""
    also: tuple[str, Callable[[Any], Any]] | None = None
    """A second key to write, and a function that returns its value, or None to omit the key."""


_ACTIVATIONS = {"SiLU": "swish", "LeakyReLU": "leaky_relu"}
"""Maps torch's activation names to Headrace's names if they differ by more than case."""


def _activation(value: Any) -> Any:
    theirs = str(value).rpartition(".")[2]
    ours = _ACTIVATIONS.get(theirs, theirs.lower())
    if ours in get_args(Activation):
        return ours
    raise ValueError(f"activations are {', '.join(get_args(Activation))}")


def layers_of(value: Any, name: str = "pi") -> list[Any]:
    """Return the hidden layers of the actor (`pi`) or the critic.

    Raises:
        ValueError: if the value is not a list of layers.
    """
    parts = value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict) else value
    layers = parts.get(name, parts.get("qf", []) if name == "vf" else []) if isinstance(parts, dict) else parts
    if not isinstance(layers, list) or not all(isinstance(width, int) for width in layers):
        raise ValueError("expected a list of widths, or a map of two such lists, for actor and critic")
    if not layers:
        raise ValueError("expected at least one hidden layer")
    return layers


def _layers_of_critic(value: Any) -> list[Any] | None:
    layers = layers_of(value, "vf")
    return None if layers == layers_of(value) else layers


def _epsilon(value: Any) -> Any:
    if isinstance(value, dict) and [*value] == ["eps"]:
        return value["eps"]
    raise ValueError("Headrace only has an equivalent of Adam's eps")


def _adam(value: Any) -> None:
    if str(value).rpartition(".")[2] != "Adam":
        raise ValueError("Headrace always uses Adam")


def _weights(value: Any) -> Any:
    return {True: "orthogonal", False: "torch"}.get(value, value) if isinstance(value, bool) else value


def _entropy(value: Any) -> Any:
    """Read `auto`, `auto_0.1` or a fixed coefficient."""
    if is_number(value) and value == 0:
        raise ValueError("Headrace needs a coefficient above 0")
    return "auto" if isinstance(value, str) and value.partition("_")[0] == "auto" else "fixed"


def _unless(default: Any) -> Callable[[Any], Any]:
    return lambda value: None if value == default else integral(value)


def _first_coefficient(value: Any) -> Any:
    start = value.partition("_")[2] or "1" if isinstance(value, str) and value.startswith("auto") else value
    return integral(to_number(start) if isinstance(start, str) else start)


_HER = "HerReplayBuffer"


def is_hindsight(value: Any) -> bool:
    """Return True if a `replay_buffer_class` relabels goals."""
    return str(value).rpartition(".")[2] == _HER


def _hindsight(value: Any) -> None:
    """Write nothing, because `SAC_HINDSIGHT` handles the key."""
    if value is not None and not is_hindsight(value):
        raise ValueError(f"only {_HER} has an equivalent")


def _strategy(value: Any) -> str:
    """Read a strategy's name, or `GoalSelectionStrategy.FUTURE`."""
    return str(value).rpartition(".")[2].lower()


_CRITIC = ("network_settings.critic_hidden_units", _layers_of_critic)
_NO_EFFECT = Key(IDLE)

_SHARED: Mapping[str, Key] = {
    "learning_rate": Key("hyperparameters.learning_rate", 3e-4, falls=True),
    "gamma": Key("reward_signals.extrinsic.gamma", 0.99),
    "use_sde": Key("network_settings.gsde", False, write=lambda value: {} if value else None),
    "seed": Key("env_settings.seed", top=True),
    "device": Key("torch_settings.device", "auto", top=True),
    **dict.fromkeys(("verbose", "tensorboard_log", "stats_window_size"), _NO_EFFECT),
}

PPO: Mapping[str, Key] = {
    **_SHARED,
    "n_epochs": Key("hyperparameters.num_epoch", 10),
    "gae_lambda": Key("hyperparameters.lambd", 0.95),
    "clip_range": Key("hyperparameters.epsilon", 0.2, falls=True),
    "ent_coef": Key(
        "hyperparameters.beta",
        0.0,
        falls=True,
        also=("hyperparameters.summed_entropy", lambda value: bool(value) or None),
    ),
    "max_grad_norm": Key(
        "hyperparameters.max_grad_norm", 0.5, also=("hyperparameters.shared_grad_norm", lambda _: True)
    ),
    "target_kl": Key("hyperparameters.target_kl", note="Stable-Baselines3 checks it after each minibatch"),
    "vf_coef": Key("hyperparameters.value_coefficient", 0.5),
    "clip_range_vf": Key(None, why="Headrace does not clip values"),
    "normalize_advantage": Key(
        "hyperparameters.advantage_normalization", True, write=lambda value: "minibatch" if value is True else "none"
    ),
    "rollout_buffer_class": Key(None, why="Headrace has its own rollout buffer"),
    "rollout_buffer_kwargs": Key(None, why="Headrace has its own rollout buffer"),
}
"""PPO's keys; `conversion` handles those that depend on each other (n_steps, n_envs, batch_size)."""

SAC: Mapping[str, Key] = {
    **_SHARED,
    "buffer_size": Key("hyperparameters.buffer_size", 1_000_000),
    "batch_size": Key("hyperparameters.batch_size", 256),
    "tau": Key("hyperparameters.tau", 0.005),
    "ent_coef": Key(
        "hyperparameters.entropy_coefficient",
        "auto",
        write=_entropy,
        also=("hyperparameters.init_entcoef", _first_coefficient),
    ),
    "learning_starts": Key("hyperparameters.buffer_init_steps", 100, also=("hyperparameters.random_steps", integral)),
    "target_entropy": Key("hyperparameters.target_entropy", "auto", write=_unless("auto")),
    "target_update_interval": Key(
        "hyperparameters.target_update_interval",
        1,
        write=_unless(1),
        note="Stable-Baselines3 restarts the count in each round of updates",
    ),
    "n_steps": Key(None, 1, why="Headrace uses one-step returns"),
    "action_noise": Key(None, why="only the policy's own noise explores"),
    "noise_type": Key(None, why="only the policy's own noise explores"),
    "noise_std": Key(None, why="only the policy's own noise explores", needs="noise_type"),
    "replay_buffer_class": Key("hyperparameters.hindsight", write=_hindsight),
    "replay_buffer_kwargs": Key(None, why=f"only {_HER} has equivalents, listed below", needs="replay_buffer_class"),
    "use_sde_at_warmup": Key(
        "hyperparameters.random_steps", False, write=lambda value: 0 if value else None, needs="use_sde"
    ),
    "optimize_memory_usage": _NO_EFFECT,
}
"""SAC's keys; `conversion` handles replay_buffer_kwargs, train_freq and gradient_steps."""

SAC_HINDSIGHT: Mapping[str, Key] = {
    "goal_selection_strategy": Key("hyperparameters.hindsight.goals", "future", write=_strategy),
    "n_sampled_goal": Key("hyperparameters.hindsight.per_transition", 4),
    "copy_info_dict": Key(None, False, why="`compute_reward` receives empty infos"),
    "handle_timeout_termination": Key(None, True, why="Headrace never treats a time limit as a termination"),
    **dict.fromkeys(("online_sampling", "max_episode_length", "optimize_memory_usage"), _NO_EFFECT),
}
"""Keys in SAC's `replay_buffer_kwargs`, with `HerReplayBuffer`."""

_POLICY: Mapping[str, Key] = {
    "use_expln": Key("network_settings.gsde.use_expln", False, needs="use_sde"),
    "normalize_images": Key(None, True, why="Headrace divides uint8 images by 255"),
    "optimizer_class": Key(IDLE, "Adam", write=_adam),
    "features_extractor_class": Key(None, why="'network_settings', or a custom 'network' in it, define the layers"),
    "features_extractor_kwargs": Key(None, why="'network_settings' define the layers"),
}

PPO_POLICY: Mapping[str, Key] = {
    "net_arch": Key("network_settings.hidden_units", [64, 64], write=layers_of, also=_CRITIC),
    "activation_fn": Key("network_settings.activation", "nn.Tanh", write=_activation),
    "optimizer_kwargs": Key("hyperparameters.adam_epsilon", {"eps": 1e-5}, write=_epsilon),
    "log_std_init": Key("network_settings.initial_log_std", 0.0),
    "ortho_init": Key("network_settings.initial_weights", True, write=_weights),
    "squash_output": Key(
        "network_settings.gsde.squash_output",
        False,
        needs="use_sde",
        also=("network_settings.gsde.clip_mean", lambda value: 0 if value else None),
    ),
    "full_std": Key("network_settings.gsde.full_std", True, needs="use_sde"),
    "share_features_extractor": Key(None, True, why="actor and critic share the image encoder"),
    **_POLICY,
}
"""Keys in PPO's `policy_kwargs`."""

SAC_POLICY: Mapping[str, Key] = {
    "net_arch": Key("network_settings.hidden_units", [256, 256], write=layers_of, also=_CRITIC),
    "activation_fn": Key("network_settings.activation", "nn.ReLU", write=_activation),
    "optimizer_kwargs": Key("hyperparameters.adam_epsilon", {"eps": 1e-8}, write=_epsilon),
    "log_std_init": Key("network_settings.initial_log_std", -3, needs="use_sde"),
    "clip_mean": Key("network_settings.gsde.clip_mean", 2.0, needs="use_sde"),
    "n_critics": Key(None, 2, why="Headrace always has two critics"),
    "share_features_extractor": Key(None, False, why="actor and critics have separate encoders"),
    **_POLICY,
}
"""Keys in SAC's `policy_kwargs`."""

NORMALIZE: Mapping[str, Key] = {
    "norm_obs": Key("network_settings.normalize", True),
    "norm_reward": Key("hyperparameters.reward_normalization", True),
    "norm_obs_keys": Key(None, why="Headrace normalises all vectors", needs="norm_obs"),
    "training": Key(None, True, why="the normaliser updates throughout training"),
    "clip_obs": Key(None, 10.0, why="Headrace clips normalised observations to ±5", here=5.0, needs="norm_obs"),
    "clip_reward": Key(None, 10.0, why="Headrace clips normalised rewards to ±10", needs="norm_reward"),
    **dict.fromkeys(("gamma", "epsilon"), _NO_EFFECT),
}
"""Keys in `normalize`, the arguments of VecNormalize."""

OF_ITSELF = (
    *("Monitor", "VecMonitor", "VecTransposeImage"),
    *("LogEveryNTimesteps", "ParallelTrainCallback", "ProgressBarCallback", "RawStatisticsCallback"),
    "SaveVecNormalizeCallback",
)
"""Wrappers and callbacks whose effect is built into Headrace."""
