"""Pictures of Godot's cameras: the engine's bytes as hexadecimal digits."""

from __future__ import annotations

import binascii
import math

import numpy as np
from numpy.typing import NDArray

CHANNELS = (3, 4)
"""Of the engine's pictures: colours, and colours with transparency."""

NO_WINDOW = (
    "an engine without a window draws nothing: set engine_settings.no_graphics to false (--viz), and where there is no "
    "display put xvfb-run before the command"
)
"""Why cameras may fail, and what to do."""


class WrongPicture(ValueError):
    """A text that is not the picture which was announced; the words follow "a picture" in a sentence."""


def read_picture(text: str, shape: tuple[int, ...], channels_last: bool) -> NDArray[np.uint8]:
    """Read a picture of a shape: [height, width, channels], or [channels, height, width].

    An engine may send transparency that the addon has not announced, as Godot 4's Compatibility renderer does of each
    viewport, or none where it has; then it is dropped, or everything is opaque.

    Raises:
        WrongPicture: if these are no digits, or the picture is of another size.
    """
    try:
        data = np.frombuffer(binascii.unhexlify(text), np.uint8)
    except ValueError as error:
        raise WrongPicture(f"of no such digits: {error}") from None
    if len(data) == math.prod(shape):
        return data.reshape(shape)
    if channels_last and shape[2] in CHANNELS:
        height, width, announced = shape
        sent = sum(CHANNELS) - announced
        if len(data) == height * width * sent:
            picture = np.full(shape, 255, np.uint8)
            picture[..., :3] = data.reshape(height, width, sent)[..., :3]
            return picture
    raise WrongPicture(
        f"of {len(data):,} bytes, expected {math.prod(shape):,} ({'×'.join(map(str, shape))}, as announced)"
    )
