"""Generates docs/configuration.md: `python -m headrace.config.reference > docs/configuration.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.config.run_config import RunConfig
from headrace.config.validation import alternatives, fields_of, is_model, more_of, tags_of, trainers_of

_INTRODUCTION = """# The configuration file

<!-- Written by `python -m headrace.config.reference > docs/configuration.md`; change the models in `config/`. -->

One YAML file describes a run. `behaviors`, `default_settings`, `env_settings`, `engine_settings`,
`environment_parameters`, `checkpoint_settings`, `torch_settings` and `debug` are Unity ML-Agents' own schema
with its defaults, so its files work as they are; keys in these sections that ML-Agents does not have are marked. The
other sections are Headrace's own. Environments of kind `gymnasium`, `pettingzoo`, `open_spiel` and `open_protocol` have
other defaults for learning: see [defaults.md](defaults.md).

How it is read:

- Headrace checks the whole file before anything starts, and reports every mistake at once, as
  `file:line: path.to.key: what is wrong; what was expected`. A check that depends on a wrong key waits until that key
  is fixed. Unknown and duplicate keys are mistakes. `--validate`, and the start of a run, also check that every named
  module and class exists.
- `1e-4`, `5e6`, `1.0e8` and `1_000` are numbers, even in quotes. A whole number can be written as `1e4`.
- Only `true` and `false` are booleans; `on`, `off`, `yes` and `no` are text.
- Anchors (`&name`), aliases (`*name`) and merges (`<<: *name`) work; put shared content under top-level keys of your
  own that begin with `x-`. Names (`run_id`, `initialize_from`, `environment.id`) are kept as written: `007`, `1e3`.
- `--set path.to.key=value` changes one value; the value is read as YAML. To address a list item, use its index:
  `--set pipeline.stages.0.host=main`.
- `default_settings` is merged, key by key, under every behaviour before defaults are filled in.
  Hyperparameters that a behaviour's other `trainer_type` lacks are not inherited.
- Files for older versions of ML-Agents are converted while they are read, with a warning for each old key; see
  [migrating.md](migrating.md).
- A valid value that makes the run do something else than it seems to say, such as a buffer that is never filled,
  causes a warning with its file and line. A key that merely has no effect in a run, such as a key of ML-Agents that
  Headrace does not need, causes none.

## In an editor

An editor with the YAML language server (in VS Code: the extension *YAML*) completes keys, shows their meaning and
underlines unknown keys, wrong types and wrong choices, if the file begins with this comment:

    # yaml-language-server: $schema=headrace.schema.json

`run-pipeline --schema > headrace.schema.json` writes that file; the examples refer to a copy in `config/`. The schema
accepts whatever a run accepts, including ML-Agents' older keys, which it marks as deprecated. It can't see conflicts
between keys or missing keys, which `--validate` reports, and it does not check a file with `plugins`, which may add
kinds.

## Keys

The tables give each key's type, default and range. "required" means that there is no default; null means no
value. A parameter of `environment_parameters` is a number, a sampler, or a map with a `curriculum`.
"""

_TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def reference() -> str:
    """Describe every key of the YAML, as Markdown."""
    return "\n".join([_INTRODUCTION, *_section("", RunConfig, 2, {})])


def _section(path: str, model: type[BaseModel], level: int, described: dict[type[BaseModel], str]) -> Iterator[str]:
    """Describe a model and its submodels, each once; `described` maps each model to the path of its description."""
    described[model] = path
    yield f"{'#' * min(level, 4)} {f'`{path}`{_choice_of(model)}' if path else 'Sections'}"
    yield ""
    yield from _paragraphs(model.__doc__ or "")
    yield "| Key | Type | Default | Range | Meaning |"
    yield "|---|---|---|---|---|"
    for key, field in fields_of(model).items():
        cells = (f"`{key}`", _type_of(field), _default_of(field), _range_of(field), field.description or "")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
    for key, field in fields_of(model).items():
        for where, section in _below(f"{path}.{key}" if path else key, field):
            if section not in described:
                yield from _section(where, section, level + 1, described)
            elif not tags_of(section):
                yield f"The keys of `{where}` are those of `{described[section]}`."
                yield ""
    more = more_of(model)
    if more is not None:
        yield from _section(f"{path}.<name>", more, level + 1, described)


def _paragraphs(docstring: str) -> Iterator[str]:
    for paragraph in docstring.split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""


def _below(path: str, field: FieldInfo) -> Iterator[tuple[str, type[BaseModel]]]:
    for kind in alternatives(field.annotation):
        suffix, inner = _unpacked(kind)
        yield from ((f"{path}{suffix}{_tag_of(model)}", model) for model in inner if is_model(model))


def _choice_of(model: type[BaseModel]) -> str:
    """Return the name of the trainer whose hyperparameters a section contains."""
    trainers = " or ".join(trainers_of(model))
    return f" (`trainer_type: {trainers}`)" if trainers else ""


def _unpacked(kind: Any) -> tuple[str, list[Any]]:
    """Unpack maps and lists; return the text to append to the key, and the inner types."""
    if get_origin(kind) is dict:
        return ".<name>", alternatives(get_args(kind)[1])
    if get_origin(kind) is tuple:
        return "[…]", alternatives(get_args(kind)[0])
    return "", [kind]


def _tag_of(model: type[BaseModel]) -> str:
    """Return the tag that selects this member of a union."""
    tags = ", ".join(f"{key}: {word}" for key, word in tags_of(model).items())
    return f" ({tags})" if tags else ""


def _type_of(field: FieldInfo) -> str:
    kinds = list(dict.fromkeys(_type_name(kind) for kind in alternatives(field.annotation)))
    if type(None) in get_args(field.annotation) and not _is_absent(field):
        kinds.append("null")
    return ", ".join(kinds)


def _type_name(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is tuple:
        inside = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return f"list of {_type_name(alternatives(inside[0])[0])}"
    return "map" if origin is dict or is_model(kind) else _TYPES[kind]


def _default_of(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default_text" in extra:
        return str(extra["default_text"])
    if _is_absent(field):
        return "not there"
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return "its defaults"
    return f"`{json.dumps(default)}`"


def _is_absent(field: FieldInfo) -> bool:
    """Return True if the key may be omitted but not null."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("absent") is True


def _range_of(field: FieldInfo) -> str:
    bounds = []
    for constraint in field.metadata:
        if isinstance(constraint, annotated_types.Gt):
            bounds.append(f"> {constraint.gt}")
        elif isinstance(constraint, annotated_types.Ge):
            bounds.append(f"≥ {constraint.ge}")
        elif isinstance(constraint, annotated_types.Lt):
            bounds.append(f"< {constraint.lt}")
        elif isinstance(constraint, annotated_types.Le):
            bounds.append(f"≤ {constraint.le}")
        elif isinstance(constraint, annotated_types.MinLen):
            bounds.append("not empty")
    return ", ".join(bounds)


if __name__ == "__main__":
    sys.stdout.buffer.write(reference().encode())  # the file in the repository is the same on every system
