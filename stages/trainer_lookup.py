"""Finds trainers by their `trainer_type`, both built-in ones (`headrace.config.trainers`) and `module:Class`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.config import BehaviorSettings
from headrace.config.errors import KeyPath, dotted
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.trainers import TRAINERS, TrainerKind
from headrace.stages.errors import LoadError, StageError, blaming, describe_error
from headrace.stages.loading import load_attribute


def trainer_class(trainer_type: str, folder: Path | None, path: KeyPath) -> Any:
    """Import the object that a `trainer_type` refers to; the trainer's constructor checks whether it is a trainer.

    Args:
        trainer_type: a key of `TRAINERS`, or `module:Class`.
        folder: the YAML's folder, which contains the user's modules.
        path: the path of the behaviour's block in the YAML, for messages.

    Raises:
        LoadError: if the object can't be imported.
    """
    built_in = TRAINERS.get(trainer_type)
    where = f"{dotted(path)}.trainer_type"
    with blaming(*path, "trainer_type"):
        if built_in is not None:
            return load_attribute(built_in.implementation, None, where)
        return load_attribute(trainer_type, folder, where)


def trainer_kind(trainer_type: str, folder: Path | None, path: KeyPath) -> TrainerKind:
    """Return a trainer's static properties: the table's entry, or the attributes of the user's class.

    The arguments and errors are those of `trainer_class`.
    """
    built_in = TRAINERS.get(trainer_type)
    if built_in is not None:
        return built_in
    trainer = trainer_class(trainer_type, folder, path)
    return TrainerKind(
        trainer_type,
        None,
        squashed=bool(getattr(trainer, "squashed", False)),
        off_policy=bool(getattr(trainer, "off_policy", False)),
        imitates=bool(getattr(trainer, "imitates", False)),
        extra_columns=tuple(getattr(trainer, "extra_columns", ())),
    )


def squashes(settings: BehaviorSettings, folder: Path | None, path: KeyPath) -> bool:
    """Return True if a behaviour's policies draw continuous actions as the tanh of a Gaussian.

    The arguments and errors are those of `trainer_kind`.
    """
    gsde = settings.network_settings.gsde
    return trainer_kind(settings.trainer_type, folder, path).squashed or (gsde is not None and gsde.squash_output)


def asked_columns(settings: BehaviorSettings, folder: Path | None, path: KeyPath) -> tuple[str, ...]:
    """Return the names of the decision columns that a behaviour's trainer needs, always or with these settings.

    A user's class receives its hyperparameters as a plain mapping. If it derives from a trainer whose hyperparameters
    have a model, such as `impala`, that model parses the keys of the base class.

    The arguments and errors are those of `trainer_kind`.
    """
    always, hyperparameters = trainer_kind(settings.trainer_type, folder, path).extra_columns, settings.hyperparameters
    if not isinstance(hyperparameters, Hyperparameters):
        model = getattr(trainer_class(settings.trainer_type, folder, path), "hyperparameters", None)
        if not (isinstance(model, type) and issubclass(model, Hyperparameters)):
            return always
        try:
            hyperparameters = model.model_validate(
                {key: value for key, value in hyperparameters.items() if key in model.model_fields}
            )
        except ValidationError:  # the trainer's constructor reports the mistake
            return always
    return tuple(dict.fromkeys((*always, *hyperparameters.extra_columns())))


def exploration_of(settings: BehaviorSettings, folder: Path | None, path: KeyPath) -> Any:
    """Return the `Exploration` that a behaviour's trainer class declares; None if policies draw from their outputs.

    The arguments and errors are those of `trainer_kind`. A LoadError is also raised if the class can't make it.
    """
    kind = TRAINERS.get(settings.trainer_type)
    if kind is not None and kind.implementation.startswith("headrace."):  # none of these declares one
        return None
    trainer = trainer_class(settings.trainer_type, folder, path)
    where = f"{dotted(path)}.trainer_type: {settings.trainer_type}.exploration"
    with blaming(*path, "trainer_type"):
        try:
            exploration = trainer.exploration(settings) if hasattr(trainer, "exploration") else None
        except StageError as error:
            raise LoadError(f"{where}: {error}") from error
        except Exception as error:
            raise LoadError(f"{where} raised {describe_error(error)}") from error
        if exploration is None or callable(getattr(exploration, "explored", None)):
            return exploration
        raise LoadError(f"{where} must return None or an object with the method `explored`, got {exploration!r}")
