"""The YAML of a run: its schema, and the code that reads and validates it. Imports no heavy packages."""

from headrace.config.behaviors import BehaviorSettings
from headrace.config.environment import (
    ActionRepeatSettings,
    EnvironmentSettings,
    KeyMapSettings,
    KeySettings,
    ObservationSettings,
    RoleSettings,
)
from headrace.config.environment_parameters import (
    CompletionCriteria,
    ConstantSampler,
    Curriculum,
    EnvironmentParameter,
    GaussianSampler,
    MultiRangeSampler,
    UniformSampler,
)
from headrace.config.errors import ConfigError, Mistake
from headrace.config.hyperparameters import (
    BCHyperparameters,
    ImpalaHyperparameters,
    OnPolicyHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    RegularizationSettings,
    SACHyperparameters,
)
from headrace.config.load import EACH, Override, load_config
from headrace.config.network_settings import MemorySettings, NetworkSettings
from headrace.config.opponents import SelfPlaySettings
from headrace.config.pipeline import STAGE_GROUP, StagePlacement
from headrace.config.reward_signals import (
    BehavioralCloningSettings,
    CuriositySettings,
    GAILSettings,
    LearnedSignalSettings,
    OwnSignalSettings,
    RewardSignals,
    RewardSignalSettings,
    RNDSettings,
)
from headrace.config.run_config import RunConfig
from headrace.config.sections import EngineSettings, EnvSettings
from headrace.config.trainers import TrainerKind

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
    "RegularizationSettings",
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

if __name__ != "headrace.config":  # a checkout is on `sys.path`, and the caller wants a different `config` package
    raise ModuleNotFoundError("No module named 'config'; Headrace's own is headrace.config", name=__name__)
