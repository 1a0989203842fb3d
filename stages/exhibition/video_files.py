"""Films as files: mp4 (H.264) by PyAV, the extra `video`; without it GIFs by Pillow, which are short and small."""

from __future__ import annotations

import zlib
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
"""An RGB image [height, width, 3]."""

GIF_S = 20.0
"""Seconds of a film that a GIF has: it holds all of its pictures until it is written."""
GIF_FPS = 25.0
"""Pictures per second of a GIF at most; browsers show few more."""
GIF_WIDTH = 400
"""Pixels."""
_LOOKED_AT = 16
"""Pictures that a GIF's colours are chosen from."""
_CODECS = ("libx264", "libopenh264", "mpeg4")
"""Of mp4, the best first; builds of ffmpeg for distributions may lack those of H.264."""
_UNFINISHED = ".part"


class VideoFile(Protocol):
    """A film that is being made; the file of its name is there once it is closed."""

    path: Path

    def add(self, image: Pixels) -> None:
        """Add a picture."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


def open_video(path: Path, fps: float) -> VideoFile:
    """Begin a film, as mp4 where the extra `video` is installed, else as GIF.

    Args:
        path: of the file, without the suffix.
        fps: pictures per second.

    Raises:
        OSError: if it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return Mp4File(path, fps) if makes_mp4() else GifFile(path, fps)


def makes_mp4() -> bool:
    """True if PyAV is there."""
    return find_spec("av") is not None


class Mp4File:
    """A film as mp4.

    Args:
        path: of the file, without the suffix.
        fps: pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        import av

        self.path = path.with_name(f"{path.name}.mp4")
        self._unfinished = self.path.with_name(self.path.name + _UNFINISHED)
        self._av: Any = av
        codec = next(each for each in _CODECS if each in av.codecs_available)
        self._container: Any = av.open(str(self._unfinished), "w", format="mp4")
        self._stream: Any = self._container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        self._stream.pix_fmt = "yuv420p"  # the one that all browsers show
        self._size: tuple[int, int] | None = None

    def add(self, image: Pixels) -> None:
        """Add a picture; one of another size than the first is made as large as it."""
        if self._size is None:
            self._size = image.shape[1] + image.shape[1] % 2, image.shape[0] + image.shape[0] % 2
            self._stream.width, self._stream.height = self._size
        if self._size != (image.shape[1], image.shape[0]):
            image = np.asarray(Image.fromarray(image).resize(self._size))
        self._put(self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24"))

    def close(self) -> None:
        """Finish the file; a film without pictures leaves none."""
        if self._size is not None:
            self._put(None)
        self._container.close()
        if self._size is None:
            self._unfinished.unlink(missing_ok=True)
        else:
            self._unfinished.replace(self.path)

    def _put(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


class GifFile:
    """A film as GIF: its first seconds.

    Args:
        path: of the file, without the suffix.
        fps: pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path.with_name(f"{path.name}.gif")
        self._every = max(1, round(fps / GIF_FPS))
        self._frame_ms = 1000 * self._every / fps
        self._most = round(1000 * GIF_S / self._frame_ms)
        self._added = 0
        self._size = (0, 0)
        self._pictures: list[bytes] = []
        """RGB, compressed: pictures of games have flat colours."""

    def add(self, image: Pixels) -> None:
        """Add a picture, if it is one of those that are kept."""
        if self._added % self._every == 0 and len(self._pictures) < self._most:
            picture = Image.fromarray(image)
            if not self._pictures:
                share = min(1.0, GIF_WIDTH / picture.width)
                self._size = round(picture.width * share), max(1, round(picture.height * share))
            if picture.size != self._size:
                picture = picture.resize(self._size)
            self._pictures.append(zlib.compress(picture.tobytes(), 1))
        self._added += 1

    def close(self) -> None:
        """Write the file; a film without pictures leaves none."""
        if not self._pictures:
            return
        # One palette, of pictures throughout, and no dithering: what does not move stays equal, and costs nothing.
        places = np.linspace(0, len(self._pictures) - 1, min(_LOOKED_AT, len(self._pictures))).astype(int)
        seen = [self._picture(self._pictures[place]) for place in places]
        palette = Image.fromarray(np.concatenate([np.asarray(each) for each in seen])).quantize(255)
        frames = (self._picture(each).quantize(palette=palette, dither=Image.Dither.NONE) for each in self._pictures)
        unfinished = self.path.with_name(self.path.name + _UNFINISHED)
        how = {"duration": round(self._frame_ms), "loop": 0, "optimize": False}
        next(frames).save(unfinished, "GIF", save_all=True, append_images=frames, **how)
        unfinished.replace(self.path)
        self._pictures.clear()

    def _picture(self, kept: bytes) -> Image.Image:
        return Image.frombytes("RGB", self._size, zlib.decompress(kept))
