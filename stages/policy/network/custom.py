"""A custom network (`network_settings.network`), which replaces the encoders and hidden layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.config.errors import KeyPath
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.stages.errors import StageError, blaming, describe_error
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.images import pixels
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import ObservationLayout

_TRIED_ROWS = 3
"""Number of rows in the trial run. With more than one row, the trial run fails if a network confuses its axes."""


def find_network(reference: str, folder: Path | None, path: KeyPath, label: str) -> type[nn.Module]:
    """Return the class that a `network` setting refers to.

    Args:
        reference: `module:Class`.
        folder: the YAML's folder, whose modules are importable.
        path: the path of the setting's key in the YAML.
        label: the name of the setting in messages.

    Raises:
        LoadError: if the module can't be imported or has no such class.
        StageError: if the class is not a torch module.
    """
    with blaming(*path):
        attribute = load_attribute(reference, folder, "network")
        if not (inspect.isclass(attribute) and issubclass(attribute, nn.Module)):
            what = f"the class {attribute.__name__}" if inspect.isclass(attribute) else repr(attribute)
            raise StageError(f"{label} is {what}; expected a subclass of torch.nn.Module")
    network_class: type[nn.Module] = attribute
    return network_class


class CustomNetwork(nn.Module):
    """Passes observations to the user's module according to the protocol in docs/extending.md, after one trial run.

    Attributes:
        size: width of the encoding.
        goal_size: 0, because the module itself decides how to use a goal.

    Raises:
        LoadError: if the module can't be imported or has no such class.
        StageError: if the class is not a torch module, can't be constructed, has no `encoding_size`, fails on all-zero
            observations, or returns an encoding whose width differs from `encoding_size`.
    """

    def __init__(self, design: PolicyDesign) -> None:
        super().__init__()
        reference, specs, layout = design.settings.network, design.spec.observations, ObservationLayout(design.spec)
        assert reference is not None, "only for designs that name a network"
        self._label = f"{design.spec.behavior_id}: {design.key}.network {reference!r}"
        self._specs, self._columns = specs, dict(layout.vectors)
        self._others = {index: at for at, index in enumerate(layout.others)}
        path = ("behaviors", design.spec.name, *design.key.split("."), "network")
        make = find_network(reference, design.folder, path, self._label)
        self.network: nn.Module = self._guarded(
            lambda: make(specs, design.settings), "could not be created with (observations, settings)"
        )
        self._check_layers()
        size = getattr(self.network, "encoding_size", None)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise StageError(
                f"{self._label}: its attribute encoding_size, the width of what forward returns, must be a positive "
                f"integer, got {size!r}; set it in __init__"
            )
        self.size, self.goal_size = size, 0
        zeros = [torch.zeros(_TRIED_ROWS, *specs[index].shape) for index in layout.others]
        self._try(Inputs(torch.zeros(_TRIED_ROWS, layout.vector_size), tuple(zeros)))

    def forward(self, inputs: Inputs) -> tuple[Tensor, None]:
        """Return the encoding [B, size] of B rows, and no memories."""
        encoding: Tensor = self.network(self._observations(inputs))
        return encoding, None

    def _observations(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return one float32 tensor per observation, in spec order."""
        observations = []
        for index, spec in enumerate(self._specs):
            if index in self._columns:
                observations.append(inputs.vectors[:, self._columns[index]])
            else:
                other = inputs.others[self._others[index]]
                observations.append(pixels(other) if OBSERVATION_KINDS[spec.kind].pixels else other.float())
        return tuple(observations)

    def _check_layers(self) -> None:
        for name, module in self.network.named_modules():
            # Running statistics are not parameters, so they would not be sent to actors or saved in checkpoints with
            # the weights.
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
                raise StageError(
                    f"{self._label}: its layer {name!r} ({type(module).__name__}) keeps running statistics, which the "
                    "actors do not receive; use nn.LayerNorm or nn.GroupNorm, or normalize: true for vectors"
                )
        for name, parameter in self.network.named_parameters():
            if parameter.dtype != torch.float32:
                raise StageError(f"{self._label}: its parameter {name!r} is {parameter.dtype}; expected torch.float32")

    def _try(self, zeros: Inputs) -> None:
        """Run the module once on zeros, so mistakes are reported before training."""
        shapes = [tuple(observation.shape) for observation in self._observations(zeros)]
        with torch.no_grad():
            encoding = self._guarded(lambda: self(zeros)[0], f"failed on observations of shapes {shapes}")
        expected = (_TRIED_ROWS, self.size)
        if not isinstance(encoding, Tensor) or tuple(encoding.shape) != expected:
            got = f"shape {tuple(encoding.shape)}" if isinstance(encoding, Tensor) else type(encoding).__name__
            raise StageError(
                f"{self._label}: forward returned {got} for {_TRIED_ROWS} rows; expected a tensor of shape {expected}, "
                "[rows, encoding_size]"
            )

    def _guarded(self, call: Callable[[], Any], problem: str) -> Any:
        try:
            return call()
        except Exception as error:
            raise StageError(f"{self._label} {problem}: {describe_error(error)}") from error
