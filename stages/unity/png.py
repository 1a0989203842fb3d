"""Images as PNG, the way that Unity compresses them: three channels a picture, as many pictures as it takes."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray


def encoded_png(image: NDArray[np.uint8]) -> bytes:
    """An image [C, H, W] as PNG files, one behind the other.

    One channel is written three times, so that the mean of the three is that channel; otherwise channels that the last
    picture has no use for are zeros.
    """
    from PIL import Image

    channels, height, width = image.shape
    if channels == 1:
        whole = np.repeat(image, 3, axis=0)
    else:
        whole = np.zeros((-(-channels // 3) * 3, height, width), np.uint8)
        whole[:channels] = image
    data = io.BytesIO()
    for start in range(0, len(whole), 3):
        picture = np.ascontiguousarray(whole[start : start + 3].transpose(1, 2, 0))
        Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()
