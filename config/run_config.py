"""A run's configuration. The code that merges the plain data before validation is at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError, ValidationInfo, model_validator

from headrace.config.behaviors import BehaviorSettings
from headrace.config.environment import EnvironmentSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, UNITY
from headrace.config.errors import SET, ConfigError, Finding, KeyPath, Locate, Mistake, nowhere, suggest
from headrace.config.fields import report
from headrace.config.league import PRESET_LEARNING, UNKNOWN, LeagueSettings
from headrace.config.learning_defaults import instances_of, with_learning_defaults
from headrace.config.section_checks import check_run, check_sections
from headrace.config.sections import Sections
from headrace.config.trainers import DEFAULT_TRAINER, declared_kind
from headrace.config.validation import ONLY_CONVERTED, check
from headrace.startup_context import absolute

SHARED = "x-"
"""Prefix of top-level keys that only define YAML anchors."""


class RunConfig(Sections):
    """A run's configuration. Attributes have the names of the YAML's keys."""

    _path: Path | None = PrivateAttr(None)
    _warnings: tuple[str, ...] = PrivateAttr(())
    _deserve_warnings: tuple[Finding, ...] = PrivateAttr(())
    _locate: Locate = PrivateAttr(default_factory=lambda: nowhere)  # a plain function would count as a method

    @property
    def path(self) -> Path | None:
        """The file from which the configuration was loaded; None for plain data."""
        return self._path

    @property
    def source_folder(self) -> Path | None:
        """Absolute path of the YAML file's folder, which the YAML can import modules from; None if there is no file."""
        return None if self._path is None else absolute(self._path).resolve().parent

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings from loading, about keys that have no effect or probably not the intended effect."""
        return self._warnings

    def place(self, path: KeyPath) -> str:
        """Return a key's location: `file:line`, or the option that set it; empty for plain data."""
        return self._locate(path, "").place

    def in_place(self, path: KeyPath, message: str) -> str:
        """Return a message about a key, preceded by the key's location, if known; an empty path has no location."""
        place = self.place(path) if path else ""
        return f"{place}: {message}" if place else message

    def is_set_by_command(self, path: KeyPath) -> bool:
        """Return True if `--set` set a key's value, in which case the value applies only until the run stops."""
        return self.place(path).startswith(SET)

    def behavior_settings(self, name: str) -> BehaviorSettings:
        """Return the settings of a behaviour.

        Raises:
            ConfigError: if the behaviour is not listed and there are no default settings.
        """
        settings = self.known_settings(name)
        if settings is not None:
            return settings
        origin = "environment" if self.replay is None else "recording"
        message = (
            f"the {origin} has a behaviour '{name}', which is not listed here (listed: {', '.join(self.behaviors)}); "
            f"add it, or set default_settings{suggest(name, self.behaviors)}"
        )
        raise ConfigError([Mistake(str(self._path or ""), None, "behaviors", message)])

    def known_settings(self, name: str) -> BehaviorSettings | None:
        """Return the settings of a behaviour, or of its league's first learner, or the default settings, or None."""
        listed = name if name in self.behaviors else next(iter(self.league_learners(name)), "")
        return self.behaviors.get(listed, self.default_settings)

    def league_learners(self, name: str) -> list[str]:
        """Return the names of the league learners for an environment's behaviour; empty without a league."""
        return [
            key
            for key, settings in self.behaviors.items()
            if settings.league is not None and settings.league.of == name
        ]

    def to_plain(self) -> dict[str, Any]:
        """Return the configuration, with defaults filled in, as plain data for YAML, JSON or msgpack.

        `default_settings` contains only the keys that were set, because any others would be merged into all behaviours.
        """
        plain = self.model_dump(mode="json", by_alias=True)
        if self.default_settings is not None:
            written = self.default_settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
            plain["default_settings"] = {"trainer_type": self.default_settings.trainer_type, **written}
            for settings in plain["behaviors"].values():
                signals = settings["reward_signals"]
                signals.update({name: None for name in written.get("reward_signals", ()) if name not in signals})
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], path: Path | None = None, locate: Locate = nowhere) -> RunConfig:
        """Build a configuration from plain data, such as the result of `to_plain`.

        Args:
            plain: the data.
            path: the file from which the data was loaded, for `source_folder`; None without a file.
            locate: returns a `Mistake` with a key's location.

        Raises:
            ConfigError: if anything is wrong; it lists all mistakes.
        """
        return check(cls, merge_default_settings(plain), locate).loaded(path, locate)

    def rewritten(self, plain: Mapping[str, Any]) -> RunConfig:
        """Build a configuration from modified plain data of the same file; raise the same errors as `from_plain`."""
        return type(self).from_plain(plain, self._path, self._locate)

    def loaded(
        self, path: Path | None, locate: Locate, notes: Sequence[str] = (), findings: Sequence[Finding] = ()
    ) -> RunConfig:
        """Set the file, the keys' locations and the warnings of a configuration that is being loaded.

        Args:
            path: the file.
            locate: returns a `Mistake` with a key's location.
            notes: warnings about the conversion.
            findings: other warnings, about keys.
        """
        self._path = path
        self._locate = locate
        about_keys = (str(locate(finding.path, finding.message)) for finding in (*findings, *self._deserve_warnings))
        self._warnings = (*notes, *about_keys)
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_by_kind(cls, data: Any) -> Any:
        """Fill in the environment kind's defaults for other sections."""
        section = data.get("environment") if isinstance(data, dict) else None
        kind = ENVIRONMENT_KINDS.get(str(section.get("kind"))) if isinstance(section, dict) else None
        for name, defaults in kind.defaults.items() if kind is not None else ():
            written = data.get(name)
            if written is None or isinstance(written, dict):
                data = {**data, name: {**defaults, **(written or {})}}
        return data

    @model_validator(mode="before")
    @classmethod
    def _leave_out_shared(cls, data: Any) -> Any:
        """Drop `x-…` keys, which only define anchors used elsewhere in the file."""
        return {key: data[key] for key in data if not key.startswith(SHARED)} if isinstance(data, dict) else data

    def _mistakes(self) -> list[Finding]:
        environment = self.environment
        if environment is not None and environment.kind == UNITY:
            self._run_unity(environment)
        elif environment is not None:
            self._fill(environment=self._filled(environment))
        if self.environment_kind.learning_defaults:
            instances = instances_of(self)
            blocks = {name: with_learning_defaults(block, instances) for name, block in self.behaviors.items()}
            self._fill(behaviors=blocks)
            if self.default_settings is not None:
                self._fill(default_settings=with_learning_defaults(self.default_settings, instances))
        findings = check_sections(self)
        self._deserve_warnings = tuple(finding for finding in findings if finding.warns)
        return findings

    @model_validator(mode="after")
    def _check_run(self, info: ValidationInfo) -> Self:
        if info.context != ONLY_CONVERTED:
            report([*check_run(self)])
        return self

    def _run_unity(self, environment: EnvironmentSettings) -> None:
        """Move `num_envs` from Unity's `environment` to `env_settings`. Drop the section unless it repeats actions."""
        if environment.is_auto("num_envs"):
            self._fill(env_settings=self.env_settings.with_auto("num_envs"))
        elif "num_envs" in environment.model_fields_set:
            self._fill(env_settings=self.env_settings.model_copy(update={"num_envs": environment.num_envs}))
        repeats = environment.action_repeat is not None
        kept = environment.model_copy(update={"num_envs": self.env_settings.num_envs}) if repeats else None
        self._fill(environment=kept)

    def _filled(self, environment: EnvironmentSettings) -> EnvironmentSettings:
        """Fill in values whose defaults come from other sections."""
        update: dict[str, object] = {}
        if "num_envs" not in environment.model_fields_set and not environment.is_auto("num_envs"):
            if self.env_settings.is_auto("num_envs"):
                environment = environment.with_auto("num_envs")
            else:
                update["num_envs"] = self.env_settings.num_envs
        has_one = len(self.met_behaviors) == 1 and "behavior" in self.environment_kind.keys
        if has_one and environment.behavior is None:
            (update["behavior"],) = self.met_behaviors
        return environment.model_copy(update=update)


# Merging of `default_settings` into every behaviour, in the plain data before validation.


def merge_default_settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data to check, with `default_settings` merged into every behaviour.

    Call this only once, because nulls lose their meaning in the merge.

    Each learner of a league becomes a behaviour `<behaviour>.<learner>`, whose keys override those of its behaviour.

    A reward signal in `default_settings` is dropped if a behaviour has null for it. A hyperparameter is dropped if the
    behaviour's trainer does not have it.

    Args:
        plain: the YAML as plain data, which is not modified.
    """
    data = dict(plain)
    default, behaviors = data.get("default_settings"), data.get("behaviors")
    if isinstance(default, Mapping) and isinstance(behaviors, Mapping):
        data["behaviors"] = behaviors = {
            name: _inherit(default, block) if isinstance(block, Mapping) else block for name, block in behaviors.items()
        }
    if isinstance(behaviors, Mapping):
        several = (
            sum(isinstance(block, Mapping) and block.get("league") is not None for block in behaviors.values()) > 1
        )
        league_by_name = {str(name): _league_in(block, several) for name, block in behaviors.items()}
        leagues = {name: league for name, league in league_by_name.items() if league is not None}
        data["behaviors"] = {
            key: learner_block
            for name, block in behaviors.items()
            for key, learner_block in _learners(str(name), block, leagues)
        }
    return data


def _league_in(block: Any, several: bool) -> LeagueSettings | None:
    """Return a behaviour's league, before its learners become separate behaviours; None if there is no league."""
    league = block.get("league") if isinstance(block, Mapping) else None
    if several and isinstance(league, str | Mapping) and not (isinstance(league, Mapping) and league.get("of")):
        league = {"rivals": UNKNOWN, **({"preset": league} if isinstance(league, str) else league)}
    try:
        settings = LeagueSettings.model_validate(league) if league is not None else None
    except ValidationError:
        return None  # the full check reports the mistake
    return None if settings is None or settings.of else settings


def _learners(name: str, block: Any, leagues: Mapping[str, LeagueSettings]) -> Iterator[tuple[str, Any]]:
    """Yield a behaviour or, if it has a league, each of its learners as a separate behaviour."""
    settings = leagues.get(name)
    if settings is None:
        yield name, block
        return
    others = {other: league for other, league in leagues.items() if other != name}
    shared = {key: value for key, value in block.items() if key != "league"}
    preset = block["league"].get("preset") if isinstance(block["league"], Mapping) else block["league"]
    for learner, learner_settings in settings.learners.items():
        below = dict(shared)
        if learner_settings.own.get("trainer_type", below.get("trainer_type")) != below.get("trainer_type"):
            below.pop("hyperparameters", None)  # they belong to a different trainer
        merged = _merge(below, learner_settings.own)
        # Hyperparameters without a trainer are a mistake, which the full check reports.
        trainer = merged.get("trainer_type", None if "hyperparameters" in merged else DEFAULT_TRAINER)
        learning = PRESET_LEARNING.get(str(preset), {}).get(str(trainer))
        if learning is not None:
            merged = _merge({"trainer_type": trainer, **learning}, merged)
        yield f"{name}.{learner}", {**merged, "league": settings.of_learner(name, learner, others)}


def _inherit(default: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    inherited = dict(default)
    hyperparameters = default.get("hyperparameters")
    default_trainer = default.get("trainer_type", DEFAULT_TRAINER)
    trainer = block.get("trainer_type", default_trainer)
    if isinstance(hyperparameters, Mapping) and default_trainer != trainer:
        # A custom trainer's schema is unknown, so another trainer's keys may not fit it.
        model = declared_kind(trainer).hyperparameters
        accepted = {} if model is None else model.model_fields
        inherited["hyperparameters"] = {key: value for key, value in hyperparameters.items() if key in accepted}
        if not inherited["hyperparameters"]:
            del inherited["hyperparameters"]
    merged = _merge(inherited, block)
    signals, inherited_signals = merged.get("reward_signals"), default.get("reward_signals")
    if isinstance(signals, Mapping) and isinstance(inherited_signals, Mapping):
        dropped_signals = [
            name for name in signals if signals[name] is None and inherited_signals.get(name) is not None
        ]
        merged["reward_signals"] = {name: body for name, body in signals.items() if name not in dropped_signals}
    return merged


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _merge(under, value)
        else:
            merged[key] = value
    return merged
