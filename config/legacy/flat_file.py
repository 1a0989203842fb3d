"""Converts files made of flat blocks: `default`, and one section per behaviour, which is merged over `default`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headrace.config.behaviors import BehaviorSettings
from headrace.config.errors import KeyPath, suggest
from headrace.config.legacy.flat_block import OLD_TRAINERS, convert_block, lacks
from headrace.config.legacy.old_values import Notes, OldValue, Target, is_number
from headrace.config.schema_lookup import fields_of, models_at
from headrace.config.validation import show

DEFAULT = "default"
_COUNTED_BY_ENVIRONMENT = {"max_steps": 50000, "summary_freq": 1000}


def convert_sections(sections: Mapping[str, OldValue], target: Target, *, renamed: bool) -> None:
    """Convert sections to `default_settings` and `behaviors`.

    Args:
        sections: the sections by name, including `default` if there is one.
        target: the top level of the new file.
        renamed: True if the sections were at the top level of the old file, not under `behaviors`.
    """
    default = sections.get(DEFAULT)
    behaviors = {name: old for name, old in sections.items() if name != DEFAULT}
    if renamed and behaviors:
        _warn_of_new_names(behaviors, target.notes)
    shared = _convert_default(default, behaviors, target)
    for name, section in behaviors.items():
        body = _follow(name, sections, target.notes)
        if body is None:
            continue
        inner = Target(target.notes, ("behaviors", name))
        target.notes.origins[inner.path] = section.place
        inherited = dict(default.items()) if default is not None else {}
        reported = lacks(inherited) if shared is not None else ()
        convert_block({**inherited, **dict(body.items())}, section, inner, reported)
        block = in_order(inner.data)
        target.put_at(("behaviors", name), block if shared is None else own_part(shared, block))


def _warn_of_new_names(behaviors: Mapping[str, OldValue], notes: Notes) -> None:
    names = list(behaviors)
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    verb = "is" if len(names) == 1 else "are"
    notes.warn(behaviors[names[0]], listed, f"{verb} now under 'behaviors'")


def _convert_default(
    default: OldValue | None, behaviors: Mapping[str, OldValue], target: Target
) -> dict[str, Any] | None:
    """Write and return `default_settings`, if unlisted behaviours could learn with it."""
    if default is None:
        return None
    if not isinstance(default.value, dict):
        target.notes.wrong(default, f"is {show(default.value)}; expected a map of keys and values")
        return None
    flat = dict(default.items())
    if behaviors and not _is_whole(flat):
        message = (
            "lacks a trainer or something to imitate, so it can't become 'default_settings'; its keys are copied into "
            "each behaviour instead"
        )
        target.notes.warn(default, DEFAULT, message)
        return None
    target.notes.warn(default, DEFAULT, "is now 'default_settings'")
    inner = Target(target.notes, ("default_settings",))
    target.notes.origins[inner.path] = default.place
    convert_block(flat, default, inner)
    _about_counting(flat, target.notes)
    block = in_order(inner.data)
    target.data["default_settings"] = block
    return block


def _about_counting(flat: Mapping[str, OldValue], notes: Notes) -> None:
    """Recognise files for versions that counted environment steps, by values from those versions' sample files."""
    if any(key not in flat or flat[key].value != value for key, value in _COUNTED_BY_ENVIRONMENT.items()):
        return
    old, path = flat["max_steps"], ("default_settings", "max_steps")
    message = (
        "the file seems to be from a version that counted environment steps; max_steps now counts every agent's "
        "steps, so multiply max_steps and summary_freq by the number of agents to train as long"
    )
    notes.warn(old, "max_steps", message)
    notes.comments[path] = (
        "now counts the steps of all agents; if it used to count environment steps, multiply it by the number of agents"
    )


def _is_whole(flat: Mapping[str, OldValue]) -> bool:
    trainer = flat["trainer"].value if "trainer" in flat else None
    if OLD_TRAINERS.get(str(trainer)) != "bc":
        return trainer is not None
    sources = [flat[key].value for key in ("demo_path", "brain_to_imitate") if key in flat]
    # The files shipped with old versions contain a placeholder here: `<Your_Demo_File>.demo`.
    return bool(sources) and not any("<" in str(source) for source in sources)


def _follow(name: str, sections: Mapping[str, OldValue], notes: Notes) -> OldValue | None:
    """Return the section whose keys apply, which may be a section that the named one refers to."""
    seen, here = [name], sections[name]
    while isinstance(here.value, str):
        other = here.value
        if other in seen:
            notes.wrong(sections[name], f"refers to itself, through {', '.join(seen)}")
            return None
        if other not in sections:
            hint = suggest(other, list(sections)) or f"; the sections are {', '.join(sections)}"
            notes.wrong(here, f"refers to a section '{other}', which does not exist{hint}")
            return None
        notes.warn(here, str(here.path[-1]), f"uses the keys of '{other}', which are now copied into it")
        seen.append(other)
        here = sections[other]
    if not isinstance(here.value, dict):
        message = f"is {show(here.value)}; expected a map of keys and values, or the name of another section"
        notes.wrong(here, message)
        return None
    return here


# The part of an old section that, merged over `default_settings`, gives the complete section. Old versions merged a
# section over `default` only at the top level: its `reward_signals` replaced those of `default`. Headrace merges maps
# at all levels.

_PACE, _SIGNALS_PACE = "steps_per_update", "reward_signal_steps_per_update"
_SAVE, _TURN, _SAVES_IN_A_TURN = "save_steps", "team_change", 5


def own_part(default: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block without keys that it inherits unchanged from `default_settings`.

    Args:
        default: the `default_settings`.
        whole: the complete block.
    """
    own = _difference(default, whole, (), whole)
    return {"trainer_type": whole["trainer_type"], **own} if "trainer_type" in whole else own


def in_order(block: Mapping[str, Any], path: KeyPath = (), whole: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a block with its keys in the documentation's order."""
    whole = block if whole is None else whole
    known = [key for model in models_at(BehaviorSettings, path, dict(whole)) for key in fields_of(model)]
    ordered = sorted(block.items(), key=lambda item: known.index(item[0]) if item[0] in known else len(known))
    return {key: in_order(value, (*path, key), whole) if isinstance(value, dict) else value for key, value in ordered}


def _difference(
    default: Mapping[str, Any], part: Mapping[str, Any], path: KeyPath, whole: Mapping[str, Any]
) -> dict[str, Any]:
    own = {}
    unsaid = {key: _otherwise((*path, key), part, whole) for key in default if key not in part}
    for key, value in {**part, **unsaid}.items():
        below = default.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            deeper = _difference(below, value, (*path, key), whole)
            if deeper:
                own[key] = deeper
        elif key not in default or value != below:
            own[key] = value
    return own


def _otherwise(path: KeyPath, part: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """Return the value for a key that a block lacks.

    It is the key's default, or null for a section or another trainer's key.
    """
    key = str(path[-1])
    if key == _SIGNALS_PACE and _PACE in part:
        return part[_PACE]
    if key == _TURN and is_number(part.get(_SAVE)):
        return _SAVES_IN_A_TURN * part[_SAVE]
    for model in models_at(BehaviorSettings, path[:-1], dict(whole)):
        field = fields_of(model).get(key)
        if field is not None and not field.is_required():
            default = field.get_default(call_default_factory=True)
            return (
                default.model_dump(mode="json", by_alias=True, exclude_none=True)
                if isinstance(default, BaseModel)
                else default
            )
    return None
