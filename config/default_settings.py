"""Merging of `default_settings` under every behaviour, in the plain data, before it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.config.errors import Finding
from headrace.config.trainers import DEFAULT_TRAINER, declared_kind


def merge_default_settings(plain: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Merge `default_settings` under every behaviour; to be done once, as null has a meaning here that is lost.

    A reward signal of `default_settings` is dropped where a behaviour has null for it. A hyperparameter that the
    behaviour's trainer lacks is dropped with a warning, and without one where the behaviour has null for it.

    Args:
        plain: the YAML as plain data; it is not changed.

    Returns:
        The data to check, and warnings about what could not be inherited.
    """
    data = dict(plain)
    warnings: list[Finding] = []
    default, behaviors = data.get("default_settings"), data.get("behaviors")
    if isinstance(default, Mapping) and isinstance(behaviors, Mapping):
        data["behaviors"] = {
            name: _inherit(str(name), default, own, warnings) if isinstance(own, Mapping) else own
            for name, own in behaviors.items()
        }
    return data, tuple(warnings)


def _inherit(name: str, default: Mapping[str, Any], own: Mapping[str, Any], warnings: list[Finding]) -> dict[str, Any]:
    inherited = dict(default)
    hyperparameters = default.get("hyperparameters")
    theirs = default.get("trainer_type", DEFAULT_TRAINER)
    ours = own.get("trainer_type", theirs)
    if isinstance(hyperparameters, Mapping) and theirs != ours:
        # The schema of a trainer of the user's own is unknown: nothing of another trainer's is sure to fit.
        model = declared_kind(ours).hyperparameters
        known = {} if model is None else model.model_fields
        foreign = [key for key in hyperparameters if key not in known]
        own, denied = _without_denied(own, foreign)
        dropped = [key for key in foreign if key not in denied]
        inherited["hyperparameters"] = {key: value for key, value in hyperparameters.items() if key in known}
        if not inherited["hyperparameters"]:
            del inherited["hyperparameters"]
        if dropped:
            message = (
                f"its trainer_type '{ours}' does not take over these hyperparameters of default_settings "
                f"(trainer_type '{theirs}'): {', '.join(dropped)}"
            )
            warnings.append(Finding(("behaviors", name), message))
    merged = _merge(inherited, own)
    signals, inherited_signals = merged.get("reward_signals"), default.get("reward_signals")
    if isinstance(signals, Mapping) and isinstance(inherited_signals, Mapping):
        dropped_signals = [
            name for name in signals if signals[name] is None and inherited_signals.get(name) is not None
        ]
        merged["reward_signals"] = {name: body for name, body in signals.items() if name not in dropped_signals}
    return merged


def _without_denied(own: Mapping[str, Any], foreign: Sequence[str]) -> tuple[Mapping[str, Any], list[str]]:
    """Split off another trainer's hyperparameters that are null in a behaviour; return the rest, and their names."""
    hyperparameters = own.get("hyperparameters")
    if not isinstance(hyperparameters, Mapping):
        return own, []
    denied = [key for key in foreign if key in hyperparameters and hyperparameters[key] is None]
    left = {key: value for key, value in hyperparameters.items() if key not in denied}
    return ({**own, "hyperparameters": left} if denied else own), denied


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _merge(under, value)
        else:
            merged[key] = value
    return merged
