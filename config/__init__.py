"""The YAML of a run: its schema, and the code that reads and checks it. Imports nothing heavy."""

from config.behavioral_cloning import BehavioralCloningSettings
from config.behaviors import BehaviorSettings
from config.environment import (
    EnvironmentSettings,
    EvaluationSettings,
    ObservationSettings,
    RoleSettings,
    WrapperSettings,
)
from config.environment_parameters import (
    CompletionCriteria,
    ConstantSampler,
    Curriculum,
    EnvironmentParameter,
    GaussianSampler,
    Lesson,
    MultiRangeSampler,
    Sampler,
    UniformSampler,
)
from config.errors import ConfigError, Mistake
from config.hyperparameters import (
    BCHyperparameters,
    Hyperparameters,
    OnPolicyHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
    Schedule,
)
from config.load import load_config
from config.network_settings import Activation, MemorySettings, NetworkSettings
from config.overrides import EACH, Override
from config.pipeline import (
    STAGE_GROUP,
    ActorHosts,
    HostsSettings,
    LearnerHosts,
    PipelineSettings,
    QueueSettings,
    QueuesSettings,
    StagePlacement,
    WriterSettings,
)
from config.record_replay import RecordSettings, ReplaySettings
from config.reward_signals import (
    CuriositySettings,
    ExtrinsicSettings,
    GAILSettings,
    LearnedSignalSettings,
    OwnSignalSettings,
    RewardSignals,
    RewardSignalSettings,
    RNDSettings,
)
from config.run_config import RunConfig
from config.sections import CheckpointSettings, TorchSettings
from config.self_play import SelfPlaySettings
from config.trainers import TRAINERS, TrainerKind
from config.unity import EngineSettings, EnvSettings

__all__ = [
    "EACH",
    "STAGE_GROUP",
    "TRAINERS",
    "Activation",
    "ActorHosts",
    "BCHyperparameters",
    "BehaviorSettings",
    "BehavioralCloningSettings",
    "CheckpointSettings",
    "CompletionCriteria",
    "ConfigError",
    "ConstantSampler",
    "CuriositySettings",
    "Curriculum",
    "EngineSettings",
    "EnvSettings",
    "EnvironmentParameter",
    "EnvironmentSettings",
    "EvaluationSettings",
    "ExtrinsicSettings",
    "GAILSettings",
    "GaussianSampler",
    "HostsSettings",
    "Hyperparameters",
    "LearnedSignalSettings",
    "LearnerHosts",
    "Lesson",
    "MemorySettings",
    "Mistake",
    "MultiRangeSampler",
    "NetworkSettings",
    "ObservationSettings",
    "OnPolicyHyperparameters",
    "Override",
    "OwnSignalSettings",
    "POCAHyperparameters",
    "PPOHyperparameters",
    "PipelineSettings",
    "QueueSettings",
    "QueuesSettings",
    "RNDSettings",
    "RecordSettings",
    "ReplaySettings",
    "RewardSignalSettings",
    "RewardSignals",
    "RoleSettings",
    "RunConfig",
    "SACHyperparameters",
    "Sampler",
    "Schedule",
    "SelfPlaySettings",
    "StagePlacement",
    "TorchSettings",
    "TrainerKind",
    "UniformSampler",
    "WrapperSettings",
    "WriterSettings",
    "load_config",
]
