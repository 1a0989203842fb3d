"""The YAML of a run: its schema, and how it is read and checked. Imports nothing heavy."""

from config.behaviors import (
    BehaviorSettings,
    PPOHyperparameters,
    RewardSignalSettings,
    Schedule,
    SelfPlaySettings,
)
from config.environment import EnvironmentSettings, EvaluationSettings
from config.errors import ConfigError, Mistake
from config.load import load_config
from config.network import Activation, NetworkSettings
from config.parameters import (
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
from config.run import CheckpointSettings, RunConfig, TorchSettings
from config.streams import RecordSettings, ReplaySettings
from config.unity import EngineSettings, EnvSettings

__all__ = [
    "STAGE_GROUP",
    "Activation",
    "ActorHosts",
    "BehaviorSettings",
    "CheckpointSettings",
    "CompletionCriteria",
    "ConfigError",
    "ConstantSampler",
    "Curriculum",
    "EngineSettings",
    "EnvSettings",
    "EnvironmentParameter",
    "EnvironmentSettings",
    "EvaluationSettings",
    "GaussianSampler",
    "HostsSettings",
    "LearnerHosts",
    "Lesson",
    "Mistake",
    "MultiRangeSampler",
    "NetworkSettings",
    "PPOHyperparameters",
    "PipelineSettings",
    "QueueSettings",
    "QueuesSettings",
    "RecordSettings",
    "ReplaySettings",
    "RewardSignalSettings",
    "RunConfig",
    "Sampler",
    "Schedule",
    "SelfPlaySettings",
    "StagePlacement",
    "TorchSettings",
    "UniformSampler",
    "WriterSettings",
    "load_config",
]
