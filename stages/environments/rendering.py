"""Images from environments that render themselves, through the `render` of Gymnasium and PettingZoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.errors import BrokenEnvironmentError, StageError, describe_error, type_of

PICTURES = "rgb_array"
"""The render mode that returns images."""
_OPENGL = (
    "; on a machine without a display, MuJoCo renders with the environment variable MUJOCO_GL=egl or MUJOCO_GL=osmesa"
)


def picture_of(env: Any, render: Callable[[], Any], name: str) -> NDArray[np.uint8]:
    """Return an environment's rendered image, RGB [height, width, 3].

    Args:
        env: the environment, which states its render mode.
        render: renders the environment.
        name: the environment's name, used in messages.

    Raises:
        StageError: if the environment renders no images, or was made without `render_mode: rgb_array`.
        BrokenEnvironmentError: if rendering fails, or returns no image.
    """
    if getattr(env, "render_mode", None) != PICTURES:
        raise StageError(_why_none(env, name))
    try:
        drawn = render()
        picture: NDArray[np.uint8] = np.empty((), np.uint8) if drawn is None else np.asarray(drawn, np.uint8)
    except Exception as error:
        hint = _OPENGL if any(word in str(error) for word in ("OpenGL", "GLFW", "EGL")) else ""
        raise BrokenEnvironmentError(f"{name}: its render() raised {describe_error(error)}{hint}") from error
    if drawn is None and PICTURES not in _stated(env):  # it may accept the mode without supporting it
        raise StageError(_why_none(env, name))
    if picture.ndim == 2:  # grey
        picture = picture[:, :, None].repeat(3, axis=2)
    if picture.ndim != 3 or picture.shape[2] not in (3, 4):
        got = f"an array of shape {picture.shape}" if picture.ndim else type_of(drawn)
        raise BrokenEnvironmentError(f"{name}: its render() returned {got}; expected an RGB image [height, width, 3]")
    return picture[:, :, :3]


def _why_none(env: Any, name: str) -> str:
    mode = getattr(env, "render_mode", None)
    stated = _stated(env)
    class_name = type(getattr(env, "unwrapped", env)).__qualname__
    cure = (
        f"to get images, set environment.options: {{render_mode: {PICTURES}}}; a factory can also set render_mode "
        "itself"
        if PICTURES in stated
        else f"its metadata lists render_modes {stated}, but not {PICTURES!r}"
    )
    return f"{name} ({class_name}) renders no images: it was made with render_mode {mode!r}; {cure}"


def _stated(env: Any) -> list[str]:
    return list((getattr(env, "metadata", None) or {}).get("render_modes") or ())
