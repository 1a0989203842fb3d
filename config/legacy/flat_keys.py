"""The keys of flat blocks: the trainers that had them, their places today, and their values in the files as shipped."""

from __future__ import annotations

from typing import Any

_NETWORK = ("normalize", "hidden_units", "num_layers", "vis_encode_type")
_SHARED = ("batch_size", "learning_rate", "learning_rate_schedule")
_PPO = ("buffer_size", "beta", "beta_schedule", "epsilon", "epsilon_schedule", "lambd", "num_epoch")
_SAC = ("buffer_size", "buffer_init_steps", "tau", "init_entcoef", "save_replay_buffer", "steps_per_update")

_TO_HYPERPARAMETERS = {
    "ppo": (*_SHARED, *_PPO),
    "poca": (*_SHARED, *_PPO),
    "sac": (*_SHARED, *_SAC),
    "bc": ("batch_size", "learning_rate"),
}

MOVED = {
    trainer: {
        **{key: f"hyperparameters.{key}" for key in keys},
        **{key: f"network_settings.{key}" for key in _NETWORK},
    }
    for trainer, keys in _TO_HYPERPARAMETERS.items()
}
"""Today's places of keys that kept their meaning, by trainer."""

STAYED = ("max_steps", "summary_freq", "threaded", "init_path", "keep_checkpoints", "checkpoint_interval")
"""Keys that kept their place in a block."""

FRACTIONS = ("learning_rate", "beta", "epsilon", "lambd", "tau", "init_entcoef", "steps_per_update")
"""Keys whose numbers need not be whole."""

_MEMORY = ("use_recurrent", "sequence_length", "memory_size")
_REWARDS = ("reward_signals", "gamma", "use_curiosity", "curiosity_strength", "curiosity_enc_size")
_CLONING = ("pretraining", "behavioral_cloning")
_ALL = ("trainer", "curriculum", *_MEMORY)
UPDATES = ("num_update", "updates_per_train")
"""SAC's updates at a time, by the name of its released versions and by that before them."""

CONVERTED = {
    "ppo": (*_ALL, "time_horizon", "self_play", *_REWARDS, *_CLONING),
    "poca": (*_ALL, "time_horizon", "self_play", *_REWARDS, *_CLONING),
    "sac": (*_ALL, "time_horizon", "self_play", *_REWARDS, *_CLONING, "train_interval", *UPDATES),
    "bc": (*_ALL, "demo_path", "brain_to_imitate", "batches_per_epoch"),
}
"""Keys that need more than another place, by trainer."""

GONE = {
    "summary_path": "is gone: everything goes to <results_dir>/<run_id>",
    "model_path": "is gone: everything goes to <results_dir>/<run_id>",
    "output_path": "is gone: everything goes to <results_dir>/<run_id>",
    "graph_scope": "is gone: it was about TensorFlow",
    "framework": "is gone: training is by torch",
}
"""Keys that have no successor, and why they need none."""

OLD_TRAINERS = {
    "ppo": "ppo",
    "poca": "poca",
    "sac": "sac",
    "offline_bc": "bc",
    "online_bc": "bc",
    "imitation": "bc",
    "bc": "bc",
}
"""Today's names of old trainers."""

_NET_SHIPPED = {"normalize": False, "hidden_units": 128, "num_layers": 2}
_PACE_SHIPPED = {"max_steps": 500000, "time_horizon": 64, "summary_freq": 10000, "learning_rate": 3e-4}
_PPO_SHIPPED = {"batch_size": 1024, "buffer_size": 10240, "beta": 5e-3, "epsilon": 0.2, "lambd": 0.95, "num_epoch": 3}

SHIPPED: dict[str, dict[str, Any]] = {
    "ppo": {**_PPO_SHIPPED, **_NET_SHIPPED, **_PACE_SHIPPED},
    "poca": {**_PPO_SHIPPED, **_NET_SHIPPED, **_PACE_SHIPPED},
    "sac": {
        "batch_size": 128,
        "buffer_size": 50000,
        "buffer_init_steps": 0,
        "init_entcoef": 1.0,
        "tau": 0.005,
        **_NET_SHIPPED,
        **_PACE_SHIPPED,
    },
    "bc": {
        "batch_size": 64,
        "learning_rate": 3e-4,
        "max_steps": 50000,
        "summary_freq": 1000,
        "hidden_units": 128,
        "num_layers": 2,
    },
}
"""Keys that old versions required in each block, with the values of the `default` section shipped with them."""

SEQUENCE_LENGTH, MEMORY_SIZE, BATCHES_PER_EPOCH = 64, 128, 10


def known(trainer: str) -> set[str]:
    """Return the keys that a block of this trainer may have."""
    return {*MOVED[trainer], *STAYED, *CONVERTED[trainer]}


ALL = frozenset(key for trainer in MOVED for key in known(trainer)) | frozenset(GONE)
"""Every key of flat blocks."""

DISTINCTIVE = ALL - {
    *STAYED,
    *("time_horizon", "reward_signals", "self_play", "behavioral_cloning", "framework"),
}
"""Keys that tell a flat block from one of today."""
