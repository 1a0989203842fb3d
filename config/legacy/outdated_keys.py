"""Converts old keys in sections that still exist, and old curricula and samplers to `environment_parameters`.

The keys are from versions 0.16 to 0.18, or were deprecated later. `flat_file` converts older files.

An old curriculum has thresholds for one behaviour, and values for several parameters together; now each parameter has a
separate curriculum. Up to version 0.13 there was a folder with a file for each behaviour, then one YAML file for all of
them, then a section in the trainer's file. Old samplers are the section `parameter_randomization`, or the file given by
`--sampler`; they resample at intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.config.environment_parameters import Lesson
from headrace.config.errors import ConfigError, Mistake
from headrace.config.legacy.old_values import Notes, OldValue, Target, integral, is_number, truth
from headrace.config.yaml_reader import read_file

_SIZED = ("curiosity", "gail", "rnd")
HARDWARE = ("cpu", "multi_gpu")
GONE = {
    "summary_path": "was removed: everything goes to <results_dir>/<run_id>",
    "model_path": "was removed: everything goes to <results_dir>/<run_id>",
    "output_path": "was removed: everything goes to <results_dir>/<run_id>",
    "graph_scope": "was removed: it configured TensorFlow",
    "framework": "was removed: training uses torch",
}
"""Keys without a replacement, with the reason why they need none."""
_GONE_FROM_BLOCKS = ("framework", "output_path", "summary_path", "model_path")
"""Keys without a replacement that blocks for versions 0.16 to 0.18 may have."""


def is_flat(body: Any) -> bool:
    """Return True if a block under `behaviors` has flat keys."""
    parts = ("trainer_type", "hyperparameters", "network_settings")
    return isinstance(body, dict) and "trainer" in body and not any(part in body for part in parts)


def convert_current(block: OldValue, target: Target) -> None:
    """Replace old keys in a block of the current format, except `curriculum`.

    Args:
        block: the block.
        target: receives the converted block.
    """
    for key, old in block.items():
        if key in _GONE_FROM_BLOCKS and old.value is not None:  # ML-Agents writes null for missing values
            target.notes.warn(old, key, GONE[key])
        elif key == "trainer" and "trainer_type" not in block.value:
            target.notes.warn(old, key, "is now 'trainer_type'")
            target.put("trainer_type", old.value, old)
        elif key == "pretraining" and "behavioral_cloning" not in block.value:
            convert_cloning(old, target, key)
        elif key == "self_play":
            convert_self_play(old, target, flat=False)
        elif key == "reward_signals" and isinstance(old.value, dict):
            target.put_at((key,), {}, old)
            for name, signal in old.items():
                _convert_size(name, signal, target)
        elif key != "curriculum":
            target.put_at((key,), old.value, old)


def _convert_size(name: str, signal: OldValue, target: Target) -> None:
    place = ("reward_signals", name)
    if name not in _SIZED or not isinstance(signal.value, dict) or signal.value.get("encoding_size") is None:
        target.put_at(place, signal.value, signal)
        return
    old = signal.at("encoding_size")
    target.put_at(place, {key: value for key, value in signal.value.items() if key != "encoding_size"}, signal)
    new = f"reward_signals.{name}.network_settings.hidden_units"
    if "network_settings" in signal.value:
        message = "is deprecated and has no effect, because network_settings take precedence; left out"
        target.notes.warn(old, f"reward_signals.{name}.encoding_size", message)
    else:
        target.notes.warn(old, f"reward_signals.{name}.encoding_size", f"is deprecated; it is now '{new}'")
        target.put(new, old.value, old)


def convert_checkpoints(settings: OldValue, target: Target) -> tuple[dict[str, OldValue], int]:
    """Replace old keys in `checkpoint_settings`.

    Returns:
        The keys that now belong to each behaviour, and the index of the lesson at which curricula start.
    """
    moved, lesson = {}, 0
    for key, old in settings.items():
        if key == "load_model" and truth(old.value) is True:
            target.notes.warn(
                old, "checkpoint_settings.load_model", "is deprecated; it is now 'checkpoint_settings.resume'"
            )
            target.put("resume", True, old)
        elif key == "train_model" and truth(old.value) is True:
            target.notes.warn(old, "checkpoint_settings.train_model", "is deprecated and has no effect; it is left out")
        elif key in ("save_freq", "keep_checkpoints"):
            new = "checkpoint_interval" if key == "save_freq" else key
            target.notes.warn(old, f"checkpoint_settings.{key}", f"is now 'behaviors.<name>.{new}'")
            moved[new] = old
        elif key == "lesson" and isinstance(old.value, int) and not isinstance(old.value, bool):
            target.notes.warn(
                old, "checkpoint_settings.lesson", "was removed: curricula begin with the lesson that is listed first"
            )
            lesson = max(0, old.value)
        elif key != "resume" or "resume" not in target.data:
            target.put_at((key,), old.value, old)
    return moved, lesson


def write_into_blocks(moved: Mapping[str, OldValue], data: dict[str, Any], notes: Notes) -> None:
    """Write keys that used to apply to the run into all blocks that do not have these keys."""
    blocks: list[tuple[tuple[str, ...], Any]] = [(("default_settings",), data.get("default_settings"))]
    if not isinstance(blocks[0][1], dict) and isinstance(data.get("behaviors"), dict):
        blocks = [(("behaviors", name), body) for name, body in data["behaviors"].items()]
    for path, body in blocks:
        for key, old in moved.items():
            if isinstance(body, dict) and key not in body:
                body[key] = old.value
                notes.origins[*path, key] = old.place


def unfold_lessons(parameters: OldValue, target: Target, lesson: int) -> None:
    """Convert `environment_parameters`.

    Lessons of the form `- Lesson0: {…}` become `- {name: Lesson0, …}`, and lessons before `lesson` are left out.
    """
    for name, parameter in parameters.items():
        if not isinstance(parameter.value, dict) or not isinstance(parameter.value.get("curriculum"), list):
            target.put_at((name,), parameter.value, parameter)
            continue
        lessons = parameter.at("curriculum")
        numbered = range(_first_lesson(lesson, name, lessons, len(lessons.value), target), len(lessons.value))
        unfolded = [_lesson(lessons.at(number), target.notes) for number in numbered]
        target.put_at((name,), {**parameter.value, "curriculum": [body for body, _ in unfolded]}, parameter)
        for number, (_, origin) in enumerate(unfolded):
            _trace((*target.path, name, "curriculum", number), origin, target.notes)


def _first_lesson(lesson: int, name: str, old: OldValue, count: int, target: Target) -> int:
    """Return the index of the lesson with which a curriculum begins: `lesson`, or the last one if there are fewer."""
    first = max(0, min(lesson, count - 1))
    if lesson and count:
        what = f"begins with lesson {first}, as --lesson {lesson} requests; the earlier lessons are left out"
        target.notes.warn(old, ".".join((*map(str, target.path), name, "curriculum")), what)
    return first


def _lesson(lesson: OldValue, notes: Notes) -> tuple[Any, OldValue]:
    """Return a lesson, and the old value that contains its keys."""
    if isinstance(lesson.value, dict) and len(lesson.value) == 1:
        ((name, body),) = lesson.items()
        if name not in Lesson.model_fields and isinstance(body.value, dict):
            notes.warn(body, "environment_parameters.<name>.curriculum", "its lessons are now written as '- name: …'")
            return {"name": name, **body.value}, body
    return lesson.value, lesson


def _trace(path: tuple[str | int, ...], old: OldValue, notes: Notes) -> None:
    notes.origins[path] = old.place
    for key, below in old.items():
        _trace((*path, key), below, notes)


def convert_hardware(name: str, old: OldValue, data: dict[str, Any], notes: Notes) -> None:
    """Convert the top-level keys `cpu` and `multi_gpu`; one behaviour trains on one GPU."""
    notes.warn(old, name, "is now 'torch_settings.device'" if name == "cpu" else "was removed")
    if name == "cpu" and truth(old.value) is True:
        data["torch_settings"] = {**(data.get("torch_settings") or {}), "device": "cpu"}
        notes.origins["torch_settings", "device"] = old.place


# Sections that flat blocks have too: `reward_signals`, `pretraining` and `self_play`.

_SIGNALS = ("extrinsic", "curiosity", "gail")
PACES = ("reward_signal_num_update", "reward_signal_steps_per_update")
"""Keys under `reward_signals` that apply to all signals."""

_CURIOSITY_SIZE, _GAIL_SIZE = 128, 64
_LEARNING_RATE = 3e-4
_OLD_SWAP_STEPS = 20000
_RATIO, _OLD_RATIO = "play_against_latest_model_ratio", "play_against_current_self_ratio"


def convert_signals(signals: OldValue, target: Target, trainer_epochs: Any) -> None:
    """Convert a flat block's reward signals, but not the keys in `PACES`.

    Args:
        signals: the map `reward_signals`.
        target: receives the converted block.
        trainer_epochs: the block's `num_epoch`, which now also applies to the signals' networks.
    """
    if not isinstance(signals.value, dict):
        target.put("reward_signals", signals.value, signals)
        return
    target.put("reward_signals", {}, signals)
    for name, body in signals.items():
        if name not in PACES:
            _convert_signal(name, body, target, trainer_epochs)


def _convert_signal(name: str, body: OldValue, target: Target, trainer_epochs: Any) -> None:
    place = f"reward_signals.{name}"
    if name not in _SIGNALS or not isinstance(body.value, dict):
        target.put(place, body.value, body)  # the schema reports the mistake
        return
    target.put(place, {}, body)
    if name != "extrinsic":
        target.put(f"{place}.learning_rate", _LEARNING_RATE, body)
        _put_size(name, body, target)
    if name == "gail":
        target.put(f"{place}.use_actions", False, body)
        target.put(f"{place}.use_vail", False, body)
    for key, old in body.items():
        if key == "encoding_size":
            continue
        if key == "num_epoch" and name != "extrinsic":
            _drop_epochs(place, old, trainer_epochs, target.notes)
        elif key == "samples_per_update" and name == "gail":
            _drop_samples(place, old, target.notes)
        else:
            target.put(f"{place}.{key}", truth(old.value), old)


def _put_size(name: str, body: OldValue, target: Target) -> None:
    place = f"reward_signals.{name}"
    if "encoding_size" in body.value:
        old = body.at("encoding_size")
        new = "network_settings.hidden_units"
        target.notes.warn(old, f"{place}.encoding_size", f"is now '{place}.{new}'")
        target.put(f"{place}.{new}", integral(old.value), old)
    elif "network_settings" not in body.value:
        size = _GAIL_SIZE if name == "gail" else _CURIOSITY_SIZE
        comment = f"the old default; the current one is {_CURIOSITY_SIZE}" if size != _CURIOSITY_SIZE else ""
        target.put(f"{place}.network_settings.hidden_units", size, body, comment)


def _drop_epochs(section: str, old: OldValue, trainer_epochs: Any, notes: Notes) -> None:
    if old.value == trainer_epochs:
        notes.warn(
            old, f"{section}.num_epoch", "now follows 'hyperparameters.num_epoch', which has the same value here"
        )
    else:
        message = (
            f"{old.value} differs from the trainer's num_epoch ({trainer_epochs}), which now also applies to reward "
            "signals; make the two equal, or leave it out"
        )
        notes.wrong(old, message)


def _drop_samples(section: str, old: OldValue, notes: Notes) -> None:
    if old.value == 0:
        notes.warn(
            old,
            f"{section}.samples_per_update",
            "was removed; the number is no longer limited, which is also what 0 meant",
        )
    else:
        message = (
            f"{old.value} can't be kept: the discriminator always sees as many demonstrated steps as other steps; "
            "leave it out"
        )
        notes.wrong(old, message)


_BOUND, _PASSES = "samples_per_update", 3


def convert_cloning(cloning: OldValue, target: Target, name: str, passes: Any = _PASSES, sac_batch: Any = None) -> None:
    """Convert `pretraining`, the former name of `behavioral_cloning`, which has the same keys.

    Args:
        cloning: the old section.
        target: receives the converted block.
        name: the section's key.
        passes: the old trainer's default number of passes per update.
        sac_batch: `batch_size` of an old SAC block, which used this many demonstrated steps per update, or all steps if
            there were fewer than the section's own batch size; None for other trainers.
    """
    if name != "behavioral_cloning":
        target.notes.warn(cloning, name, "is now 'behavioral_cloning'")
    target.put("behavioral_cloning", {} if isinstance(cloning.value, dict) else cloning.value, cloning)
    for key, old in cloning.items():
        if sac_batch is not None and key == _BOUND:
            message = "was not a valid setting of the old sac, which used one batch per update; left out"
            target.notes.warn(old, f"{name}.{key}", message)
        else:
            target.put(f"behavioral_cloning.{key}", integral(old.value), old)
    if not isinstance(cloning.value, dict):
        return
    if passes != _PASSES and not cloning.value.get("num_epoch"):
        comment = f"as in the old trainer; the current default is {_PASSES}"
        target.put("behavioral_cloning.num_epoch", passes, cloning, comment)
    batch = cloning.value.get("batch_size") or sac_batch
    if is_number(sac_batch) and is_number(batch) and batch <= sac_batch:
        target.put(f"behavioral_cloning.{_BOUND}", sac_batch, cloning, "as many as the old sac used per update")


def convert_self_play(self_play: OldValue, target: Target, *, flat: bool) -> None:
    """Convert `self_play` and its old keys.

    Args:
        self_play: the old section.
        target: receives the converted block.
        flat: True in a flat block, where `swap_steps` had a different default.
    """
    if not isinstance(self_play.value, dict):
        target.put("self_play", self_play.value, self_play)
        return
    target.put("self_play", {}, self_play)
    for key, old in self_play.items():
        if key == _OLD_RATIO and _RATIO in self_play.value:
            target.notes.wrong(old, f"is given together with its new name, '{_RATIO}'; keep only the new name")
            continue
        if key == _OLD_RATIO:
            target.notes.warn(old, f"self_play.{key}", f"is now 'self_play.{_RATIO}'")
        target.put(f"self_play.{_RATIO if key == _OLD_RATIO else key}", integral(old.value), old)
    if (flat or _OLD_RATIO in self_play.value) and "swap_steps" not in self_play.value:
        steps = _OLD_SWAP_STEPS
        target.put("self_play.swap_steps", steps, self_play, "the old default; the current one is 2000")
        message = f"sets no 'swap_steps', whose default was {steps} and is now 2000; {steps} is filled in"
        target.notes.warn(self_play, "self_play", message)


def pace(signals: OldValue | None, name: str) -> OldValue | None:
    """Return the value under one of the `PACES`, or None if there is none."""
    inside = signals is not None and isinstance(signals.value, dict) and name in signals.value
    return signals.at(name) if signals is not None and inside else None


_KEYS = ("measure", "thresholds", "min_lesson_length", "signal_smoothing", "parameters")
_DEFAULTS = {"measure": "reward", "min_lesson_length": 0, "signal_smoothing": True}


def is_curriculum(value: Any) -> bool:
    """Return True if a value looks like one behaviour's curriculum."""
    return isinstance(value, dict) and "thresholds" in value and "parameters" in value


def read_curricula(path: Path) -> dict[str, OldValue]:
    """Read the argument of `--curriculum`: a folder with a file per behaviour, or a file for one or all behaviours.

    Raises:
        ConfigError: if the argument can't be read, or contains no curricula.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".json")
        if not files:
            message = (
                "contains no curricula; expected a file <behaviour>.json for each behaviour that learns in lessons"
            )
            raise ConfigError([Mistake(str(path), None, "", message)])
        return {name: old for file in files for name, old in _read(file).items()}
    return _read(path)


def _read(path: Path) -> dict[str, OldValue]:
    document = read_file(path).last_of_repeated()
    return curricula_in(OldValue(document.data, document))


def curricula_in(file: OldValue) -> dict[str, OldValue]:
    """Return the curricula in a file that contains nothing else, keyed by behaviour.

    Raises:
        ConfigError: if the file contains other values.
    """
    if file.document.mistakes:
        raise ConfigError(file.document.mistakes)
    if is_curriculum(file.value):
        return {Path(file.document.name).stem: file}
    if isinstance(file.value, dict) and set(file.value) == {"curriculum"}:
        file = file.at("curriculum")
    if not isinstance(file.value, dict) or not file.value or not all(map(is_curriculum, file.value.values())):
        message = f"contains no curricula; expected behaviours, each with {', '.join(_KEYS)}"
        raise ConfigError([Mistake(file.place.file, file.place.line, "", message)])
    return dict(file.items())


def convert_curriculum(behavior: str, old: OldValue, target: Target, lesson: int) -> None:
    """Convert a behaviour's curriculum to one curriculum for each of its parameters.

    Args:
        behavior: the behaviour that is measured.
        old: the behaviour's curriculum.
        target: the new `environment_parameters`.
        lesson: index of the lesson with which the new curricula begin.
    """
    notes = target.notes
    if not isinstance(old.value, dict):
        notes.wrong(old, f"is not valid; expected a map with {', '.join(_KEYS)}")
        return
    if not _is_whole(old, notes):
        return
    thresholds = old.at("thresholds")
    for key, value in old.items():
        if key in _KEYS:
            new = "completion_criteria.threshold" if key == "thresholds" else f"completion_criteria.{key}"
            new = f"environment_parameters.<name>.curriculum.<n>.{'value' if key == 'parameters' else new}"
            notes.warn(value, key, f"is now '{new}'")
    for name, values in old.at("parameters").items():
        if name in target.data:
            earlier = notes.origins.get((*target.path, name), "under environment_parameters")
            notes.wrong(values, f"already has a curriculum ({earlier}); a parameter can have only one")
        elif not isinstance(values.value, list) or len(values.value) != len(thresholds.value) + 1:
            got = f"{len(values.value)} values" if isinstance(values.value, list) else repr(values.value)
            message = f"{got} for {len(thresholds.value)} thresholds; expected a list of {len(thresholds.value) + 1}"
            notes.wrong(values, message)
        else:
            first = _first_lesson(lesson, name, values, len(values.value), target)
            target.put_at((name,), {"curriculum": list(_lessons(behavior, old, values))[first:]}, values)
            _trace_parameters(name, old, values, len(values.value) - first, target)


def _is_whole(old: OldValue, notes: Notes) -> bool:
    lacking = [key for key in _KEYS if key not in old.value and key not in _DEFAULTS]
    unknown = [key for key in old.value if key not in _KEYS]
    if lacking:
        notes.wrong(old, f"lacks {', '.join(lacking)}; expected {', '.join(_KEYS)}")
    for key in unknown:
        notes.wrong(old.at(key), f"unknown key; expected one of {', '.join(_KEYS)}")
    for key, kind in (("thresholds", list), ("parameters", dict)):
        if key in old.value and not isinstance(old.value[key], kind):
            lacking.append(key)
            expected = "a list" if kind is list else "a map of lists"
            notes.wrong(old.at(key), f"is not valid; expected {expected}")
    return not lacking and not unknown


def _lessons(behavior: str, old: OldValue, values: OldValue) -> Iterator[dict[str, Any]]:
    curriculum = {**_DEFAULTS, **old.value}
    for number, value in enumerate(values.value):
        lesson: dict[str, Any] = {"name": f"Lesson{number}", "value": value}
        if number < len(curriculum["thresholds"]):
            lesson["completion_criteria"] = {
                "behavior": behavior,
                "measure": curriculum["measure"],
                "threshold": curriculum["thresholds"][number],
                "min_lesson_length": integral(curriculum["min_lesson_length"]),
                "signal_smoothing": truth(curriculum["signal_smoothing"]),
                "require_reset": True,
            }
        yield lesson


def _trace_parameters(name: str, old: OldValue, values: OldValue, count: int, target: Target) -> None:
    """Record where the lessons' parts came from, and add a comment that explains `require_reset`."""
    where, notes = (*target.path, name, "curriculum"), target.notes
    for number in range(count):
        notes.origins[*where, number] = notes.origins[*where, number, "value"] = values.place
        criteria = (*where, number, "completion_criteria")
        for key in ("measure", "min_lesson_length", "signal_smoothing"):
            if key in old.value:
                notes.origins[*criteria, key] = old.at(key).place
        notes.origins[*criteria, "threshold"] = old.at("thresholds").place
    if count > 1:
        first = (*where, 0, "completion_criteria", "require_reset")
        notes.comments[first] = "environments were reset at each lesson"


# Samplers.

_INTERVALS = ("resampling-interval", "resampling_interval", "episode-length")
"""Names of the resampling interval's key; the last name is from the first versions with samplers."""
_TYPES = ("sampler-type", "sampler_type")
_NEW_NAMES = {"multirange_uniform": "multirangeuniform"}


def is_samplers(value: Any) -> bool:
    """Return True if data looks like a file that contains only samplers."""
    if not isinstance(value, dict):
        return False
    bodies = [body for key, body in value.items() if key not in _INTERVALS]
    return bool(bodies) and all(isinstance(body, dict) and any(key in body for key in _TYPES) for body in bodies)


def read_samplers(path: Path) -> OldValue:
    """Read the argument of `--sampler`.

    Raises:
        ConfigError: if the file can't be read, or contains no samplers.
    """
    document = read_file(path).last_of_repeated()
    file = OldValue(document.data, document)
    if document.mistakes:
        raise ConfigError(document.mistakes)
    if isinstance(file.value, dict) and set(file.value) == {"parameter_randomization"}:
        file = file.at("parameter_randomization")
    if not is_samplers(file.value):
        message = "contains no samplers; expected resampling-interval, and parameters that each have a sampler-type"
        raise ConfigError([Mistake(file.place.file, file.place.line, "", message)])
    return file


def convert_samplers(samplers: OldValue, target: Target) -> None:
    """Convert samplers.

    Args:
        samplers: a map from parameters to their samplers, which also contains the interval.
        target: the new `environment_parameters`.
    """
    if not isinstance(samplers.value, dict):
        target.notes.wrong(samplers, "is not valid; expected a map of parameters")
        return
    for name, old in samplers.items():
        if name in _INTERVALS:
            message = (
                f"was removed: values were drawn every {old.value} steps, with a reset; now they are drawn for each "
                "episode"
            )
            target.notes.warn(old, name, message)
        elif name in target.data:
            earlier = target.notes.origins.get((*target.path, name), "under environment_parameters")
            target.notes.wrong(old, f"is already defined ({earlier}); a parameter can be defined only once")
        else:
            _convert_sampler(name, old, target)


def _convert_sampler(name: str, old: OldValue, target: Target) -> None:
    kinds = [key for key in _TYPES if isinstance(old.value, dict) and key in old.value]
    if not kinds or "sampler_parameters" in old.value:
        target.put_at((name,), old.value, old)  # a number, or the current form; the schema reports other values
        return
    sampler_type = old.at(kinds[0])
    kind = (
        _NEW_NAMES.get(sampler_type.value, sampler_type.value)
        if isinstance(sampler_type.value, str)
        else sampler_type.value
    )
    where = "environment_parameters.<name>"
    if kinds[0] != "sampler_type":
        target.notes.warn(sampler_type, kinds[0], f"is now '{where}.sampler_type'")
    if kind != sampler_type.value:
        target.notes.warn(sampler_type, f"{kinds[0]}: {sampler_type.value}", f"is now '{where}.sampler_type: {kind}'")
    target.put_at((name,), {}, old)
    target.put_at((name, "sampler_type"), kind, sampler_type, "a new value in each episode")
    target.put_at((name, "sampler_parameters"), {}, old)
    for key, value in old.items():
        if key in _TYPES:
            continue
        new = key.replace("-", "_")
        target.notes.warn(value, key, f"is now '{where}.sampler_parameters.{new}'")
        target.put_at((name, "sampler_parameters", new), value.value, value)
