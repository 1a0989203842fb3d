"""Parts for custom trainers, networks and reward signals; imports torch."""

from __future__ import annotations

from headrace.stages.policy import (
    Normalizer,
    NumpyPolicy,
    ObservationLayout,
    PolicyDesign,
    design_of,
    make_policy,
    policy_layout,
    split_action_heads,
)
from headrace.stages.policy.design import ActionDistributions, Exploration
from headrace.stages.policy.network import ActorCritic, ActorNetwork, Inputs, make_actor_critic
from headrace.stages.trainer.adam import Adam
from headrace.stages.trainer.bc import BCTrainer
from headrace.stages.trainer.exploration import EpsilonGreedy, GaussianNoise
from headrace.stages.trainer.factory import make_trainer
from headrace.stages.trainer.impala import ImpalaTrainer
from headrace.stages.trainer.poca import POCATrainer
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import Schedule
from headrace.stages.trainer.rewards.signal import NetworkSignal
from headrace.stages.trainer.sac import SACTrainer

__all__ = [
    "ActionDistributions",
    "ActorCritic",
    "ActorNetwork",
    "Adam",
    "BCTrainer",
    "EpsilonGreedy",
    "Exploration",
    "GaussianNoise",
    "ImpalaTrainer",
    "Inputs",
    "NetworkSignal",
    "Normalizer",
    "NumpyPolicy",
    "ObservationLayout",
    "POCATrainer",
    "PPOTrainer",
    "PolicyDesign",
    "SACTrainer",
    "Schedule",
    "design_of",
    "make_actor_critic",
    "make_policy",
    "make_trainer",
    "policy_layout",
    "split_action_heads",
]
