"""Policies and random generators as plain data, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from headrace.queues.messages import PolicyUpdate


def policy_state(update: PolicyUpdate | None) -> dict[str, Any] | None:
    """Return a policy as plain values and a copy of its weights, or None if there is no policy."""
    if update is None:
        return None
    plain = asdict(update)
    plain["weights"] = update.weights.copy()
    plain["layout"] = [[name, list(shape)] for name, shape in update.layout]
    return plain


def policy_from_state(plain: Mapping[str, Any] | None) -> PolicyUpdate | None:
    """Invert `policy_state`."""
    if plain is None:
        return None
    layout = tuple((str(name), tuple(int(s) for s in shape)) for name, shape in plain["layout"])
    return PolicyUpdate(**{**plain, "layout": layout})


def generator_state(random: np.random.Generator) -> dict[str, Any]:
    """Return a generator's state; 128-bit integers become strings, because they are too large for msgpack."""
    state = random.bit_generator.state
    inner = {name: str(value) for name, value in state["state"].items()}
    return {"state": inner, "has_uint32": int(state["has_uint32"]), "uinteger": int(state["uinteger"])}


def restore_generator(random: np.random.Generator, plain: Mapping[str, Any]) -> None:
    """Restore a generator's state, as returned by `generator_state`."""
    random.bit_generator.state = {
        "bit_generator": type(random.bit_generator).__name__,
        "state": {name: int(value) for name, value in plain["state"].items()},
        "has_uint32": plain["has_uint32"],
        "uinteger": plain["uinteger"],
    }
