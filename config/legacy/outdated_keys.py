"""Conversion of old keys in files that have `behaviors`: of versions 0.16 to 0.18, and later deprecated ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config.environment_parameters import Lesson
from headrace.config.legacy import flat_keys
from headrace.config.legacy.old_values import Notes, OldValue, Target, truth
from headrace.config.legacy.signals import convert_cloning, convert_self_play

_SIZED = ("curiosity", "gail", "rnd")
HARDWARE = ("cpu", "multi_gpu")
_BLOCK_GONE = ("framework", "output_path", "summary_path", "model_path")


def is_flat(body: Any) -> bool:
    """Return True if a block under `behaviors` has flat keys."""
    parts = ("trainer_type", "hyperparameters", "network_settings")
    return isinstance(body, dict) and "trainer" in body and not any(part in body for part in parts)


def convert_current(block: OldValue, target: Target) -> None:
    """Replace old keys of a block of today's form, except `curriculum`.

    Args:
        block: the block.
        target: where its new form goes.
    """
    for key, old in block.items():
        if key in _BLOCK_GONE and old.value is not None:  # ML-Agents writes null for what was not given
            target.notes.warn(old.place, key, flat_keys.GONE[key])
        elif key == "trainer" and "trainer_type" not in block.value:
            target.notes.warn(old.place, key, "is 'trainer_type' now")
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
        message = "is deprecated, and has no effect, as network_settings take precedence; it is left out"
        target.notes.warn(old.place, f"reward_signals.{name}.encoding_size", message)
    else:
        target.notes.warn(old.place, f"reward_signals.{name}.encoding_size", f"is deprecated; it is '{new}' now")
        target.put(new, old.value, old)


def convert_checkpoints(settings: OldValue, target: Target) -> tuple[dict[str, OldValue], int]:
    """Replace old keys of `checkpoint_settings`.

    Returns:
        The keys that belong to each behaviour now; and the lesson to begin with.
    """
    moved, lesson = {}, 0
    for key, old in settings.items():
        if key == "load_model" and truth(old.value) is True:
            target.notes.warn(
                old.place, "checkpoint_settings.load_model", "is deprecated; it is 'checkpoint_settings.resume' now"
            )
            target.put("resume", True, old)
        elif key == "train_model" and truth(old.value) is True:
            target.notes.warn(
                old.place, "checkpoint_settings.train_model", "is deprecated and has no effect; it is left out"
            )
        elif key in ("save_freq", "keep_checkpoints"):
            new = "checkpoint_interval" if key == "save_freq" else key
            target.notes.warn(old.place, f"checkpoint_settings.{key}", f"is 'behaviors.<name>.{new}' now")
            moved[new] = old
        elif key == "lesson" and isinstance(old.value, int) and not isinstance(old.value, bool):
            target.notes.warn(
                old.place, "checkpoint_settings.lesson", "is gone: curricula begin with the lesson that is listed first"
            )
            lesson = max(0, old.value)
        elif key != "resume" or "resume" not in target.data:
            target.put_at((key,), old.value, old)
    return moved, lesson


def write_into_blocks(moved: Mapping[str, OldValue], data: dict[str, Any], notes: Notes) -> None:
    """Write keys that belonged to the run into all blocks that lack them."""
    blocks: list[tuple[tuple[str, ...], Any]] = [(("default_settings",), data.get("default_settings"))]
    if not isinstance(blocks[0][1], dict) and isinstance(data.get("behaviors"), dict):
        blocks = [(("behaviors", name), body) for name, body in data["behaviors"].items()]
    for path, body in blocks:
        for key, old in moved.items():
            if isinstance(body, dict) and key not in body:
                body[key] = old.value
                notes.origins[*path, key] = old.place


def unfold_lessons(parameters: OldValue, target: Target) -> None:
    """Write `environment_parameters` with lessons `- {name: Lesson0, …}` where they were `- Lesson0: {…}`."""
    for name, parameter in parameters.items():
        lessons = parameter.at("curriculum") if _has_lessons(parameter.value) else None
        if lessons is None:
            target.put_at((name,), parameter.value, parameter)
            continue
        numbered = [lessons.at(number) for number in range(len(lessons.value))]
        unfolded = [_lesson(lesson, target.notes) for lesson in numbered]
        target.put_at((name,), {**parameter.value, "curriculum": [body for body, _ in unfolded]}, parameter)
        for number, (_, origin) in enumerate(unfolded):
            _trace((*target.path, name, "curriculum", number), origin, target.notes)


def _has_lessons(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("curriculum"), list)


def _lesson(lesson: OldValue, notes: Notes) -> tuple[Any, OldValue]:
    """Return a lesson, and the old value that held its keys."""
    if isinstance(lesson.value, dict) and len(lesson.value) == 1:
        ((name, body),) = lesson.items()
        if name not in Lesson.model_fields and isinstance(body.value, dict):
            notes.warn(
                body.place,
                "environment_parameters.<name>.curriculum",
                "its lessons are '- name: …' now",
            )
            return {"name": name, **body.value}, body
    return lesson.value, lesson


def _trace(path: tuple[str | int, ...], old: OldValue, notes: Notes) -> None:
    notes.origins[path] = old.place
    for key, below in old.items():
        _trace((*path, key), below, notes)


def convert_hardware(name: str, old: OldValue, data: dict[str, Any], notes: Notes) -> None:
    """Convert `cpu` and `multi_gpu` at the top of a file to torch's device."""
    asked = truth(old.value)
    if not isinstance(asked, bool):
        notes.wrong(old.place, old.path, f"{old.value!r} does not fit; expected true or false")
    elif name == "multi_gpu" and asked:
        notes.wrong(old.place, old.path, "one behaviour can't learn on several GPUs; leave it out")
    else:
        notes.warn(old.place, name, "is 'torch_settings.device' now" if name == "cpu" else "is gone; it was off")
        if asked:
            data["torch_settings"] = {**(data.get("torch_settings") or {}), "device": "cpu"}
            notes.origins["torch_settings", "device"] = old.place
