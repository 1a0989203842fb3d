"""Video: frames of one instance in a group, captured during its steps."""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, WrappedGroup
from headrace.stages.errors import StageError
from headrace.stages.games.scene import Display, SupportsScenes

USUAL_FPS = 30.0
"""The default frame rate, for environments that state none."""
_QUALITY = 88
"""JPEG quality; lower values blur the edges of the flat colours that games use."""
_MOST_WAITING = 64
"""Maximum number of frames stored until the next `take`."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame: the appearance of a game at one moment, as shapes or as an image."""

    shapes: list[Any] | None = None
    image: bytes = b""
    """The image as JPEG; empty for shapes."""
    pixels: NDArray[np.uint8] | None = None
    """The uncompressed image, RGB [height, width, 3]; None unless the video is uncompressed."""
    score: Mapping[str, int] = field(default_factory=dict)
    """Points in the running game, keyed by behaviour id."""
    heads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Coordinates of the top of the agent that a person plays, keyed by behaviour id."""


@runtime_checkable
class Rendering(Protocol):
    """A group that can render its instances as images."""

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return an RGB image [height, width, 3]."""
        ...


class WatchedGroup(WrappedGroup):
    """A group that is observed during its steps; all calls and results pass through unchanged.

    Args:
        group: the wrapped group, which is closed together with this one.
    """

    _group: Any

    def __init__(self, group: EnvironmentGroup) -> None:
        super().__init__(group)
        self.behavior_specs: Mapping[str, BehaviorSpec] = group.behavior_specs
        for name in ("set_parameters", "limits_episodes"):
            if hasattr(group, name):
                setattr(self, name, getattr(group, name))

    def _then(
        self, result: StepResult | Awaitable[StepResult], follow: Callable[[StepResult], None]
    ) -> StepResult | Awaitable[StepResult]:
        """Return the result, and call `follow` once the result is available."""
        if inspect.isawaitable(result):
            return self._later(result, follow)
        self.behavior_specs = self._group.behavior_specs
        follow(result)
        return result

    async def _later(self, result: Awaitable[StepResult], follow: Callable[[StepResult], None]) -> StepResult:
        arrived = await result
        self._then(arrived, follow)
        return arrived


class FilmedGroup(WatchedGroup):
    """A group that captures a frame of each environment step, even if a wrapper holds an action for several steps.

    Args:
        group: a `SupportsScenes` or `Rendering` group, which is closed together with this one.
        raw: whether images stay uncompressed instead of being encoded as JPEG.
    """

    def __init__(self, group: EnvironmentGroup, raw: bool = False) -> None:
        super().__init__(group)
        self._raw = raw
        self.display: Display | None = None
        self._waiting: list[Picture] = []
        if isinstance(group, SupportsScenes):
            self.display = group.display
            group.on_tick = self._expose

    @property
    def frame_s(self) -> float:
        """Seconds between two frames, at the game's own pace."""
        return self.display.frame_s if self.display is not None else 1.0 / frames_per_second(self._group)

    @property
    def sides(self) -> Mapping[str, str]:
        """The name to show for each behaviour id's side, as stated by the game; empty if the game states none."""
        stated = getattr(self._group, "metadata", {}).get("sides")
        return self.display.sides if self.display is not None else stated if isinstance(stated, Mapping) else {}

    @property
    def agents(self) -> Mapping[str, Sequence[str]]:
        """The names of each behaviour id's current agents; empty if agents have no names."""
        agents = getattr(self._group, "agents", None)
        return agents if isinstance(agents, Mapping) else {}

    @property
    def score(self) -> Mapping[str, int]:
        """Points in the running game, keyed by behaviour id; empty for games without points."""
        score: Mapping[str, int] = {} if self.display is None else self._group.scene(0).score
        return score

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset, and capture a frame."""
        self._waiting.clear()
        return self._then(self._group.reset(seed), self._expose)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step, and capture a frame, unless the group captures frames during the step."""
        return self._then(self._group.step(actions), self._expose if self.display is None else _pass_on)

    def take(self) -> list[Picture]:
        """Return the frames captured since the last call."""
        taken, self._waiting = self._waiting, []
        return taken

    def now(self) -> Picture:
        """Return a frame of the current state."""
        if self.display is None:
            image = self._group.render(0)
            return Picture(pixels=np.array(image)) if self._raw else Picture(image=encode(image))
        scene = self._group.scene(0)
        return Picture(scene.shapes, score=scene.score, heads=scene.heads)

    def _expose(self, _: StepResult | None = None) -> None:
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(self.now())


def _pass_on(_: StepResult) -> None:
    """Do nothing, because the group has captured its frames during the step."""


def frames_per_second(group: Any) -> float:
    """Return the frame rate that an environment states in its metadata (`render_fps`), or the default."""
    stated = getattr(group, "metadata", {}).get("render_fps")
    return float(stated) if isinstance(stated, int | float) and 0 < stated <= 1000 else USUAL_FPS


def encode(image: NDArray[np.uint8]) -> bytes:
    """Encode an RGB image as JPEG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()


# Images from an agent's observations, for environments that render nothing, such as Atari's own vectorised one.

_IMAGE_RANK = 3


class ObservationPictures(WatchedGroup):
    """A group with one instance whose image is the newest one among an agent's observations.

    Args:
        group: the wrapped group, which is closed together with this one.
    """

    def __init__(self, group: EnvironmentGroup) -> None:
        super().__init__(group)
        self._seen: NDArray[np.uint8] | None = None
        if hasattr(group, "metadata"):
            self.metadata = group.metadata

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset, and keep the newest image."""
        return self._then(self._group.reset(seed), self._look)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step, and keep the newest image."""
        return self._then(self._group.step(actions), self._look)

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return the newest image observed, as RGB [height, width, 3].

        Raises:
            StageError: if no observation is an image.
        """
        if self._seen is None:
            raise StageError("the environment does not render, and has no image observation to show instead")
        return self._seen

    def _look(self, result: StepResult) -> None:
        for behavior_id, steps in result.steps.items():
            for spec, observed in zip(self.behavior_specs[behavior_id].observations, steps.observations, strict=True):
                if len(spec.shape) == _IMAGE_RANK and len(observed):
                    self._seen = to_rgb(observed[-1], spec)  # the last rows belong to running episodes
                    return


def to_rgb(image: NDArray[np.generic], spec: ObservationSpec) -> NDArray[np.uint8]:
    """Return an observed image as RGB [height, width, 3].

    If the image does not have 3 channels, show its last channel in grey.

    Args:
        image: an image of the spec's shape; floats range from 0 to 1.
        spec: the image's spec, which says where the channels are.
    """
    pixels = image if spec.channels_last else np.moveaxis(image, 0, 2)
    if pixels.shape[2] != 3:
        pixels = pixels[:, :, -1:].repeat(3, axis=2)
    if np.issubdtype(pixels.dtype, np.floating):
        pixels = (pixels * 255).clip(0, 255)
    return np.array(pixels, np.uint8, order="C")  # copied, because the environment reuses its array
