"""Parts for custom trainers, networks and reward signals; imports torch."""

from __future__ import annotations

from headrace.stages.errors import NotFiniteError as NotFiniteError
from headrace.stages.policy.design import ActionDistributions as ActionDistributions
from headrace.stages.policy.design import Exploration as Exploration
from headrace.stages.policy.design import PolicyDesign as PolicyDesign
from headrace.stages.policy.design import design_of as design_of
from headrace.stages.policy.design import policy_layout as policy_layout
from headrace.stages.policy.design import split_action_heads as split_action_heads
from headrace.stages.policy.network.actor_critic import ActorCritic as ActorCritic
from headrace.stages.policy.network.actor_critic import make_actor_critic as make_actor_critic
from headrace.stages.policy.network.body import ActorNetwork as ActorNetwork
from headrace.stages.policy.network.body import NetworkBody as NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters as FlatParameters
from headrace.stages.policy.network.flat_parameters import seeded as seeded
from headrace.stages.policy.network.layers import Inputs as Inputs
from headrace.stages.policy.numpy_policy import NumpyPolicy as NumpyPolicy
from headrace.stages.policy.numpy_policy import make_policy as make_policy
from headrace.stages.policy.observations import EncodedObservations as EncodedObservations
from headrace.stages.policy.observations import Normalizer as Normalizer
from headrace.stages.policy.observations import ObservationLayout as ObservationLayout
from headrace.stages.trainer.adam import Adam as Adam
from headrace.stages.trainer.bc import BCTrainer as BCTrainer
from headrace.stages.trainer.exploration import EpsilonGreedy as EpsilonGreedy
from headrace.stages.trainer.exploration import GaussianNoise as GaussianNoise
from headrace.stages.trainer.factory import make_trainer as make_trainer
from headrace.stages.trainer.impala import ImpalaTrainer as ImpalaTrainer
from headrace.stages.trainer.intake import ObservationPreprocessor as ObservationPreprocessor
from headrace.stages.trainer.poca import POCATrainer as POCATrainer
from headrace.stages.trainer.ppo import PPOTrainer as PPOTrainer
from headrace.stages.trainer.protocol import Schedule as Schedule
from headrace.stages.trainer.protocol import new_random as new_random
from headrace.stages.trainer.protocol import random_state as random_state
from headrace.stages.trainer.protocol import restore_random as restore_random
from headrace.stages.trainer.replay.pace import PaceSettings as PaceSettings
from headrace.stages.trainer.replay.pace import UpdatePace as UpdatePace
from headrace.stages.trainer.replay.pace import UpdateRatio as UpdateRatio
from headrace.stages.trainer.replay.replay_memory import ReplayedRows as ReplayedRows
from headrace.stages.trainer.replay.replay_memory import ReplayFileError as ReplayFileError
from headrace.stages.trainer.replay.replay_memory import ReplayMemory as ReplayMemory
from headrace.stages.trainer.replay.replay_memory import read_replay as read_replay
from headrace.stages.trainer.replay.replay_memory import write_replay as write_replay
from headrace.stages.trainer.rewards.signal import NetworkSignal as NetworkSignal
from headrace.stages.trainer.sac import SACTrainer as SACTrainer

__all__ = [name for name in dir() if name[0] != "_" and name != "annotations"]
