"""Checks plain data against a model, and reports all mistakes together, as readable sentences.

Pydantic skips the checks between keys while any key of the same model, or of a submodel, is wrong. This module
therefore removes wrong keys and checks the rest again until it finds nothing new. Checks that depend on a removed key
must wait until the user fixes that key.

The second half of this module looks up the known keys at a path in the YAML, in the settings models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headrace.config.environment import EnvironmentSettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, load_entry
from headrace.config.errors import ConfigError, Finding, FindingsError, KeyPath, Locate, dotted, suggest
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.trainers import TRAINERS

Model = TypeVar("Model", bound=BaseModel)

ONLY_CONVERTED = "only converted"
"""Validation context for a file that is converted, not run: mistakes that would only prevent a run are not reported."""

_TAGS = ("kind", "sampler_type", "trainer_type", "use")
"""Keys that determine the meaning of the map they are in: if one of them is wrong, the map's other keys can't be
checked."""


def check(
    model: type[Model],
    plain: dict[str, Any],
    locate: Locate,
    context: str | None = None,
    merge: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Model:
    """Build the model from plain data.

    A misspelt key is reported, and the rest is checked as if the key were spelt as suggested.

    Args:
        model: the model to build.
        plain: the plain data, which is not modified.
        locate: returns a `Mistake` for a path in the data and a message.
        context: `ONLY_CONVERTED`, or None for data to run.
        merge: merges the data's defaults into it, before the check.

    Raises:
        ConfigError: if anything is wrong; it lists all mistakes.
    """
    all_findings: list[Finding] = []
    removed: list[KeyPath] = []
    spelt: dict[KeyPath, KeyPath] = {}
    """Per corrected path: the path as it is written."""
    data = merge(plain)
    while True:
        try:
            valid = model.model_validate(data, context=context)
        except ValidationError as error:
            findings = explain(model, error, data)
        else:
            break
        misspelt = [
            one for one in findings if one.meant and is_inside(one.path, data) and not is_inside(one.intended, data)
        ]
        for finding in misspelt:
            spelt[finding.intended] = finding.path
            if len(finding.path) == 1:
                plain = _renamed(plain, finding.path, finding.meant)
                data = merge(plain)
            else:
                data = _renamed(data, finding.path, finding.meant)
        if misspelt:  # the other findings may be consequences
            all_findings += misspelt
            continue
        all_findings += [one for one in findings if one.path not in spelt and not _follows(one, removed)]
        culprits = {_culprit(finding.path, data) for finding in findings} - {()}
        if not culprits or len(all_findings) >= MOST_FINDINGS:
            break
        for path in culprits:
            data = _without(data, path)
        removed += culprits
    if all_findings:
        reported = [finding for finding in all_findings if not _is_echo(finding, all_findings)]
        mistakes = [locate(_as_written(finding.path, spelt), finding.message) for finding in reported]
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return valid


def _renamed(data: Any, path: KeyPath, name: str) -> Any:
    """Return the data with a key renamed; of two keys that were meant to be the same, the first stays."""
    key, *below = path
    if isinstance(data, list):
        return [_renamed(item, tuple(below), name) if index == key else item for index, item in enumerate(data)]
    if below:
        return {**data, key: _renamed(data[key], tuple(below), name)}
    return {**{other: value for other, value in data.items() if other != key}, name: data.get(name, data[key])}


def _as_written(path: KeyPath, spelt: dict[KeyPath, KeyPath]) -> KeyPath:
    for corrected, written in reversed(spelt.items()):
        if path[: len(corrected)] == corrected:
            path = (*written, *path[len(corrected) :])
    return path


def _follows(finding: Finding, removed: list[KeyPath]) -> bool:
    """Return True if a finding depends on a removed key, for example because it reports the key as missing."""
    return any(finding.path[: len(path)] == path for path in removed) or any(
        other[: len(path)] == path or path[: len(other)] == other for other in finding.involves for path in removed
    )


def _is_echo(finding: Finding, findings: list[Finding]) -> bool:
    """Return True if a behaviour only repeats a mistake of the `default_settings` that it inherits."""
    origin = ("default_settings", *finding.path[2:])
    return finding.path[:1] == ("behaviors",) and any(
        other.path == origin and other.message == finding.message for other in findings
    )


def _culprit(path: KeyPath, data: Any) -> KeyPath:
    """Return the path to remove: the key, or the enclosing map or list if that is meaningless without the key."""
    # A list without one of its items is a different list; a map inside it may omit one of its keys.
    while path and (path[-1] in _TAGS or isinstance(path[-1], int) or not is_inside(path, data)):
        path = path[:-1]
    return path


def _without(data: Any, path: KeyPath) -> Any:
    if not is_inside(path, data):
        return data  # an enclosing map was already removed
    key, *below = path
    if isinstance(data, list):
        return [_without(item, tuple(below)) if index == key else item for index, item in enumerate(data)]
    rest = {name: value for name, value in data.items() if name != key}
    return {**rest, key: _without(data[key], tuple(below))} if below else rest


# Translation of pydantic's errors to sentences: the key, its mistake, and what was expected.

MOST_FINDINGS = 100
"""Maximum number of mistakes reported at once. Users start with the first mistakes, so a longer list would not help."""

_MOVED = {
    "brain_to_imitate": "'hyperparameters.teacher', with 'trainer_type: bc'",
    "num_update": "'hyperparameters.steps_per_update' (train_interval / num_update)",
    "parameter_randomization": "'environment_parameters'",
    "play_against_current_self_ratio": "'play_against_latest_model_ratio'",
    "pretraining": "'behavioral_cloning'",
    "reward_signal_num_update": "'hyperparameters.reward_signal_steps_per_update' (train_interval / "
    "reward_signal_num_update)",
    "train_interval": "'hyperparameters.steps_per_update' (train_interval / num_update)",
    "trainer": "'trainer_type'",
    "use_recurrent": "'network_settings.memory'; give it keys, or leave it out for false",
}
"""Maps keys in ML-Agents' older formats to the keys' current paths."""

_OF_PEERS = {
    "n_steps": "'hyperparameters.buffer_size', of all environments together (and 'time_horizon')",
    "n_envs": "'environment.num_envs'",
    "n_epochs": "'hyperparameters.num_epoch'",
    "clip_range": "'hyperparameters.epsilon'",
    "ent_coef": "'hyperparameters.beta' (sac: 'init_entcoef')",
    "gae_lambda": "'hyperparameters.lambd'",
    "lr": "'hyperparameters.learning_rate'",
    "net_arch": "'network_settings', with 'hidden_units' and 'num_layers'",
    "policy_kwargs": "'network_settings'",
    "total_timesteps": "'max_steps' of the behaviour",
    "learning_starts": "'hyperparameters.buffer_init_steps'",
}
"""Maps Stable-Baselines3's key names to their Headrace equivalents."""

_MISSPELT = "unknown key; did you mean"

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a map of keys and values",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a map of keys and values",
    "string_type": "text",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_AS_BOOL = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def explain(top: type[BaseModel], error: ValidationError, data: Any) -> list[Finding]:
    """Describe pydantic's findings, key by key.

    Args:
        top: the model that was validated.
        error: pydantic's error.
        data: the validated plain data, which serves to distinguish keys from union tags in pydantic's paths.
    """
    findings: list[Finding] = []
    for item in islice(error.errors(include_url=False), MOST_FINDINGS):
        if item["type"] == "too_short" and item["input"]:
            continue  # pydantic counts only accepted items; refused items have their own reports
        path = _real_path(item["loc"], data, missing=item["type"] == "missing")
        for finding in _one(top, path, item, data):
            if finding not in findings:  # every member of a union reports the same mistake
                findings.append(finding)
    return findings


def show(value: object) -> str:
    """Return a value in YAML's form, shortened if it is long."""
    if value is None:
        return "an empty value (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 1000:
        return "a number of more than 300 digits"  # Python refuses to format thousands of digits
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _real_path(loc: tuple[int | str, ...], data: Any, *, missing: bool) -> KeyPath:
    path: list[int | str] = []
    for position, part in enumerate(loc):
        inside = part in data if isinstance(data, dict) else isinstance(data, list | tuple) and isinstance(part, int)
        if inside:
            path.append(part)
            data = data[part]
        elif missing and position == len(loc) - 1:
            path.append(part)
        # Any other part is the tag of a union's member, which is not in the YAML.
    return tuple(path)


def _one(top: type[BaseModel], path: KeyPath, item: Any, data: Any) -> list[Finding]:
    kind, context, value = item["type"], item.get("ctx", {}), item["input"]
    cause = context.get("error")
    if isinstance(cause, FindingsError):
        return [finding.below(path) for finding in cause.findings]
    if kind == "missing":
        return [Finding(path, _missing(top, path, data))]
    if kind == "extra_forbidden":
        message = _unknown(top, path, data)
        return [Finding(path, message, meant=_quoted(message)[0] if message.startswith(_MISSPELT) else "")]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return [_tag(top, path, item, data)]
    return [Finding(path, _value(kind, context, value, item["msg"]))]


def _missing(top: type[BaseModel], path: KeyPath, data: Any) -> str:
    key = str(path[-1])
    for model in models_at(top, path[:-1], data):
        field = fields_of(model).get(key)
        if field is not None and field.description:
            return f"is required but missing: {field.description}"
    return "is required but missing"


def _unknown(top: type[BaseModel], path: KeyPath, data: Any) -> str:
    """Explain an unknown key: an older key, another trainer's key, or a misplaced or misspelt key."""
    key, models = str(path[-1]), models_at(top, path[:-1], data)
    accepted = sorted({name for model in models for name in fields_of(model)})
    if key.partition(":")[0] in accepted:
        return "unknown key; write a space after ':'"
    if key in _MOVED:
        return f"unknown key, from an older format of ML-Agents; it is now {_MOVED[key]}"
    if key in _OF_PEERS and key not in accepted:
        return f"unknown key; Stable-Baselines3's '{key}' is {_OF_PEERS[key]} here"
    others = _other_trainers(top, path, data)
    if others:
        *words, last = [f"'{word}'" for word in others]
        listed = f"{', '.join(words)} and {last}" if words else last
        return f"unknown key for this trainer_type; it is valid only for {listed}"
    section = _place_below(models, key, value_at(data, path[:-1]))
    if section is not None:
        return f"unknown key here; it belongs under '{section}'"
    section, hint = _place_above(top, path, data), suggest(key, accepted)
    around = f"under '{dotted(path[:-2])}'"  # the enclosing section has exactly this key
    if hint and section != around:
        return f"unknown key{hint}"  # begins with _MISSPELT
    if section:
        return f"unknown key here; it belongs {section}"
    custom = ", or your own name with 'use: module:Class'" if any(map(more_of, models)) else ""
    return f"unknown key; expected one of {', '.join(accepted)}{custom}"


def _other_trainers(top: type[BaseModel], path: KeyPath, data: Any) -> list[str]:
    """Return the trainer types that would accept a key of `hyperparameters`."""
    return [
        trainer
        for parent in models_at(top, path[:-2], data)
        for name, model in sections_below(parent, None)
        if path[-2:-1] == (name,) and path[-1] in fields_of(model)
        for trainer in trainers_of(model)
    ]


def _place_below(models: list[type[BaseModel]], key: str, data: Any) -> str | None:
    """Find the nearest section below a map in which a key is valid; return its dotted path from the map."""
    nearest = [("", model, data) for model in models]
    while nearest:
        below = [
            (f"{path}.{name}".lstrip("."), section, value_at(inside, (name,)))
            for path, model, inside in nearest
            for name, section in sections_below(model, inside)
        ]
        for path, section, _ in below:
            if key in fields_of(section):
                return path
        nearest = below
    return None


def _place_above(top: type[BaseModel], path: KeyPath, data: Any) -> str | None:
    """Find the nearest section elsewhere in the file in which a key is valid; return `under '…'`."""
    for length in range(len(path) - 2, -1, -1):
        around, models = path[:length], models_at(top, path[:length], data)
        if any(path[-1] in fields_of(model) for model in models):
            return f"under '{dotted(around)}'" if around else "at the top level, next to 'behaviors'"
        section = _place_below(models, str(path[-1]), value_at(data, around))
        if section is not None:
            return f"under '{dotted((*around, section))}'"
    return None


def _tag(top: type[BaseModel], path: KeyPath, item: Any, data: Any) -> Finding:
    """Explain an unknown or missing key that selects a union's member."""
    key = item["ctx"]["discriminator"].strip("'")
    if "tag" in item["ctx"]:
        message = _not_known(item["ctx"]["tag"], _quoted(item["ctx"]["expected_tags"]))
    else:
        words = [tags_of(model)[key] for model in models_at(top, path, data) if key in tags_of(model)]
        message = f"is required but missing; expected {_one_of(words)}"
    return Finding((*path, key), message, (path,))


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


def _not_known(value: object, words: list[str]) -> str:
    """Describe an unknown word."""
    return f"{show(value)} is not valid; expected {_one_of(words)}{suggest(str(value), words)}"


def _value(kind: str, context: Mapping[str, Any], value: Any, message: str) -> str:
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _not_known(value, _quoted(context["expected"]))
    if kind in _BOUNDS:
        name, words_for_bound = _BOUNDS[kind]
        return f"{show(value)} is out of range; expected a number {words_for_bound} {context[name]:g}"
    if kind in ("too_short", "string_too_short"):
        return "is empty; expected at least one"
    if kind in _EXPECTED:
        return f"{show(value)} is not valid; expected {_EXPECTED[kind]}{_mend(kind, value)}"
    return f"{show(value)} is not valid: {message}"


def _mend(kind: str, value: Any) -> str:
    if kind == "bool_type" and isinstance(value, str):
        word = _AS_BOOL.get(value.lower(), value.lower())
        return f"; write {word}, without quotes" if word in ("true", "false") else ""
    if kind == "string_type" and isinstance(value, int | float):
        return "; put it in quotes"
    if kind in ("model_type", "dict_type") and value is None:
        return "; give it keys, or leave it out"
    if kind in ("model_type", "dict_type") and isinstance(value, str) and ":" in value:
        return "; write a space after ':'"
    return ""


def _one_of(words: list[str]) -> str:
    quoted = [f"'{word}'" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


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
