"""Lookups in the settings models: the known keys at a path in the YAML."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.config.environment import EnvironmentSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, load_entry
from headrace.config.errors import KeyPath
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.trainers import TRAINERS


def alternatives(annotation: Any) -> list[Any]:
    """Return the types that a value may have, with `Annotated` and unions unpacked and without null.

    The base models of hyperparameters and environments stand for the models of all built-in kinds.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [one for member in get_args(annotation) for one in alternatives(member)]
    if annotation is Hyperparameters:
        return list(dict.fromkeys(kind.hyperparameters for kind in TRAINERS.values() if kind.hyperparameters))
    if annotation is EnvironmentSettings:
        return list(dict.fromkeys(load_entry(kind.settings) for kind in ENVIRONMENT_KINDS.values()))
    return [] if annotation is NoneType else [annotation]


def is_model(annotation: Any) -> bool:
    """Return True if a type is a settings model."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by YAML key."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def more_of(model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model for the values of undeclared keys, or None if undeclared keys are refused."""
    more: type[BaseModel] | None = getattr(model, "more", None)
    return more


def models_at(top: type[BaseModel], path: KeyPath, data: Any) -> list[type[BaseModel]]:
    """Find the models that may describe the value at a path.

    Args:
        top: the top model.
        path: the path of the value.
        data: the plain data, whose tags (such as `sampler_type: uniform`) choose between alternatives.
    """
    here: list[Any] = [top]
    for key in path:
        here = [one for kind in here for one in _below(kind, key) if not is_model(one) or _chosen(one, data)]
        data = value_at(data, (key,))
        here = [one for kind in here for one in _alone(kind, data)]
        here = [kind for kind in here if not is_model(kind) or _fits(kind, data)]
    return [kind for kind in here if is_model(kind)]


def sections_below(model: type[BaseModel], data: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the sections that a model may have: `(key, model)`, or `('key.<name>', model)` for sections in maps.

    Args:
        model: the model.
        data: the model's plain data, whose keys may choose between alternatives.
    """
    for key, field in fields_of(model).items():
        for kind in alternatives(field.annotation):
            name, inside = (
                (f"{key}.<name>", alternatives(get_args(kind)[1])) if get_origin(kind) is dict else (key, [kind])
            )
            yield from ((name, section) for section in inside if is_model(section) and _chosen(section, data))


def _alone(kind: Any, data: Any) -> list[Any]:
    """Return the types for a value; for a map where the schema has a list, return the types of the list's items."""
    return alternatives(get_args(kind)[0]) if get_origin(kind) is tuple and isinstance(data, dict) else [kind]


def _below(kind: Any, key: str | int) -> list[Any]:
    if is_model(kind):
        field = fields_of(kind).get(str(key))
        return list(filter(None, [more_of(kind)])) if field is None else alternatives(field.annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return alternatives(arguments[1])
    if origin is tuple:
        return alternatives(arguments[0])
    return []


def value_at(data: Any, path: KeyPath) -> Any:
    """Return the value at a path in plain data; None if there is none."""
    for key in path:
        try:
            data = data[key]
        except (LookupError, TypeError):
            return None
    return data


def is_inside(path: KeyPath, data: Any) -> bool:
    """Return True if plain data has a value, including null, at a path."""
    for key in path:
        if not (key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))):
            return False
        data = data[key]
    return True


def tags_of(model: type[BaseModel]) -> dict[str, str]:
    """Return a model's tags: the keys that allow only one word, each with its word."""
    kinds = {key: field.annotation for key, field in fields_of(model).items()}
    words = {key: get_args(kind) for key, kind in kinds.items() if get_origin(kind) is Literal}
    return {key: choice[0] for key, choice in words.items() if len(choice) == 1}


def trainers_of(model: type[BaseModel]) -> list[str]:
    """Return the trainer types whose `hyperparameters` are this model; empty for other sections."""
    return [name for name, kind in TRAINERS.items() if kind.hyperparameters is model]


def _chosen(model: type[BaseModel], beside: Any) -> bool:
    """Return False if the `trainer_type` next to a section selects a different model."""
    trainers = trainers_of(model)
    return not trainers or value_at(beside, ("trainer_type",)) in (None, *trainers)


def _fits(model: type[BaseModel], data: Any) -> bool:
    """Return False if the data has the tag of a different model."""
    return not isinstance(data, dict) or all(data.get(key, word) == word for key, word in tags_of(model).items())
