"""Conversion of trainers that only imitated: `offline_bc` and `online_bc` (`imitation`, `bc`) are `bc` here.

They learned at every step of the environment, from `batches_per_epoch` batches; `max_steps` and `summary_freq`
counted the former. Ours counts the steps that it learns from.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.legacy import flat_keys
from headrace.config.legacy.old_values import OldValue, Target, above_zero, integral, is_number

_HYPER = "hyperparameters"


def convert_bc(flat: Mapping[str, OldValue], section: OldValue, target: Target) -> None:
    """Convert what is particular to a block that only imitates.

    Args:
        flat: its keys.
        section: the section that holds it.
        target: where the new form goes.
    """
    demo, teacher = flat.get("demo_path"), flat.get("brain_to_imitate")
    online = teacher is not None and flat["trainer"].value != "offline_bc"
    if online and teacher is not None:
        target.notes.warn(teacher.place, "brain_to_imitate", f"is '{_HYPER}.teacher' now: another behaviour of the run")
        target.put(f"{_HYPER}.teacher", teacher.value, teacher)
    elif demo is not None:
        target.notes.warn(demo.place, "demo_path", f"is '{_HYPER}.demo_path' now")
        target.put(f"{_HYPER}.demo_path", demo.value, demo)
    else:
        wanted = "demo_path" if flat["trainer"].value == "offline_bc" else "brain_to_imitate"
        target.notes.wrong(section.place, section.path, f"has nothing to imitate; add '{wanted}'")
    _warn_of_the_other(demo if online else teacher, online, target)
    _convert_amounts(flat, section, target, online=online)


def _warn_of_the_other(other: OldValue | None, online: bool, target: Target) -> None:
    if other is not None:
        whose = "offline_bc" if online else "online_bc"
        target.notes.warn(other.place, str(other.path[-1]), f"is a key of {whose}, without meaning here: left out")


def _convert_amounts(flat: Mapping[str, OldValue], section: OldValue, target: Target, *, online: bool) -> None:
    shipped = flat_keys.SHIPPED["bc"]
    batch = above_zero(flat.get("batch_size"), shipped["batch_size"], target.notes)
    batches = above_zero(flat.get("batches_per_epoch"), flat_keys.BATCHES_PER_EPOCH, target.notes)
    each_time = integral(batch * batches)
    if "batches_per_epoch" in flat:
        old, message = (
            flat["batches_per_epoch"],
            f"is '{_HYPER}.buffer_size' now, which is batch_size × batches_per_epoch",
        )
        target.notes.warn(old.place, "batches_per_epoch", message)
    target.put(
        f"{_HYPER}.buffer_size", each_time, flat.get("batches_per_epoch", section), "batch_size * batches_per_epoch"
    )
    target.put(f"{_HYPER}.learning_rate_schedule", "constant", section)
    epochs = integral(batches) if online else 1
    target.put(f"{_HYPER}.num_epoch", epochs, section, "as often as there were batches_per_epoch" if online else "")
    target.put(f"{_HYPER}.held_out", 0.0, section, "the old trainer learned from all that there was")
    for key in ("max_steps", "summary_freq"):
        value = flat[key].value if key in flat else shipped[key]
        if online or not is_number(value):
            target.put(key, integral(value), flat.get(key, section))
            continue
        message = f"counted the environment's steps, each of which had {each_time} learned from; now it counts these"
        if key in flat:
            target.notes.warn(flat[key].place, key, message)
        comment = f"{integral(value)} * {each_time}: it counts the steps that are learned from"
        target.put(key, integral(value * each_time), flat.get(key, section), comment)
