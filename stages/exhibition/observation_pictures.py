"""Pictures of what an agent observes, for environments that draw nothing: Atari's vectorised implementation is one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environment.protocol import EnvironmentGroup, StepResult
from headrace.stages.errors import StageError

_IMAGE_RANK = 3


class ObservationPictures:
    """A group of one instance whose picture is the newest image that an agent observes.

    Args:
        group: the group; it is closed with this one.
    """

    def __init__(self, group: EnvironmentGroup) -> None:
        self.num_envs = group.num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = group.behavior_specs
        self._group = group
        self._seen: NDArray[np.uint8] | None = None
        for name in ("set_parameters", "limits_episodes", "metadata"):
            if hasattr(group, name):
                setattr(self, name, getattr(group, name))

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset, and look."""
        return self._look(self._group.reset(seed))

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step, and look."""
        return self._look(self._group.step(actions))

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """Return what was observed last, as an RGB image [height, width, 3].

        Raises:
            StageError: if nothing that is observed is an image.
        """
        if self._seen is None:
            raise StageError("the environment draws nothing, and observes no image that could be shown instead")
        return self._seen

    def close(self) -> Awaitable[None] | None:
        """Close the group."""
        return self._group.close()

    def _look(self, result: StepResult | Awaitable[StepResult]) -> StepResult | Awaitable[StepResult]:
        if inspect.isawaitable(result):
            return self._later(result)
        self.behavior_specs = self._group.behavior_specs
        for behavior_id, steps in result.steps.items():
            for spec, observed in zip(self.behavior_specs[behavior_id].observations, steps.observations, strict=True):
                if len(spec.shape) == _IMAGE_RANK and len(observed):
                    self._seen = to_rgb(observed[-1], spec)  # the last rows are of running episodes
                    return result
        return result

    async def _later(self, result: Awaitable[StepResult]) -> StepResult:
        arrived = await result
        self._look(arrived)
        return arrived


def to_rgb(image: NDArray[np.generic], spec: ObservationSpec) -> NDArray[np.uint8]:
    """Return an observed image as RGB [height, width, 3]; of another number of channels the last one, in grey.

    Args:
        image: of the spec's shape; floats are 0 to 1.
        spec: says where its channels are.
    """
    pixels = image if spec.channels_last else np.moveaxis(image, 0, 2)
    if pixels.shape[2] != 3:
        pixels = pixels[:, :, -1:].repeat(3, axis=2)
    if np.issubdtype(pixels.dtype, np.floating):
        pixels = (pixels * 255).clip(0, 255)
    return np.array(pixels, np.uint8, order="C")  # a copy: the environment goes on with its own
