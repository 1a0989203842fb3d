"""The `behaviors` section: how each behaviour learns. It has ML-Agents' schema and defaults, plus some new keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from headrace.config.brains import OwnBrainSettings, as_brains, check_brains, leave_nobody_to_learn, meanings
from headrace.config.errors import Finding, FindingsError, suggest
from headrace.config.fields import Flag, Float, Int, PathText, PlainMap, Settings, Text, is_reference, report
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.league import LeagueSettings
from headrace.config.network_settings import LOG_STD_OF_SAC, NetworkSettings
from headrace.config.opponents import SelfPlaySettings
from headrace.config.reward_signals import (
    BehavioralCloningSettings,
    ExtrinsicSettings,
    LearnedSignalSettings,
    RewardSignals,
    RewardSignalSettings,
)
from headrace.config.trainers import DEFAULT_TRAINER, TRAINERS, declared_kind
from headrace.config.validation import explain

# Conditions under which a behaviour stops learning before `max_steps`.


class StopWhenSettings(Settings):
    """Conditions under which a behaviour stops learning before `max_steps`. Meeting any one of them is enough."""

    mean_reward: Float | None = Field(
        None, description="Stop when the mean return over the last `over` training episodes reaches this value."
    )
    over: Int = Field(
        100, gt=0, le=100_000, description="Number of episodes that `mean_reward` and `plateau` average over."
    )
    elo: Float | None = Field(
        None, description="With self-play: stop when the newest policy's rating reaches this value."
    )
    plateau: Int | None = Field(
        None,
        gt=0,
        description="Stop when the mean return over the last `over` episodes has not reached a new maximum for this "
        "many steps.",
    )

    def _mistakes(self) -> Iterator[Finding]:
        if self.mean_reward is None and self.elo is None and self.plateau is None:
            yield Finding((), "is empty; expected mean_reward, elo or plateau")


_NO_PLUGINS = " (ML-Agents plugins are not supported; see docs/extending.md for how to write a trainer)"


def _trainer_type(value: object) -> object:
    if not isinstance(value, str) or value in TRAINERS or is_reference(value):
        return value
    expected = f"{', '.join(map(repr, TRAINERS))} or your own 'module:Class'"
    raise ValueError(f"'{value}' is not a trainer; expected {expected}{suggest(value, TRAINERS) or _NO_PLUGINS}")


def _policy_file(value: object) -> object:
    if isinstance(value, str) and value.endswith(".nn"):
        raise ValueError(
            f"'{value}' is in Barracuda's format, which only versions 1.0 to 2.x of Unity's package can read; expected "
            "a .pt or .onnx file. If you have neither, let Unity play the model, record the games as a .demo file and "
            "imitate that file (docs/imitation.md)"
        )
    return value


def _likely_trainer(hyperparameters: dict[str, Any]) -> str:
    """Guess which built-in trainer these keys are meant for."""
    models = {name: kind.hyperparameters for name, kind in TRAINERS.items() if kind.hyperparameters is not None}
    fitting = (name for name, model in models.items() if hyperparameters.keys() <= model.model_fields.keys())
    return next(fitting, DEFAULT_TRAINER)


def _defaults(trainer_type: str) -> Hyperparameters | PlainMap:
    """Return the default hyperparameters of a trainer.

    Raises:
        FindingsError: if the trainer has required hyperparameters.
    """
    model = declared_kind(trainer_type).hyperparameters
    try:
        return {} if model is None else model()
    except ValidationError as error:
        assert model is not None, "it refused"
        findings = explain(model, error, {})
        report(
            [Finding(("hyperparameters", *finding.path), finding.message, (("trainer_type",),)) for finding in findings]
        )
        raise


class BehaviorSettings(Settings):
    """Settings of one behaviour. Steps are agent decisions, not frames, and are counted by the behaviour's trainer."""

    trainer_type: Annotated[Text, BeforeValidator(_trainer_type)] = Field(
        DEFAULT_TRAINER,
        description="`ppo`, `poca`, `sac`, `bc`, `impala`, or `module:Class` for a custom trainer. Required with "
        "`hyperparameters`.",
    )
    hyperparameters: SerializeAsAny[Hyperparameters | PlainMap] = Field(
        default_factory=lambda: _defaults(DEFAULT_TRAINER),
        description="Parameters of the trainer. For a custom trainer: any map, passed to it unchanged.",
    )
    network_settings: NetworkSettings = Field(default_factory=NetworkSettings, description="The network.")
    reward_signals: RewardSignals = Field(
        default_factory=lambda: RewardSignals(extrinsic=ExtrinsicSettings()),
        description="The behaviour's sources of reward, keyed by name.",
        json_schema_extra={"default_text": "`extrinsic` alone"},
    )
    checkpoint_interval: Int = Field(
        500000,
        gt=0,
        description="Steps between checkpoints. Each checkpoint exports a policy, and the run writes a final "
        "checkpoint when it ends.",
    )
    keep_checkpoints: Int = Field(
        5, description="Number of exported policies to keep, newest first; 0 or less keeps all."
    )
    even_checkpoints: Flag = Field(
        False,
        description="Set `checkpoint_interval` to `max_steps` / `keep_checkpoints` (rounded down), overriding its "
        "value.",
    )
    max_steps: Int = Field(500000, gt=0, description="Steps after which training ends.")
    stop_when: StopWhenSettings | None = Field(
        None,
        description="When this behaviour stops learning before `max_steps`; the others continue. Not in ML-Agents.",
    )
    time_horizon: Int = Field(
        64,
        gt=0,
        le=10**7,
        description="Maximum number of steps in each piece of an agent's trajectory that is sent to the trainer.",
    )
    summary_freq: Int = Field(
        50000,
        gt=0,
        description="Steps between summaries (console and TensorBoard); the last one is written at the end of the run.",
    )
    threaded: Flag = Field(
        False,
        description="Accepted for compatibility with ML-Agents, but has no effect: the learner "
        "always runs separately (see `pipeline.hosts.learners`).",
    )
    init_path: Annotated[PathText | None, BeforeValidator(_policy_file)] = Field(
        None,
        description="Weights to start from, a `.pt` file: a path, or a file name under "
        "`<results_dir>/<initialize_from>/<behaviour>/`. With `inference`, an `.onnx` model to play with.",
    )
    self_play: SelfPlaySettings | None = Field(None, description="If present, enables self-play.")
    league: LeagueSettings | None = Field(
        None,
        description="If present, trains several learners for this behaviour; they play each other and a pool of frozen "
        "players. Either the name of a preset or a map. Not in ML-Agents.",
    )
    behavioral_cloning: BehavioralCloningSettings | None = Field(
        None, description="If present, the trainer also learns by imitating demonstrations."
    )
    brain: Annotated[tuple[OwnBrainSettings, ...], BeforeValidator(as_brains)] = Field(
        (),
        description="What controls the agents: "
        + meanings()
        + ". A word (the `use` of a single brain), a map, or a list of brains with their shares of the games; the "
        "trainer's policy plays the remaining games, and learns from them. Not in ML-Agents.",
        json_schema_extra={"default_text": "`learning`"},
    )
    broadcast: Flag = Field(
        False,
        description="If true, the steps of a `brain` that does not learn are also sent to custom stages, recordings "
        "and students (`hyperparameters.teacher`). Not in current ML-Agents files.",
    )
    framework: Text | None = Field(None, description="Accepted for compatibility with ML-Agents, but has no effect.")

    @property
    def learns(self) -> bool:
        """True unless brains that do not learn play all of the behaviour's games."""
        return not self.brain or not leave_nobody_to_learn(self.brain)

    @property
    def declared_hyperparameters(self) -> Hyperparameters | None:
        """The behaviour's hyperparameters; None for a trainer that accepts any map."""
        model = declared_kind(self.trainer_type).hyperparameters
        return None if model is None else model.model_validate(self.hyperparameters)

    @property
    def signals(self) -> dict[str, RewardSignalSettings]:
        """The behaviour's reward signals, keyed by name: built-in signals in schema order, then custom signals."""
        return self.reward_signals.present

    @property
    def learned_signals(self) -> dict[str, LearnedSignalSettings]:
        """The reward signals that have networks, keyed by name."""
        return {name: signal for name, signal in self.signals.items() if isinstance(signal, LearnedSignalSettings)}

    @property
    def normalizes(self) -> bool:
        """True if the policy or a reward signal normalises observations."""
        networks = self.network_settings, *(signal.network_settings for signal in self.learned_signals.values())
        return any(network.normalize for network in networks)

    @property
    def teacher(self) -> str | None:
        """The behaviour whose trajectories this one imitates during the run; None if it imitates none."""
        return self._imitated("teacher")

    @property
    def demonstrations(self) -> str | None:
        """The `demo_path` that this behaviour imitates instead of acting; None if it does not learn this way."""
        return self._imitated("demo_path")

    def _imitated(self, key: str) -> str | None:
        source: str | None = getattr(self.hyperparameters, key, None)
        return source if declared_kind(self.trainer_type).imitates else None

    @field_validator("hyperparameters", mode="wrap")
    @classmethod
    def _by_trainer(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        trainer = info.data.get("trainer_type", "")  # missing if it failed validation
        model = declared_kind(trainer).hyperparameters
        if model is not None and isinstance(value, Settings) and not isinstance(value, model):
            raise ValueError(
                f"{type(value).__name__} is not valid for trainer_type '{trainer}'; expected {model.__name__}"
            )
        if not isinstance(value, dict):
            return handler(value)
        return value if model is None else model.model_validate(value)

    @model_validator(mode="before")
    @classmethod
    def _needs_trainer_type(cls, data: Any) -> Any:
        given = isinstance(data, dict) and isinstance(data.get("hyperparameters"), dict)
        if given and not suggest("trainer_type", data):  # a misspelt one is reported by itself
            likely = _likely_trainer(data["hyperparameters"])
            message = f"needs trainer_type as well; add 'trainer_type: {likely}' (or your own 'module:Class')"
            report([Finding(("hyperparameters",), message)])
        return data

    def _mistakes(self) -> list[Finding]:
        """Find conflicting settings. Stop at the first kind of conflict found, because it may cause the other kinds."""
        return (
            self._about_brains()
            or self._about_league()
            or self._about_hyperparameters()
            or self._about_even_checkpoints()
        )

    def _derive(self) -> None:
        if defaults := declared_kind(self.trainer_type).network_defaults:
            self._fill(network_settings=self.network_settings.with_defaults(defaults))
        if self.even_checkpoints:
            self._fill(checkpoint_interval=self.max_steps // self.keep_checkpoints)
        network = self.network_settings
        if network.gsde is not None and self.trainer_type == "sac" and not network._is_set("initial_log_std"):
            self._fill(network_settings=network.model_copy(update={"initial_log_std": LOG_STD_OF_SAC}))

    def _about_brains(self) -> list[Finding]:
        findings = check_brains(self.brain, "brain")
        if self.brain and self.self_play is not None:
            message = (
                "can't be combined with 'brain'; list opponents that do not learn in self_play.brains, or leave "
                "self_play out ('self_play: null' if default_settings has it)"
            )
            findings.append(Finding(("self_play",), message, (("brain",),)))
        if self.stop_when is not None and self.stop_when.elo is not None and self.self_play is None:
            message = "needs self_play, which rates policies; leave it out, or add self_play"
            findings.append(Finding(("stop_when", "elo"), message, (("self_play",),)))
        return findings

    def _about_league(self) -> list[Finding]:
        if self.league is None:
            return []
        others = [key for key in ("self_play", "brain") if getattr(self, key)]
        message = "can't be combined with 'league', whose opponents come from its pool (league.members); leave it out"
        return [Finding((key,), message, (("league",),)) for key in others]

    def _about_hyperparameters(self) -> list[Finding]:
        """Find settings that conflict with the trainer, and fill in the trainer's default hyperparameters."""
        findings = [
            Finding(
                (key,),
                f"can't be combined with trainer_type '{self.trainer_type}': {why}; leave it out ('{key}: null' if "
                "default_settings has it)",
                (("trainer_type",),),
            )
            for key, why in declared_kind(self.trainer_type).excluded.items()
            if getattr(self, key) is not None
        ]
        try:
            if not self._is_set("hyperparameters"):
                self._fill(hyperparameters=_defaults(self.trainer_type))
        except FindingsError as error:
            findings += error.findings
        if not self.learns:
            return []
        if not findings and isinstance(self.hyperparameters, Hyperparameters):
            return [finding for finding in self.hyperparameters.check(self) if not finding.warns]
        return findings

    def _about_even_checkpoints(self) -> list[Finding]:
        if not self.even_checkpoints:
            return []
        if self.keep_checkpoints <= 0:
            message = f"{self.keep_checkpoints} can't be combined with even_checkpoints; expected at least 1"
            return [Finding(("keep_checkpoints",), message, (("even_checkpoints",),))]
        if self.max_steps < self.keep_checkpoints:
            message = f"{self.keep_checkpoints} is greater than max_steps ({self.max_steps})"
            return [Finding(("keep_checkpoints",), message, (("max_steps",),))]
        return []
