"""Makes the trainer that the YAML names: a built-in trainer, or `module:Class`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from headrace.config.errors import ConfigError, KeyPath, dotted
from headrace.queues.errors import SpecError
from headrace.stages.errors import LoadError, StageError, blaming, describe_error
from headrace.stages.policy.design import check_extra_columns
from headrace.stages.trainer.protocol import Trainer, TrainerContext, defaults_of
from headrace.stages.trainer_lookup import trainer_class, trainer_kind


def make_trainer(context: TrainerContext) -> Trainer:
    """Make a behaviour's trainer.

    Args:
        context: the arguments that the trainer receives.

    Raises:
        LoadError: if the class can't be imported, is not a Trainer, needs columns that no policy provides, does not
            accept the hyperparameters, or raises an exception.
    """
    from headrace.stages.trainer.fast.accelerate import accelerate  # imports torch

    trainer_type, path = context.settings.trainer_type, ("behaviors", context.behavior)
    make, context = find_trainer(trainer_type, context.folder, path), replace(context, accelerate=accelerate)
    try:
        with defaults_of(make):
            return make(context)
    except ValidationError as error:  # a subclass's base class validates the YAML's hyperparameters as its own
        mistakes = [f"{trainer_type} can't be created from the YAML's hyperparameters:"]
        for detail in error.errors(include_url=False):
            key = ".".join([f"{dotted(path)}.hyperparameters", *map(str, detail["loc"])])
            mistakes.append(f"{key}: {detail['msg']}, got {detail['input']!r}")
        with blaming(*path, "hyperparameters"):
            raise LoadError("\n".join(mistakes)) from error
    except (StageError, SpecError, ConfigError):
        raise
    except Exception as error:
        with blaming(*path, "trainer_type"):
            raise LoadError(
                f"{dotted(path)}.trainer_type: creating {trainer_type} raised {describe_error(error)}"
            ) from error


def find_trainer(trainer_type: str, folder: Path | None, path: KeyPath) -> type[Trainer]:
    """Import a trainer's class and check it.

    Args:
        trainer_type: the name of a built-in trainer, or `module:Class`.
        folder: the YAML's folder, whose modules are importable.
        path: the key path of the behaviour's block in the YAML.

    Raises:
        LoadError: if the class can't be imported, is not a Trainer, or needs columns that no policy provides.
    """
    where = f"{dotted(path)}.trainer_type"
    named = trainer_class(trainer_type, folder, path)
    with blaming(*path, "trainer_type"):
        if not (isinstance(named, type) and issubclass(named, Trainer)):
            raise LoadError(f"{where}: {trainer_type}: expected a class derived from headrace.Trainer, got {named!r}")
        check_extra_columns(trainer_kind(trainer_type, folder, path).extra_columns, f"{where}: {trainer_type}")
    return named
