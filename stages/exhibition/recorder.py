"""Records the games of one instance while they are played: a film of each."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult
from headrace.stages.errors import StageError
from headrace.stages.exhibition.drawing import SceneImages
from headrace.stages.exhibition.film import FilmedGroup, Picture
from headrace.stages.exhibition.making import make_shown_group
from headrace.stages.exhibition.standings import Standings
from headrace.stages.exhibition.video_files import GIF_S, Pixels, VideoFile, makes_mp4, open_video

log = logging.getLogger(__name__)


class GameRecorder:
    """Makes environments whose games are filmed, each in a file of its own.

    Args:
        request: for the environments.
        folder: where films are put.
        name: what their names begin with.
        most: games that are filmed; None for all.
    """

    def __init__(self, request: EnvironmentRequest, folder: Path, name: str, most: int | None) -> None:
        self._request = request
        self._folder = folder
        self._name = name
        self._most = most
        self._games = 0

    def make(self) -> EnvironmentGroup:
        """Make them; called again when they have broken.

        Raises:
            StageError: if they can't be filmed.
            BrokenEnvironmentError: if making them failed.
        """
        if not self._games and not makes_mp4():
            log.info("Films are GIFs of the first %.0f s: for whole ones as mp4, pip install 'headrace[video]'.", GIF_S)
        group, film = make_shown_group(self._request, raw=True)
        return RecordedGroup(group, film, self._open)

    def _open(self, fps: float) -> VideoFile | None:
        """Begin the film of another game; None if there are enough."""
        if self._games == self._most:
            return None
        self._games += 1
        try:
            return open_video(self._folder / f"{self._name}-{self._games}", fps)
        except OSError as error:
            raise StageError(f"no film can be written to {self._folder} (--video): {error}") from error


class RecordedGroup:
    """A group of one instance whose games are written to files; what passes through it is as it was.

    Args:
        group: the group; it is closed with this one.
        film: its pictures.
        open_file: begins the film of a game at so many pictures per second; returns None for a game without one.
    """

    def __init__(
        self, group: EnvironmentGroup, film: FilmedGroup, open_file: Callable[[float], VideoFile | None]
    ) -> None:
        self.num_envs = group.num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = group.behavior_specs
        self._group = group
        self._film = film
        self._open_file = open_file
        self._file: VideoFile | None = None
        self._standings = Standings()
        self._scenes: SceneImages | None = None
        self._last: Pixels | None = None
        for name in ("set_parameters", "limits_episodes"):
            if hasattr(group, name):
                setattr(self, name, getattr(group, name))

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset, and begin a film."""
        return self._then(self._group.reset(seed), self._begin)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step, and add the pictures to the film; with the end of a game another one begins."""
        return self._then(self._group.step(actions), self._go_on)

    def close(self) -> Awaitable[None] | None:
        """Finish the film, and close the group."""
        try:
            self._finish()
        finally:
            closing = self._group.close()
        return closing

    def _begin(self, result: StepResult) -> None:
        self._finish()
        self._standings = Standings()
        self._standings.add(result, self.behavior_specs)
        self._file = self._open_file(1 / self._film.frame_s)
        self._add(self._film.take())

    def _go_on(self, result: StepResult) -> None:
        pictures = self._film.take()
        over, _ = self._standings.add(result, self.behavior_specs)
        if not over:
            self._add(pictures)
            return
        self._add(pictures[:-1])  # the last one is of the next game, which begins in the same tick
        self._finish()
        self._file = self._open_file(1 / self._film.frame_s)
        self._add(pictures[-1:])

    def _add(self, pictures: list[Picture]) -> None:
        if self._file is None:
            return
        for picture in pictures:
            try:
                self._file.add(self._image(picture))
            except OSError as error:
                raise StageError(f"{self._file.path} can't be written (--video): {error}") from error

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            raise StageError(f"{file.path} can't be written (--video): {error}") from error
        if file.path.exists():
            log.info("Filmed: %s", file.path)

    def _image(self, picture: Picture) -> Pixels:
        if picture.pixels is not None:
            return picture.pixels
        assert self._film.display is not None, "a picture is shapes or an image"
        if self._scenes is None:
            self._scenes = SceneImages(self._film.display)
        return self._scenes.image(picture.shapes or [])

    def _then(
        self, result: StepResult | Awaitable[StepResult], follow: Callable[[StepResult], None]
    ) -> StepResult | Awaitable[StepResult]:
        if inspect.isawaitable(result):
            return self._later(result, follow)
        self.behavior_specs = self._group.behavior_specs
        follow(result)
        return result

    async def _later(self, result: Awaitable[StepResult], follow: Callable[[StepResult], None]) -> StepResult:
        arrived = await result
        self._then(arrived, follow)
        return arrived
