"""Conversion of files of flat blocks: `default`, and behaviours' sections, which are merged over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config.errors import suggest
from headrace.config.legacy import flat_keys
from headrace.config.legacy.flat_block import convert_block, lacks
from headrace.config.legacy.inheritance import in_order, own_part
from headrace.config.legacy.old_values import Notes, OldValue, Target
from headrace.config.validation import show

DEFAULT = "default"
_COUNTED_BY_ENVIRONMENT = {"max_steps": 50000, "summary_freq": 1000}


def convert_sections(sections: Mapping[str, OldValue], target: Target, *, renamed: bool) -> None:
    """Convert sections to `default_settings` and `behaviors`.

    Args:
        sections: by name; `default` among them, if there is one.
        target: the top of the new file.
        renamed: True if they stood at the top of the old file, not under `behaviors`.
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
        made = Target(target.notes, ("behaviors", name))
        target.notes.origins[made.path] = section.place
        inherited = dict(default.items()) if default is not None else {}
        reported = lacks(inherited) if shared is not None else ()
        convert_block({**inherited, **dict(body.items())}, section, made, reported)
        block = in_order(made.data)
        target.put_at(("behaviors", name), block if shared is None else own_part(shared, block))


def _warn_of_new_names(behaviors: Mapping[str, OldValue], notes: Notes) -> None:
    names = list(behaviors)
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    message = "stand under 'behaviors' now" if len(names) > 1 else "stands under 'behaviors' now"
    notes.warn(behaviors[names[0]].place, shown, message)


def _convert_default(
    default: OldValue | None, behaviors: Mapping[str, OldValue], target: Target
) -> dict[str, Any] | None:
    """Write and return `default_settings`, if behaviours that are not listed could learn with it."""
    if default is None:
        return None
    if not isinstance(default.value, dict):
        target.notes.wrong(default.place, default.path, f"is {show(default.value)}; expected a map of keys and values")
        return None
    flat = dict(default.items())
    if behaviors and not _is_whole(flat):
        message = (
            "names no trainer, or nothing to imitate, so it can't be 'default_settings': each behaviour has it now"
        )
        target.notes.warn(default.place, DEFAULT, message)
        return None
    target.notes.warn(default.place, DEFAULT, "is 'default_settings' now")
    made = Target(target.notes, ("default_settings",))
    target.notes.origins[made.path] = default.place
    convert_block(flat, default, made)
    _about_counting(flat, target.notes)
    block = in_order(made.data)
    target.data["default_settings"] = block
    return block


def _about_counting(flat: Mapping[str, OldValue], notes: Notes) -> None:
    """Recognise files of versions that counted the environment's steps by the numbers that those shipped."""
    if any(key not in flat or flat[key].value != value for key, value in _COUNTED_BY_ENVIRONMENT.items()):
        return
    old, path = flat["max_steps"], ("default_settings", "max_steps")
    message = (
        "the file seems to be of a version that counted the environment's steps; now each agent's step counts, so "
        "multiply max_steps and summary_freq by the number of agents to train as long"
    )
    notes.warn(old.place, "max_steps", message)
    notes.comments[path] = "counts the steps of all agents now; if it once counted the environment's, multiply it"


def _is_whole(flat: Mapping[str, OldValue]) -> bool:
    trainer = flat["trainer"].value if "trainer" in flat else None
    if flat_keys.OLD_TRAINERS.get(str(trainer)) != "bc":
        return trainer is not None
    sources = [flat[key].value for key in ("demo_path", "brain_to_imitate") if key in flat]
    # The files that old versions came with have a placeholder there: `<Your_Demo_File>.demo`.
    return bool(sources) and not any("<" in str(source) for source in sources)


def _follow(name: str, sections: Mapping[str, OldValue], notes: Notes) -> OldValue | None:
    """Find the section whose keys count: a section may name another one in its place."""
    seen, here = [name], sections[name]
    while isinstance(here.value, str):
        other = here.value
        if other in seen:
            notes.wrong(sections[name].place, sections[name].path, f"names itself, by way of {', '.join(seen)}")
            return None
        if other not in sections:
            hint = suggest(other, list(sections)) or f"; there are {', '.join(sections)}"
            notes.wrong(here.place, here.path, f"names a section '{other}' that there is not{hint}")
            return None
        notes.warn(here.place, str(here.path[-1]), f"has the keys of '{other}', which are written out now")
        seen.append(other)
        here = sections[other]
    if not isinstance(here.value, dict):
        message = f"is {show(here.value)}; expected a map of keys and values, or the name of another section"
        notes.wrong(here.place, here.path, message)
        return None
    return here
