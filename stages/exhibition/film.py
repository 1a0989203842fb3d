"""Video: frames of one instance in a group, captured during its steps, and the group with the instance that people see.

That group is made for a video, for the live page, or with its own window. A run that can't be shown is refused with a
reason: with `EnvironmentKind.not_shown` before anything is made, or by `make_shown_group` if only the environment
itself reveals the reason.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.config import RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.factory import (
    HUMAN,
    EnvironmentRequest,
    find_factory,
    make_group,
    parameter_names,
    takes_any,
)
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, WrappedGroup
from headrace.stages.environments.rendering import PICTURES
from headrace.stages.errors import StageError
from headrace.stages.games.scene import Display, SupportsScenes
from headrace.stages.user_calls import call_user
from headrace.startup_context import absolute

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
class RenderingGroup(Protocol):
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
        group: a `SupportsScenes` or `RenderingGroup` group, which is closed together with this one.
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
        """Seconds between two frames, at the game's own pace, or at the frame rate in an environment's metadata."""
        if self.display is not None:
            return self.display.frame_s
        stated = getattr(self._group, "metadata", {}).get("render_fps")
        return 1.0 / (float(stated) if isinstance(stated, int | float) and 0 < stated <= 1000 else USUAL_FPS)

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
        return self._then(self._group.step(actions), self._expose if self.display is None else lambda _: None)

    def take(self) -> list[Picture]:
        """Return the frames captured since the last call."""
        taken, self._waiting = self._waiting, []
        return taken

    def now(self) -> Picture:
        """Return a frame of the current state."""
        if self.display is None:
            image = call_user(self._group.render, 0)
            return Picture(pixels=np.array(image)) if self._raw else Picture(image=encode(image))
        scene = self._group.scene(0)
        return Picture(scene.shapes, score=scene.score, heads=scene.heads)

    def _expose(self, _: StepResult | None = None) -> None:
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(self.now())


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
        return self._then(self._group.reset(seed), self._keep_image)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step, and keep the newest image."""
        return self._then(self._group.step(actions), self._keep_image)

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return the newest image observed, as RGB [height, width, 3].

        Raises:
            StageError: if no observation is an image.
        """
        if self._seen is None:
            raise StageError("the environment does not render, and has no image observation to show instead")
        return self._seen

    def _keep_image(self, result: StepResult) -> None:
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


def make_shown_group(request: EnvironmentRequest, raw: bool = False) -> tuple[EnvironmentGroup, FilmedGroup]:
    """Make one instance with its video: return the group to step, and the group that captures frames.

    Args:
        request: the request for the environments.
        raw: whether images stay uncompressed instead of being encoded as JPEG.

    Raises:
        StageError: if the environments can't be shown.
        BrokenEnvironmentError: if the environment fails while it is made.
    """
    if refused := request.config.environment_kind.not_shown:
        raise StageError(refused)
    filmed: list[FilmedGroup] = []

    def film(group: EnvironmentGroup) -> EnvironmentGroup:
        if not isinstance(group, SupportsScenes | RenderingGroup):
            group.close()
            raise StageError(
                f"{type(group).__name__} can't be shown: expected a method render(env_id) that returns an RGB image"
            )
        filmed.append(FilmedGroup(group, raw))
        return filmed[-1]

    as_it_acts = replace(request, config=RunConfig.from_plain(_with_one(request.config), request.config.path))
    try:
        group = make_group(replace(request, config=_drawing(request.config, _with_one(request.config), PICTURES)), film)
        if not _may_act_vectorised(request.config) or _played_in(as_it_acts) == _played_in(group):
            return group, filmed[-1]
        group.close()
    except StageError as error:
        if not _may_act_vectorised(request.config):
            if renders(request.config) and "render_mode" in str(error):  # the user did not set render_mode
                words = f"it can't be shown: images need render_mode: {PICTURES}, but with that setting, {error}"
                raise type(error)(words) from error
            raise
    # Vectorised implementations usually render nothing, and policies trained on this one can't play single
    # environments.
    return make_group(as_it_acts, lambda group: film(ObservationPictures(group))), filmed[-1]


def _played_in(made: EnvironmentRequest | EnvironmentGroup) -> list[tuple[Any, ...]]:
    """Return what policies observe and the actions they take, which are known only after a reset."""
    if isinstance(made, EnvironmentRequest):
        with closing(make_group(made)) as group:
            return _played_in(group)
    made.reset(0)
    return [(name, spec.observations, spec.actions) for name, spec in made.behavior_specs.items()]


def _may_act_vectorised(config: RunConfig) -> bool:
    """Return True if a run may use an environment's own vectorised implementation.

    The environment's id must already be registered.
    """
    settings = config.environment
    if settings is None or settings.kind != "gymnasium" or settings.id is None:
        return False
    from gymnasium import registry

    spec = registry.get(settings.id.rpartition(":")[2])
    mode = settings.options.get("vectorization_mode", "vector_entry_point")
    return spec is not None and spec.vector_entry_point is not None and mode == "vector_entry_point"


def _with_one(config: RunConfig) -> dict[str, Any]:
    """Return the configuration, changed to one instance, as plain data."""
    plain = config.to_plain()
    plain["environment"]["num_envs"] = 1
    return plain


def for_one_window(config: RunConfig) -> RunConfig:
    """Return the configuration, changed to one actor and one instance, which opens a window.

    Raises:
        StageError: if the run's environments have no window.
    """
    if config.builtin_game is not None:
        raise StageError(
            "the built-in games have no window: watch them in the browser with --monitor, or record them with --video "
            "DIR"
        )
    if refused := config.environment_kind.not_shown:
        raise StageError(refused)
    assert config.environment is not None, "it can be shown"
    if not renders(config):
        raise StageError(
            f"environment.factory {config.environment.factory!r} has no render_mode parameter, which would open a "
            "window; add one"
        )
    return _drawing(config, _with_one_actor(config), HUMAN)


def _drawing(config: RunConfig, plain: dict[str, Any], render_mode: str) -> RunConfig:
    """Return the configuration, changed to single environments, with this render mode if they accept render modes."""
    section: dict[str, Any] = plain["environment"]
    options: dict[str, Any] = {**section.get("options", {})}
    if section["kind"] == "gymnasium" and section.get("id"):
        options["vectorization_mode"] = "sync"
    if renders(config):
        options["render_mode"] = render_mode
    section["options"] = options
    return RunConfig.from_plain(plain, config.path)


def for_one_film(config: RunConfig) -> RunConfig:
    """Return the configuration, changed to one actor and one instance, which `make_shown_group` can record.

    The videos' folder is absolute, because the actor may run in a different folder.

    Raises:
        StageError: if the run's environments provide no images.
    """
    if refused := config.environment_kind.not_shown:
        raise StageError(refused)
    plain = _with_one_actor(config)
    if config.inference.video is not None:
        plain["inference"]["video"] = str(absolute(config.inference.video))
    return RunConfig.from_plain(plain, config.path)


def _with_one_actor(config: RunConfig) -> dict[str, Any]:
    """Return the configuration, changed to one actor with one instance, as plain data."""
    plain = _with_one(config)
    plain["pipeline"]["hosts"]["actors"]["replicas"] = 1
    return plain


def renders(config: RunConfig) -> bool:
    """Return True if a run's environments accept a `render_mode`, as those of Gymnasium and PettingZoo do."""
    settings = config.environment
    if settings is None or settings.kind not in ("gymnasium", "pettingzoo"):
        return False
    if settings.id is not None:
        return True
    assert settings.factory is not None, "there is no id"
    make = find_factory(settings.factory, config.source_folder)
    return "render_mode" in parameter_names(make) or takes_any(make)
