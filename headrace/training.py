"""Parts for custom trainers, networks and reward signals; imports torch."""

from __future__ import annotations

from headrace.stages.errors import NotFiniteError
from headrace.stages.policy.design import (
    ActionDistributions,
    Exploration,
    PolicyDesign,
    design_of,
    policy_layout,
    split_action_heads,
)
from headrace.stages.policy.network.actor_critic import ActorCritic, make_actor_critic
from headrace.stages.policy.network.body import ActorNetwork, NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.numpy_policy import NumpyPolicy, make_policy
from headrace.stages.policy.observations import EncodedObservations, Normalizer, ObservationLayout
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.bc import BCTrainer
from headrace.stages.trainer.exploration import EpsilonGreedy, GaussianNoise
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.impala import ImpalaTrainer
from headrace.stages.trainer.intake import ObservationPreprocessor
from headrace.stages.trainer.poca import POCATrainer
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import Schedule, new_random, random_state, restore_random
from headrace.stages.trainer.replay.pace import PaceSettings, UpdatePace, UpdateRatio
from headrace.stages.trainer.replay.replay_memory import (
    ReplayedRows,
    ReplayFileError,
    ReplayMemory,
    read_replay,
    write_replay,
)
from headrace.stages.trainer.rewards.signal import NetworkSignal
from headrace.stages.trainer.sac import SACTrainer

__all__ = [
    "ActionDistributions",
    "ActorCritic",
    "ActorNetwork",
    "Adam",
    "BCTrainer",
    "EncodedObservations",
    "EpsilonGreedy",
    "Exploration",
    "FlatParameters",
    "GaussianNoise",
    "ImpalaTrainer",
    "Inputs",
    "NetworkBody",
    "NetworkSignal",
    "Normalizer",
    "NotFiniteError",
    "NumpyPolicy",
    "ObservationLayout",
    "ObservationPreprocessor",
    "POCATrainer",
    "PPOTrainer",
    "PaceSettings",
    "PolicyDesign",
    "ReplayFileError",
    "ReplayMemory",
    "ReplayedRows",
    "SACTrainer",
    "Schedule",
    "UpdatePace",
    "UpdateRatio",
    "design_of",
    "make_actor_critic",
    "make_policy",
    "make_trainer",
    "new_random",
    "policy_layout",
    "random_state",
    "read_replay",
    "restore_random",
    "seeded",
    "split_action_heads",
    "write_replay",
]
