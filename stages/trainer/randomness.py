"""A trainer's source of chance, and its state as a checkpoint can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def new_random(seed: int) -> np.random.Generator:
    """A generator whose state is an array of 64-bit words, which checkpoints can hold (unlike NumPy's default's)."""
    return np.random.Generator(np.random.SFC64(seed))


def random_state(random: np.random.Generator) -> dict[str, Any]:
    """The state of a generator made by `new_random`, as plain values and an array of its own."""
    state = random.bit_generator.state
    return {
        "words": state["state"]["state"].copy(),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def restore_random(random: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Continue from `random_state()`."""
    random.bit_generator.state = {
        "bit_generator": "SFC64",
        "state": {"state": np.array(state["words"], np.uint64)},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }
