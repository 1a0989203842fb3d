"""Converts files made of flat blocks: `default`, and one section per behaviour, which is merged over `default`.

A flat block is `{trainer: ppo, batch_size: 64, hidden_units: 128, …}`. The tables state, for each key, the trainers
that used it, its current place, and its value in the files that came with old ML-Agents versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headrace.config.behaviors import BehaviorSettings
from headrace.config.errors import KeyPath, suggest
from headrace.config.legacy.old_values import Notes, OldValue, Target, above_zero, integral, is_number, truth
from headrace.config.legacy.outdated_keys import GONE, PACES, convert_cloning, convert_self_play, convert_signals, pace
from headrace.config.validation import fields_of, models_at, show

DEFAULT = "default"
_COUNTED_BY_ENVIRONMENT = {"max_steps": 50000, "summary_freq": 1000}


def convert_sections(sections: Mapping[str, OldValue], target: Target) -> None:
    """Convert sections to `default_settings` and `behaviors`.

    Args:
        sections: the sections by name, including `default` if there is one.
        target: the top level of the new file.
    """
    default = sections.get(DEFAULT)
    behaviors = {name: old for name, old in sections.items() if name != DEFAULT}
    if behaviors:
        names = list(behaviors)
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        verb = "is" if len(names) == 1 else "are"
        target.notes.warn(behaviors[names[0]], listed, f"{verb} now under 'behaviors'")
    shared = _convert_default(default, behaviors, target)
    for name, section in behaviors.items():
        body = _follow(name, sections, target.notes)
        if body is None:
            continue
        inner = Target(target.notes, ("behaviors", name))
        target.notes.origins[inner.path] = section.place
        inherited = dict(default.items()) if default is not None else {}
        convert_block({**inherited, **dict(body.items())}, section, inner)
        block = in_order(inner.data)
        target.put_at(("behaviors", name), block if shared is None else own_part(shared, block))


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
    changed = _difference(default, whole, (), whole)
    return {"trainer_type": whole["trainer_type"], **changed} if "trainer_type" in whole else changed


def in_order(block: Mapping[str, Any], path: KeyPath = (), whole: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a block with its keys in the documentation's order."""
    whole = block if whole is None else whole
    documented = [key for model in models_at(BehaviorSettings, path, dict(whole)) for key in fields_of(model)]
    ordered = sorted(
        block.items(), key=lambda item: documented.index(item[0]) if item[0] in documented else len(documented)
    )
    return {key: in_order(value, (*path, key), whole) if isinstance(value, dict) else value for key, value in ordered}


def _difference(
    default: Mapping[str, Any], part: Mapping[str, Any], path: KeyPath, whole: Mapping[str, Any]
) -> dict[str, Any]:
    changed = {}
    missing = [key for key in default if key not in part]
    if path == (_HYPER,):  # a block does not inherit the keys of another trainer
        fields = [fields_of(model) for model in models_at(BehaviorSettings, path, dict(whole))]
        missing = [key for key in missing if any(key in names for names in fields)]
    unsaid = {key: _otherwise((*path, key), part, whole) for key in missing}
    for key, value in {**part, **unsaid}.items():
        below = default.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            deeper = _difference(below, value, (*path, key), whole)
            if deeper:
                changed[key] = deeper
        elif key not in default or value != below:
            changed[key] = value
    return changed


def _otherwise(path: KeyPath, part: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """Return the value for a key that a block lacks.

    It is the key's default, or null for a section.
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


_NETWORK = ("normalize", "hidden_units", "num_layers", "vis_encode_type")
_SHARED = ("batch_size", "learning_rate", "learning_rate_schedule")
_PPO = ("buffer_size", "beta", "beta_schedule", "epsilon", "epsilon_schedule", "lambd", "num_epoch")
_SAC = ("buffer_size", "buffer_init_steps", "tau", "init_entcoef", "save_replay_buffer", "steps_per_update")

_TO_HYPERPARAMETERS = {
    "ppo": (*_SHARED, *_PPO),
    "poca": (*_SHARED, *_PPO),
    "sac": (*_SHARED, *_SAC),
    "bc": ("batch_size", "learning_rate"),
}

MOVED = {
    trainer: {**{key: f"hyperparameters.{key}" for key in keys}, **{key: f"network_settings.{key}" for key in _NETWORK}}
    for trainer, keys in _TO_HYPERPARAMETERS.items()
}
"""For each trainer, the current paths of the keys whose meaning has not changed."""

STAYED = ("max_steps", "summary_freq", "threaded", "init_path", "keep_checkpoints", "checkpoint_interval")
"""Keys that have not moved within a block."""

FRACTIONS = ("learning_rate", "beta", "epsilon", "lambd", "tau", "init_entcoef", "steps_per_update")
"""Keys whose values need not be integers."""

_MEMORY = ("use_recurrent", "sequence_length", "memory_size")
_REWARDS = ("reward_signals", "gamma", "use_curiosity", "curiosity_strength", "curiosity_enc_size")
_CLONING = ("pretraining", "behavioral_cloning")
_ALL = ("trainer", "curriculum", *_MEMORY)
UPDATES = ("num_update", "updates_per_train")
"""Names of the key for SAC's updates per step: the released name, then an earlier one."""

CONVERTED = {
    "ppo": (*_ALL, "time_horizon", "self_play", *_REWARDS, *_CLONING),
    "poca": (*_ALL, "time_horizon", "self_play", *_REWARDS, *_CLONING),
    "sac": (*_ALL, "time_horizon", "self_play", *_REWARDS, *_CLONING, "train_interval", *UPDATES),
    "bc": (*_ALL, "demo_path", "brain_to_imitate", "batches_per_epoch"),
}
"""Keys that need more than a new path, listed by trainer."""

OLD_TRAINERS = {
    "ppo": "ppo",
    "poca": "poca",
    "sac": "sac",
    "offline_bc": "bc",
    "online_bc": "bc",
    "imitation": "bc",
    "bc": "bc",
}
"""Maps old trainer names to current ones."""

_SEQUENCE_LENGTH, _MEMORY_SIZE, _BATCH_SIZE, _BATCHES_PER_EPOCH = 64, 128, 256, 10
"""Defaults of keys from which others are computed."""


def known(trainer: str) -> set[str]:
    """Return the keys that a block for this trainer may have."""
    return {*MOVED[trainer], *STAYED, *CONVERTED[trainer]}


ALL = frozenset(key for trainer in MOVED for key in known(trainer)) | frozenset(GONE)
"""All keys of flat blocks."""

DISTINCTIVE = ALL - {*STAYED, *("time_horizon", "reward_signals", "self_play", "behavioral_cloning", "framework")}
"""Keys that distinguish a flat block from a current one."""


Flat = Mapping[str, OldValue]
"""A flat block merged over `default`: its old values, keyed by name."""

_NEW_WORDS: dict[Any, str] = {"default": "simple"}
"""Maps old names of image encoders to current ones."""
_CURIOSITY = ("use_curiosity", "curiosity_strength", "curiosity_enc_size")


def convert_block(flat: Flat, section: OldValue, target: Target) -> None:
    """Convert a block.

    Args:
        flat: the block's keys and values.
        section: the block's section, named in reports of missing keys.
        target: receives the converted block.
    """
    trainer = _trainer(flat, section, target)
    if trainer is None:
        return
    _about_other_keys(flat, trainer, target.notes)
    if trainer == "bc":
        convert_bc(flat, section, target)
    else:
        _convert_paces(flat, trainer, section, target)
    for key, place in MOVED[trainer].items():
        if key in flat:
            old, value = flat[key].value, _value(key, flat[key].value)
            renamed = isinstance(old, str) and value == _NEW_WORDS.get(old)
            word = f", and its value '{old}' is now '{value}'" if renamed else ""
            target.notes.warn(flat[key], key, f"is now '{place}'{word}")
            target.put(place, value, flat[key])
    _convert_memory(flat, target)
    if trainer != "bc":
        _convert_rewards(flat, section, target)
        _convert_more(flat, trainer, target)
    for key in STAYED:
        if key in flat and not (trainer == "bc" and key in ("max_steps", "summary_freq")):
            target.put(key, _value(key, flat[key].value), flat[key])


def _value(key: str, value: Any) -> Any:
    if key == "vis_encode_type":
        return _NEW_WORDS.get(value, value) if isinstance(value, str) else value
    return value if key in FRACTIONS else truth(integral(value))


def _trainer(flat: Flat, section: OldValue, target: Target) -> str | None:
    """Write and return the trainer's current name; return None if the trainer is missing or unknown."""
    old = flat.get("trainer")
    if old is None:
        name = section.path[-1] if section.path else "it"
        message = (
            f"names no trainer, and neither does 'default'; add a line such as 'trainer: ppo' to '{name}' (a file "
            "without 'behaviors' is read as a file for ML-Agents before 0.16)"
        )
        target.notes.wrong(section, message)
        return None
    trainer = OLD_TRAINERS.get(str(old.value))
    if trainer is None:
        words = list(OLD_TRAINERS)
        message = f"{old.value!r} is not a trainer; expected one of {', '.join(words)}{suggest(str(old.value), words)}"
        target.notes.wrong(old, message)
        return None
    target.notes.warn(old, "trainer", "is now 'trainer_type'")
    target.put("trainer_type", trainer, old)
    return trainer


def _about_other_keys(flat: Flat, trainer: str, notes: Notes) -> None:
    for key, old in flat.items():
        if key in known(trainer):
            continue
        if key in GONE:
            notes.warn(old, key, GONE[key])
        elif key not in ALL:  # sections shared their keys, so the keys of other trainers had no effect
            hint = suggest(key, sorted(ALL)) or "; leave it out"
            notes.wrong(old, f"unknown key, even in old versions of ML-Agents{hint}")


def _convert_paces(flat: Flat, trainer: str, section: OldValue, target: Target) -> None:
    """Convert schedules, and SAC's number of updates."""
    if "learning_rate_schedule" not in flat:
        comment = ""
        if trainer == "sac":
            comment = "as in the old sac; the current default is constant"
            message = "is missing: the old sac lowered its learning rate linearly, so 'linear' is filled in"
            target.notes.warn(flat["trainer"], "learning_rate_schedule", message)
        target.put("hyperparameters.learning_rate_schedule", "linear", section, comment)
    if trainer == "sac":
        _convert_updates(flat, section, target)
    if "time_horizon" in flat:
        target.put("time_horizon", integral(flat["time_horizon"].value), flat["time_horizon"])


def _convert_updates(flat: Flat, section: OldValue, target: Target) -> None:
    """Convert `train_interval` and `num_update`, which are now a single number, and the signals' update keys."""
    notes, hyper = target.notes, "hyperparameters"
    count = next((key for key in UPDATES if key in flat), "num_update")
    interval, updates = (above_zero(flat.get(key), 1, notes) for key in ("train_interval", count))
    pair = [flat[key] for key in ("train_interval", count) if key in flat]
    if "steps_per_update" in flat:  # which overrides the pair
        steps = flat["steps_per_update"].value
    else:
        steps = integral(interval / updates)
        for old in pair:
            message = f"is now '{hyper}.steps_per_update', which is train_interval / {count}"
            notes.warn(old, str(old.path[-1]), message)
        target.put(f"{hyper}.steps_per_update", steps, pair[0] if pair else section)
    signals = flat.get("reward_signals")
    own_updates, own_steps = (pace(signals, name) for name in PACES)
    if own_updates is not None:
        key, new = f"reward_signals.{PACES[0]}", f"{hyper}.reward_signal_steps_per_update"
        notes.warn(own_updates, key, f"is now '{new}', which is train_interval / {PACES[0]}")
        target.put(new, integral(interval / above_zero(own_updates, 1, notes)), own_updates)
    elif own_steps is not None:
        new = f"{hyper}.reward_signal_steps_per_update"
        notes.warn(own_steps, f"reward_signals.{PACES[1]}", f"is now '{new}'")
        target.put(new, integral(own_steps.value), own_steps)


def _convert_memory(flat: Flat, target: Target) -> None:
    """Convert `use_recurrent` and its two related keys to the `memory` section, which enables memory."""
    place, recurrent = "network_settings.memory", flat.get("use_recurrent")
    wanted = False if recurrent is None else truth(recurrent.value)
    if recurrent is not None:
        target.notes.warn(recurrent, "use_recurrent", f"is now '{place}', which is omitted if the value is false")
        if not isinstance(wanted, bool):
            target.notes.wrong(recurrent, f"{recurrent.value!r} is not valid; expected true or false")
    for key, value in (("sequence_length", _SEQUENCE_LENGTH), ("memory_size", _MEMORY_SIZE)):
        if key in flat:
            target.notes.warn(flat[key], key, f"is now '{place}.{key}', if use_recurrent was true")
        if wanted is True:
            target.put(f"{place}.{key}", integral(flat[key].value) if key in flat else value, flat.get(key, recurrent))


def _convert_rewards(flat: Flat, section: OldValue, target: Target) -> None:
    """Convert reward signals, or the older keys `gamma` and `use_curiosity`."""
    signals = flat.get("reward_signals")
    if signals is not None:
        epochs = flat["num_epoch"].value if "num_epoch" in flat else None
        convert_signals(signals, target, epochs)  # they replace `gamma` and `use_curiosity`
    else:
        _convert_before_signals(flat, section, target)


def _convert_before_signals(flat: Flat, section: OldValue, target: Target) -> None:
    gamma: Any = 0.99
    target.put("reward_signals.extrinsic.strength", 1.0, section)
    if "gamma" in flat:
        gamma = flat["gamma"].value
        target.notes.warn(flat["gamma"], "gamma", "is now 'reward_signals.extrinsic.gamma'")
    target.put("reward_signals.extrinsic.gamma", gamma, flat.get("gamma", section))
    if "use_curiosity" not in flat or truth(flat["use_curiosity"].value) is not True:
        for key in _CURIOSITY:
            if key in flat:
                message = "is now 'reward_signals.curiosity', which is omitted if the value is false"
                target.notes.warn(flat[key], key, message)
        return
    place = "reward_signals.curiosity"
    for key, below, value in (
        ("use_curiosity", "", None),
        ("curiosity_strength", ".strength", 0.01),
        ("curiosity_enc_size", ".network_settings.hidden_units", 128),
    ):
        if key in flat:
            target.notes.warn(flat[key], key, f"is now '{place}{below}'")
        if below:
            target.put(f"{place}{below}", flat[key].value if key in flat else value, flat.get(key, section))
    target.put(f"{place}.gamma", gamma, flat["use_curiosity"])
    target.put(f"{place}.learning_rate", 3e-4, flat["use_curiosity"])


def _convert_more(flat: Flat, trainer: str, target: Target) -> None:
    def given(key: str, default: int) -> Any:
        return integral(flat[key].value) if key in flat else default

    for name in ("pretraining", "behavioral_cloning"):
        if name in flat:
            if trainer == "sac":
                convert_cloning(flat[name], target, name, 1, given("batch_size", 128))
            elif name == "pretraining":  # `behavioral_cloning` defaulted to 3 passes
                convert_cloning(flat[name], target, name, given("num_epoch", 3))
            else:
                convert_cloning(flat[name], target, name)
    if "self_play" in flat:
        convert_self_play(flat["self_play"], target, flat=True)


# Conversion of trainers that only imitated: `offline_bc` and `online_bc` (`imitation`, `bc`) are now `bc`. The old
# trainers learned at every environment step, from `batches_per_epoch` batches, and counted environment steps in
# `max_steps` and `summary_freq`. Headrace's trainer counts the steps from which it learns.

_HYPER = "hyperparameters"


def convert_bc(flat: Mapping[str, OldValue], section: OldValue, target: Target) -> None:
    """Convert the special keys of a block for a trainer that only imitated.

    Args:
        flat: the block's keys and values.
        section: the section that contains the block.
        target: receives the converted block.
    """
    demo, teacher = flat.get("demo_path"), flat.get("brain_to_imitate")
    online = teacher is not None and flat["trainer"].value != "offline_bc"
    if online and teacher is not None:
        target.notes.warn(teacher, "brain_to_imitate", f"is now '{_HYPER}.teacher': another behaviour of the run")
        target.put(f"{_HYPER}.teacher", teacher.value, teacher)
    elif demo is not None:
        target.notes.warn(demo, "demo_path", f"is now '{_HYPER}.demo_path'")
        target.put(f"{_HYPER}.demo_path", demo.value, demo)
    else:
        wanted = "demo_path" if flat["trainer"].value == "offline_bc" else "brain_to_imitate"
        target.notes.wrong(section, f"has nothing to imitate; add '{wanted}'")
    _convert_amounts(flat, section, target, online=online)


def _convert_amounts(flat: Mapping[str, OldValue], section: OldValue, target: Target, *, online: bool) -> None:
    batch = above_zero(flat.get("batch_size"), _BATCH_SIZE, target.notes)
    batches = above_zero(flat.get("batches_per_epoch"), _BATCHES_PER_EPOCH, target.notes)
    each_time = integral(batch * batches)
    if "batches_per_epoch" in flat:
        old, message = (
            flat["batches_per_epoch"],
            f"is now '{_HYPER}.buffer_size', which is batch_size × batches_per_epoch",
        )
        target.notes.warn(old, "batches_per_epoch", message)
    target.put(
        f"{_HYPER}.buffer_size", each_time, flat.get("batches_per_epoch", section), "batch_size * batches_per_epoch"
    )
    target.put(f"{_HYPER}.learning_rate_schedule", "constant", section)
    epochs = integral(batches) if online else 1
    target.put(f"{_HYPER}.num_epoch", epochs, section, "as many as batches_per_epoch" if online else "")
    target.put(f"{_HYPER}.held_out", 0.0, section, "the old trainer learned from all its data")
    for key, old in flat.items():
        if key not in ("max_steps", "summary_freq"):
            continue
        if online or not is_number(old.value):
            target.put(key, integral(old.value), old)
            continue
        message = f"used to count environment steps, each with {each_time} learned steps; it now counts learned steps"
        target.notes.warn(old, key, message)
        comment = f"{integral(old.value)} * {each_time}: it counts learned steps"
        target.put(key, integral(old.value * each_time), old, comment)
