"""Makes the JSON Schema of the YAML for editors: `run-pipeline --schema`.

The schema is never stricter than the reader: `_accepts` asks the reader which kinds of values a key may have. No key is
required, because `default_settings` and options may supply it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headrace.config.behaviors import BehaviorSettings
from headrace.config.brains import LEARNING
from headrace.config.environment import FOR_EVERY_KIND, EnvironmentSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, load_entry
from headrace.config.environment_parameters import Lesson
from headrace.config.fields import AUTO, NUMBER, ChoosingSettings
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.league import LearnerSettings
from headrace.config.legacy.flat_file import DEFAULT, DISTINCTIVE
from headrace.config.opponents import SelfPlaySettings
from headrace.config.run_config import SHARED, RunConfig
from headrace.config.sections import CheckpointSettings
from headrace.config.trainers import TRAINERS
from headrace.config.validation import fields_of, is_model, more_of

Schema = dict[str, Any]

OLD_KEYS: dict[type[BaseModel], tuple[str, ...]] = {
    RunConfig: ("cpu", "multi_gpu", "curriculum", "parameter_randomization"),
    BehaviorSettings: ("trainer", "pretraining", "curriculum", "summary_path", "model_path", "output_path"),
    SelfPlaySettings: ("play_against_current_self_ratio",),
    CheckpointSettings: ("save_freq", "keep_checkpoints", "lesson"),
}
"""Keys of older versions of ML-Agents that `config/legacy` converts, by the section that they may be in."""

_OLD: Schema = {"deprecated": True, "description": "A key of older versions of ML-Agents, which Headrace converts."}
_DEPRECATED = ("Deprecated", "Accepted for compatibility")
_EXAMPLES: dict[str, Any] = {"boolean": True, "number": 7, "string": "x", "array": [], "object": {}}
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
_SCALARS = {bool: "boolean", int: "integer", float: "number"}


def schema() -> Schema:
    """Return the schema as plain data for JSON, in draft 07, which editors know best."""
    writer = _Writer()
    top = writer.reference(RunConfig)
    # The modules under `plugins` may add kinds. ML-Agents' oldest files have behaviours in place of the sections.
    block = {"type": "object", "anyOf": _having(DISTINCTIVE)}
    flat = {"anyOf": [*_having([DEFAULT]), {"not": {"additionalProperties": {"not": block}}}]}
    unknown = [*_having(["plugins"]), flat, {"not": {"anyOf": _having(fields_of(RunConfig))}}]
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Headrace's configuration"}
    return {**draft, "if": {"anyOf": unknown}, "else": top, "definitions": dict(sorted(writer.definitions.items()))}


class _Writer:
    """Writes each model once."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def reference(self, model: type[BaseModel]) -> Schema:
        name = model.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a model may contain itself
            self.definitions[name] = self._model(model)
        return {"$ref": f"#/definitions/{name}"}

    def _model(self, model: type[BaseModel]) -> Schema:
        of_behaviors = self._keys(BehaviorSettings) if model is LearnerSettings else {}
        keys, more = self._keys(model), more_of(model)
        below = {"anyOf": [self.reference(more), {"type": "null"}]} if more else False
        section: Schema = {"type": "object", "properties": {**of_behaviors, **keys}, "additionalProperties": below}
        if model is RunConfig:
            section["patternProperties"] = {f"^{SHARED}": {}}
        if model in (BehaviorSettings, LearnerSettings):
            kinds = {name: kind.hyperparameters for name, kind in TRAINERS.items() if kind.hyperparameters}
            blocks = {name: {"properties": {"hyperparameters": self.reference(kind)}} for name, kind in kinds.items()}
            section["allOf"] = [_tagged("trainer_type", name, block) for name, block in blocks.items()]
        if model is BehaviorSettings:  # older blocks have all their keys side by side
            return {"if": {"type": "object", "required": ["trainer"]}, "else": section}
        if model is Lesson:  # older lessons have one key, their name
            return {"if": {"anyOf": _having(keys)}, "then": section}
        return section

    def _keys(self, model: type[BaseModel]) -> Schema:
        keys = {key: self._key(model, key, field) for key, field in fields_of(model).items()}
        return keys | dict.fromkeys(OLD_KEYS.get(model, ()), _OLD)

    def _key(self, model: type[BaseModel], key: str, field: FieldInfo) -> Schema:
        about: Schema = {"description": field.description or ""}
        if about["description"].startswith(_DEPRECATED):
            about["deprecated"] = True
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if "default_text" in extra:
            about["description"] += f" Default: {extra['default_text']}."
        elif isinstance(default, bool | int | float | str):
            about["default"] = default
        node: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        kinds = [kind for kind, _ in _members(node, ())]
        if Hyperparameters in kinds:
            return {**about, "type": "object"}
        if EnvironmentSettings in kinds:
            choice = {"kind": {"enum": [*ENVIRONMENT_KINDS]}}
            return {**about, "type": ["object", "null"], "properties": choice, "allOf": [*self._environments()]}
        forms = self._forms(node)
        if issubclass(model, ChoosingSettings) and key in model.choosable:
            forms.append({"enum": [AUTO]})
        return {**about, **_any(forms)}

    def _environments(self) -> Iterator[Schema]:
        for name, kind in ENVIRONMENT_KINDS.items():
            fitting = {*FOR_EVERY_KIND, *kind.made_by, *kind.keys}
            fields = {key: field for key, field in EnvironmentSettings.model_fields.items() if key not in fitting}
            others = {key: {"enum": [field.get_default(call_default_factory=True)]} for key, field in fields.items()}
            section = {"allOf": [self.reference(load_entry(kind.settings))], "properties": others}
            yield _tagged("kind", name, section)

    def _forms(self, node: Any) -> list[Schema]:
        """Return a schema for each form that a value may have."""
        if node is Any:
            return [{}]
        forms = [form for kind, metadata in _members(node, ()) for form in self._form(kind, metadata, node)]
        known = [kind for form in forms for kind in (["string"] if "enum" in form else _kinds_in(form))]
        forms += [{"type": kind} for kind, value in _EXAMPLES.items() if kind not in known and _accepts(node, value)]
        if any("string" in _kinds_in(form) for form in forms) and (refused := _errors(node, "x")):
            # Of single words, only those that the messages name; the reader checks references, paths and numbers.
            named = {LEARNING, *re.findall(r"\b[a-zA-Z]\w*", str(refused))}
            words = [word for word in sorted(named) if not _errors(node, word)]
            forms = [form for form in forms if "string" not in _kinds_in(form)] + [{"enum": words}] * bool(words)
            forms.append({"type": "string", "pattern": "[^A-Za-z0-9_]|^[0-9]"})
        items = [form["items"] for form in forms if "items" in form]
        if items and _accepts(node, {}):
            forms += items  # a list with one item may be written as that item
        if not any("string" in _kinds_in(form) for form in forms) and _accepts(node, "7"):
            forms.append({"type": "string", "pattern": f"^({NUMBER})$"})
        return forms

    def _form(self, kind: Any, metadata: tuple[Any, ...], node: Any) -> Iterator[Schema]:
        words = [word for each in metadata for word in getattr(getattr(each, "func", None), "args", [()])[0]]
        limits = [limit for each in metadata for limit in getattr(each, "metadata", [each])]  # those of a `Field`, too
        bounds = {
            bound: getattr(each, name) for each in limits for name, bound in _BOUNDS.items() if hasattr(each, name)
        }
        if words:
            yield {"enum": words}
        elif get_origin(kind) is Literal:
            spelt = [form for word in get_args(kind) for form in dict.fromkeys((word, word.lower(), word.upper()))]
            yield {"enum": [form for form in spelt if _accepts(node, form)]}
        elif is_model(kind):
            yield self.reference(kind)
        elif get_origin(kind) is dict:
            yield {"type": "object", "additionalProperties": _any(self._forms(get_args(kind)[1]))}
        elif get_origin(kind) is tuple:
            yield {"type": "array", "items": _any(self._forms(get_args(kind)[0]))}
        elif kind is str:
            yield {"type": ["string", "number"]}
        else:
            yield {"type": "null"} if kind is NoneType else {"type": _SCALARS[kind], **bounds}


def _members(node: Any, metadata: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield the members of a union, or the type itself, each with its constraints and validators."""
    if get_origin(node) is Annotated:
        yield from _members(get_args(node)[0], (*get_args(node)[1:], *metadata))
    elif get_origin(node) in (Union, UnionType):
        for member in get_args(node):
            yield from _members(member, metadata)
    else:
        yield node, metadata


def _accepts(node: Any, value: Any) -> bool:
    """Return True if the reader accepts this kind of value, even if it refuses this value."""
    kinds = [error["type"] for error in _errors(node, value)]
    return not kinds or not all(kind.endswith(("_type", "literal_error", "union_tag_invalid")) for kind in kinds)


def _errors(node: Any, value: Any) -> list[ErrorDetails]:
    """Return why the reader refuses a value."""
    try:
        TypeAdapter(node).validate_python(value)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _kinds_in(form: Schema) -> list[str]:
    """Return the kinds of values that a form without choices describes."""
    kinds = form.get("type", ["object"] if "$ref" in form else [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return [*kinds, "number"] if "integer" in kinds else kinds


def _any(forms: list[Schema]) -> Schema:
    """Return a schema for any of the forms; for a single one, `allOf`, with which tools name the key inside."""
    return {"allOf" if len(forms) == 1 else "anyOf": forms}


def _having(keys: Any) -> list[Schema]:
    return [{"required": [key]} for key in sorted(keys)]


def _tagged(key: str, word: str, then: Schema) -> Schema:
    return {"if": {"type": "object", "required": [key], "properties": {key: {"const": word}}}, "then": then}


def as_json() -> str:
    """Return the schema as text."""
    return json.dumps(schema(), indent=1)
