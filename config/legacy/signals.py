"""Conversion of old `reward_signals`, `pretraining` and `self_play`: sections that still exist, with other keys."""

from __future__ import annotations

from typing import Any

from headrace.config.legacy.old_values import Notes, OldValue, Target, integral, truth

SIGNALS = ("extrinsic", "curiosity", "gail")
PACES = ("reward_signal_num_update", "reward_signal_steps_per_update")
"""Keys that stood among the signals, though they concern all of them."""

_REQUIRED: dict[str, Any] = {"strength": 1.0, "gamma": 0.99}
_CURIOSITY_SIZE, _GAIL_SIZE = 128, 64
_LEARNING_RATE = 3e-4
_OLD_SWAP_STEPS = 20000
_RATIO, _OLD_RATIO = "play_against_latest_model_ratio", "play_against_current_self_ratio"


def convert_signals(signals: OldValue, target: Target, trainer_epochs: Any) -> None:
    """Convert the signals of a flat block, except the `PACES` among them.

    Args:
        signals: the map `reward_signals`.
        target: the block's new form.
        trainer_epochs: `num_epoch` of the block, which the signals' networks follow today.
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
    if name not in SIGNALS or not isinstance(body.value, dict):
        target.put(place, body.value, body)  # the schema says what is wrong with it
        return
    target.put(place, {}, body)
    lacking = [key for key in _REQUIRED if key not in body.value]
    if lacking:
        target.notes.warn(
            body.place,
            place,
            f"lacks {' and '.join(lacking)}, which old versions asked for; the defaults are written",
        )
    for key, value in _REQUIRED.items():
        target.put(f"{place}.{key}", value, body)
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
        target.notes.warn(old.place, f"{place}.encoding_size", f"is '{place}.{new}' now")
        target.put(f"{place}.{new}", integral(old.value), old)
    elif "network_settings" not in body.value:
        size = _GAIL_SIZE if name == "gail" else _CURIOSITY_SIZE
        comment = f"the old default; today's is {_CURIOSITY_SIZE}" if size != _CURIOSITY_SIZE else ""
        target.put(f"{place}.network_settings.hidden_units", size, body, comment)


def _drop_epochs(place: str, old: OldValue, trainer_epochs: Any, notes: Notes) -> None:
    if old.value == trainer_epochs:
        notes.warn(old.place, f"{place}.num_epoch", "goes by 'hyperparameters.num_epoch' now, which is the same here")
    else:
        message = (
            f"{old.value} differs from the trainer's num_epoch ({trainer_epochs}), by which signals learn now; "
            "make the two equal, or leave it out"
        )
        notes.wrong(old.place, old.path, message)


def _drop_samples(place: str, old: OldValue, notes: Notes) -> None:
    if old.value == 0:
        notes.warn(old.place, f"{place}.samples_per_update", "has no successor; there is no limit now, as 0 meant")
    else:
        message = f"{old.value} can't be kept: as many demonstrated steps are looked at as others; leave it out"
        notes.wrong(old.place, old.path, message)


def convert_cloning(cloning: OldValue, target: Target, name: str) -> None:
    """Convert `pretraining`, the former name of `behavioral_cloning`, which has the same keys."""
    if name != "behavioral_cloning":
        target.notes.warn(cloning.place, name, "is 'behavioral_cloning' now")
    target.put("behavioral_cloning", {} if isinstance(cloning.value, dict) else cloning.value, cloning)
    for key, old in cloning.items():
        target.put(f"behavioral_cloning.{key}", integral(old.value), old)


def convert_self_play(self_play: OldValue, target: Target, *, flat: bool) -> None:
    """Convert `self_play` and its old keys.

    Args:
        self_play: the section.
        target: the block's new form.
        flat: True in a flat block, whose version had another default of `swap_steps`.
    """
    if not isinstance(self_play.value, dict):
        target.put("self_play", self_play.value, self_play)
        return
    target.put("self_play", {}, self_play)
    for key, old in self_play.items():
        if key == _OLD_RATIO and _RATIO in self_play.value:
            target.notes.wrong(old.place, old.path, f"stands beside its new name '{_RATIO}'; keep that one")
            continue
        if key == _OLD_RATIO:
            target.notes.warn(old.place, f"self_play.{key}", f"is 'self_play.{_RATIO}' now")
        target.put(f"self_play.{_RATIO if key == _OLD_RATIO else key}", integral(old.value), old)
    if (flat or _OLD_RATIO in self_play.value) and "swap_steps" not in self_play.value:
        comment = "the old default; today's is 2000"
        target.put("self_play.swap_steps", _OLD_SWAP_STEPS, self_play, comment)
        target.notes.warn(
            self_play.place,
            "self_play",
            f"says no 'swap_steps', which was {_OLD_SWAP_STEPS} then and is 2000 now; {_OLD_SWAP_STEPS} is written",
        )


def pace(signals: OldValue | None, name: str) -> OldValue | None:
    """Return the value under one of the `PACES`; None if there is none."""
    inside = signals is not None and isinstance(signals.value, dict) and name in signals.value
    return signals.at(name) if signals is not None and inside else None
