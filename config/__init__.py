"""The YAML of a run: its schema, and the code that reads and checks it. Imports nothing heavy."""

from config.behavioral_cloning import BehavioralCloningSettings
from config.behaviors import BehaviorSettings
from config.environment import ActionRepeatSettings, EnvironmentSettings, ObservationSettings, RoleSettings
from config.environment_parameters import (
    CompletionCriteria,
    ConstantSampler,
    Curriculum,
    EnvironmentParameter,
    GaussianSampler,
    MultiRangeSampler,
    UniformSampler,
)
from config.errors import ConfigError, Mistake
from config.hyperparameters import (
    BCHyperparameters,
    ImpalaHyperparameters,
    OnPolicyHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from config.keys import KeyMapSettings, KeySettings
from config.load import load_config
from config.network_settings import MemorySettings, NetworkSettings
from config.overrides import EACH, Override
from config.pipeline import STAGE_GROUP, StagePlacement
from config.reward_signals import (
    CuriositySettings,
    GAILSettings,
    LearnedSignalSettings,
    OwnSignalSettings,
    RewardSignals,
    RewardSignalSettings,
    RNDSettings,
)
from config.run_config import RunConfig
from config.self_play import SelfPlaySettings
from config.trainers import TrainerKind
from config.unity import EngineSettings, EnvSettings

__all__ = [
    "EACH",
    "STAGE_GROUP",
    "ActionRepeatSettings",
    "BCHyperparameters",
    "BehaviorSettings",
    "BehavioralCloningSettings",
    "CompletionCriteria",
    "ConfigError",
    "ConstantSampler",
    "CuriositySettings",
    "Curriculum",
    "EngineSettings",
    "EnvSettings",
    "EnvironmentParameter",
    "EnvironmentSettings",
    "GAILSettings",
    "GaussianSampler",
    "ImpalaHyperparameters",
    "KeyMapSettings",
    "KeySettings",
    "LearnedSignalSettings",
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
    "RNDSettings",
    "RewardSignalSettings",
    "RewardSignals",
    "RoleSettings",
    "RunConfig",
    "SACHyperparameters",
    "SelfPlaySettings",
    "StagePlacement",
    "TrainerKind",
    "UniformSampler",
    "load_config",
]
