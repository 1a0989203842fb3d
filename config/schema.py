"""Questions to the models about themselves: which keys are known at a path of the YAML."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from config.errors import KeyPath


def alternatives(annotation: Any) -> list[Any]:
    """Take `Annotated` and unions apart: the types that a value may have, null left out."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [one for member in get_args(annotation) for one in alternatives(member)]
    return [] if annotation is NoneType else [annotation]


def is_model(annotation: Any) -> bool:
    """Whether a type is one of the settings models."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Give a model's fields by their keys in the YAML."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def models_at(top: type[BaseModel], path: KeyPath, data: Any) -> list[type[BaseModel]]:
    """Find the models that may describe what stands at a path.

    Args:
        top: the model of the whole.
        path: where to look.
        data: the plain data; its tags (such as `sampler_type: uniform`) choose between alternatives.
    """
    here: list[Any] = [top]
    for key in path:
        here = [one for kind in here for one in _below(kind, key)]
        data = _get(data, key)
        here = [kind for kind in here if not is_model(kind) or _fits(kind, data)]
    return [kind for kind in here if is_model(kind)]


def _below(kind: Any, key: str | int) -> list[Any]:
    if is_model(kind):
        field = fields_of(kind).get(str(key))
        return [] if field is None else alternatives(field.annotation)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return alternatives(arguments[1])
    if origin is tuple:
        return alternatives(arguments[0])
    return []


def _get(data: Any, key: str | int) -> Any:
    try:
        return data[key]
    except (LookupError, TypeError):
        return None


def tags_of(model: type[BaseModel]) -> dict[str, str]:
    """Give the keys of a model that can hold one word only, which tells it from others, and that word."""
    words = {key: get_args(field.annotation) for key, field in fields_of(model).items() if _is_literal(field)}
    return {key: choice[0] for key, choice in words.items() if len(choice) == 1}


def _is_literal(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal


def _fits(model: type[BaseModel], data: Any) -> bool:
    """Whether the data does not carry another model's tag."""
    return not isinstance(data, dict) or all(data.get(key, word) == word for key, word in tags_of(model).items())
