"""Adapts `reset` methods without the arguments `seed` or `options`, which Gymnasium and PettingZoo pass."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.stages.errors import StageError

log = logging.getLogger(__name__)

_ARGUMENTS = ("seed", "options")


def accept_any_reset(layers: Sequence[Any], name: str, seeded: Callable[..., Any] | None = None) -> None:
    """Make the `reset` of an environment and of each of its wrappers accept `seed` and `options`.

    A wrapper passes the seed to the wrapped environment; the environment's old `seed()` method, if any, receives it.

    Args:
        layers: the environment and its wrappers, the outermost first.
        name: the environment's name, used in messages.
        seeded: the base class's `reset`, which seeds the random numbers that the base class provides.
    """
    for inner, layer in zip([*layers[1:], None], layers, strict=True):
        missing = [argument for argument in _ARGUMENTS if argument not in taken_by(layer.reset)]
        if missing:
            text = (
                f"reset{inspect.signature(layer.reset)} of {type(layer).__name__} does not accept "
                f"{' or '.join(missing)}"
            )
            _warn_once(f"{name}: {text}", "seed" in missing)
            layer.reset = _Reset(layer, missing, inner, seeded, f"{name}: {text}")


class _Reset:
    """Calls a `reset` with the arguments that it takes."""

    def __init__(
        self, layer: Any, missing: Sequence[str], inner: Any, seeded: Callable[..., Any] | None, lack: str
    ) -> None:
        self._layer, self._inner, self._seeded, self._lack = layer, inner, seeded, lack
        self._reset = layer.reset
        self._missing = missing

    def __call__(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        if options and "options" in self._missing:
            raise StageError(
                f"{self._lack}, through which it receives the parameters of an episode ({', '.join(options)}); write "
                "`def reset(self, *, seed=None, options=None)`"
            )
        if seed is not None and "seed" in self._missing:
            self._seed(seed)
        given = {"seed": seed, "options": options}
        return self._reset(**{key: value for key, value in given.items() if key not in self._missing})

    def _seed(self, seed: int) -> None:
        if self._inner is not None:
            self._inner.reset(seed=seed)
            return
        if self._seeded is not None:
            self._seeded(self._layer, seed=seed)
        if callable(old := getattr(self._layer, "seed", None)):
            old(seed)


def taken_by(reset: Callable[..., Any]) -> Sequence[str]:
    """Return which of `seed` and `options` a `reset` takes; both if it has no signature, or takes any arguments."""
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return _ARGUMENTS
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return _ARGUMENTS
    return [name for name, each in parameters.items() if each.kind is not each.POSITIONAL_ONLY]


_warned: set[str] = set()


def _warn_once(text: str, unseeded: bool) -> None:
    if text not in _warned:
        _warned.add(text)
        why = "; its seed is set through its seed() method and its np_random, if they exist" if unseeded else ""
        log.warning("%s%s. Expected: def reset(self, *, seed=None, options=None)", text, why)
