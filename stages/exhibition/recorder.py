"""Records the games of one instance during play: one video per game, each in its own file.

PyAV (the extra `video`) writes videos as mp4 (H.264). Without PyAV, Pillow writes short and small GIFs.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.queues.disks import answered
from headrace.queues.files import REAL, File, write_atomic
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult
from headrace.stages.errors import StageError
from headrace.stages.exhibition.film import FilmedGroup, Picture, WatchedGroup, make_shown_group
from headrace.stages.exhibition.show import Standings
from headrace.stages.games.drawing import SceneImages
from headrace.startup_context import shown

Pixels = NDArray[np.uint8]
"""An RGB image [height, width, 3]."""

GIF_S = 20.0
"""Maximum length of a GIF in seconds; a GIF is held in memory until it is written."""
GIF_FPS = 25.0
"""Maximum frame rate of a GIF, close to the maximum that browsers can show."""
GIF_WIDTH = 400
"""Maximum width of a GIF in pixels."""
_LOOKED_AT = 16
"""Number of frames that determine a GIF's colours."""
_CODECS = ("libx264", "libopenh264", "mpeg4")
"""Codecs for mp4, best first; ffmpeg builds in Linux distributions may not have those for H.264."""
_UNFINISHED = ".part"


def makes_mp4() -> bool:
    """Return True if PyAV is installed."""
    return find_spec("av") is not None


class Mp4File:
    """A video in mp4 format.

    Args:
        path: the file's path without its suffix.
        fps: frames per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        import av

        self.path = path.with_name(f"{path.name}.mp4")
        self._unfinished = self.path.with_name(self.path.name + _UNFINISHED)
        self._av: Any = av
        codec = next(name for name in _CODECS if name in av.codecs_available)
        self._file = File(self._unfinished, "wb")
        self._container: Any = av.open(self._file, "w", format="mp4")
        self._stream: Any = self._container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        self._stream.pix_fmt = "yuv420p"  # the only pixel format that all browsers show
        self._size: tuple[int, int] | None = None

    def add(self, image: Pixels) -> None:
        """Add a frame, scaled to the first frame's size if necessary."""
        if self._size is None:
            self._size = image.shape[1] + image.shape[1] % 2, image.shape[0] + image.shape[0] % 2
            self._stream.width, self._stream.height = self._size
        if self._size != (image.shape[1], image.shape[0]):
            image = np.asarray(Image.fromarray(image).resize(self._size))
        self._put(self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24"))

    def close(self) -> None:
        """Finish the file; a video without frames leaves no file."""
        if self._size is not None:
            self._put(None)
        self._container.close()
        self._file.close()
        if self._size is None:
            REAL.remove(self._unfinished)
        else:
            REAL.replace(self._unfinished, self.path)

    def _put(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


class GifFile:
    """A video's first seconds as a GIF.

    Args:
        path: the file's path without its suffix.
        fps: frames per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path.with_name(f"{path.name}.gif")
        self._every = max(1, round(fps / GIF_FPS))
        self._frame_ms = 1000 * self._every / fps
        self._most = round(1000 * GIF_S / self._frame_ms)
        self._added = 0
        self._size = (0, 0)
        self._pictures: list[bytes] = []
        """RGB frames, compressed; games' frames have flat colours, which compress well."""

    def add(self, image: Pixels) -> None:
        """Add a frame, unless the GIF skips it."""
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
        """Write the file; a video without frames leaves no file."""
        if not self._pictures:
            return
        # One palette, taken from frames throughout the video, and no dithering: static parts stay equal and take no
        # space.
        sampled = np.linspace(0, len(self._pictures) - 1, min(_LOOKED_AT, len(self._pictures))).astype(int)
        seen = [self._picture(self._pictures[frame]) for frame in sampled]
        palette = Image.fromarray(np.concatenate([np.asarray(picture) for picture in seen])).quantize(255)
        frames = (
            self._picture(picture).quantize(palette=palette, dither=Image.Dither.NONE) for picture in self._pictures
        )
        how = {"duration": round(self._frame_ms), "loop": 0, "optimize": False}
        write_atomic(self.path, lambda file: next(frames).save(file, "GIF", save_all=True, append_images=frames, **how))
        self._pictures.clear()

    def _picture(self, kept: bytes) -> Image.Image:
        return Image.frombytes("RGB", self._size, zlib.decompress(kept))


VideoFile = Mp4File | GifFile
"""A video that is being written. Its file exists once the video is closed."""

log = logging.getLogger(__name__)


class GameRecorder:
    """Makes environments that record each game to its own video file.

    Args:
        request: the request for the environments.
        folder: the videos' folder.
        name: the prefix of the videos' file names.
        most: the maximum number of games to record; None for all.
    """

    def __init__(self, request: EnvironmentRequest, folder: Path, name: str, most: int | None) -> None:
        self._request = request
        self._folder = folder
        self._name = name
        self._most = most
        self._games = 0

    def make(self) -> EnvironmentGroup:
        """Make the environments; this is called again if they break.

        Raises:
            StageError: if the environments can't be recorded.
            BrokenEnvironmentError: if an environment fails while it is made.
        """
        if not self._games and not makes_mp4():
            log.info(
                'Videos are GIFs of the first %.0f s; for complete videos in mp4: pip install "headrace[video]".', GIF_S
            )
        group, film = make_shown_group(self._request, raw=True)
        return RecordedGroup(group, film, self._open)

    def _open(self, fps: float) -> VideoFile | None:
        """Open the next game's video; return None if enough games have been recorded."""
        if self._games == self._most:
            return None
        self._games += 1
        with _writing(path := self._folder / f"{self._name}-{self._games}"):
            REAL.make_folder(self._folder)
            return Mp4File(path, fps) if makes_mp4() else GifFile(path, fps)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StageError(f"can't write {path} (--video): {error}") from error


class RecordedGroup(WatchedGroup):
    """A group with one instance that writes its games to video files.

    Args:
        group: the wrapped group, which is closed together with this one.
        film: the source of frames.
        open_file: opens a game's video, given the frame rate; returns None if this game is not recorded.
    """

    def __init__(
        self, group: EnvironmentGroup, film: FilmedGroup, open_file: Callable[[float], VideoFile | None]
    ) -> None:
        super().__init__(group)
        self._film = film
        self._open_file = open_file
        self._file: VideoFile | None = None
        self._standings = Standings()
        self._scenes: SceneImages | None = None

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset, and start a video."""
        return self._then(self._group.reset(seed), self._begin)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step, and add the frames to the video; when a game ends, start the next video."""
        return self._then(self._group.step(actions), self._go_on)

    def close(self) -> Awaitable[None] | None:
        """Finish the video, and close the wrapped group."""
        try:
            self._finish()
        finally:
            closing = super().close()
        return closing

    def _begin(self, result: StepResult) -> None:
        self._finish()
        self._standings = Standings()
        self._standings.begin(result)
        self._file = self._open_file(1 / self._film.frame_s)
        self._add(self._film.take())

    def _go_on(self, result: StepResult) -> None:
        pictures = self._film.take()
        over, _ = self._standings.add(result, self.behavior_specs)
        if not over:
            self._add(pictures)
            return
        self._add(pictures[:-1])  # the last frame shows the next game, which starts at the same tick
        self._finish()
        self._file = self._open_file(1 / self._film.frame_s)
        self._add(pictures[-1:])

    def _add(self, pictures: list[Picture]) -> None:
        if self._file is None:
            return
        with _writing(self._file.path):
            for picture in pictures:
                self._file.add(self._image(picture))

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        with _writing(file.path):
            file.close()
            if answered(file.path, file.path.exists):
                log.info("Filmed: %s", shown(file.path))

    def _image(self, picture: Picture) -> Pixels:
        if picture.pixels is not None:
            return picture.pixels
        assert self._film.display is not None, "a picture is shapes or an image"
        if self._scenes is None:
            self._scenes = SceneImages(self._film.display)
        return self._scenes.image(picture.shapes or [])
