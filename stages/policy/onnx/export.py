"""Writes a torch module as an `.onnx` file with torch's exporter."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from importlib import metadata
from threading import Lock

import onnx
import torch
from torch import Tensor, nn

from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.contract import sealed

BATCH = "batch"
"""Name of the only axis with a dynamic size."""
OPSET = 9
"""The operator set that all versions of Unity's runtimes, Barracuda and Sentis, can read."""
_PRODUCER = "headrace"
_ROWS = 2
"""Number of rows in the trial run. With a single row, the exporter would fix the batch axis at size 1."""
_EXPORTING = Lock()
"""The exporter keeps the state of an export in module variables."""


class ExportedModule(nn.Module):
    """A torch module that computes a model's outputs from its inputs.

    Attributes:
        inputs: the shape of each float32 input, keyed by name, without the batch axis.
        constants: the outputs that do not depend on the inputs, and have no batch axis.
    """

    inputs: Mapping[str, Sequence[int]]
    constants: Sequence[str] = ()

    def outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Compute the outputs, keyed by name, in the model's order."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs, whose names the exporter takes separately."""
        return tuple(self.outputs(*inputs).values())


# Why torch's exporter writes all models: docs/decisions/059, which replaces docs/decisions/056.
def write_model(
    module: ExportedModule,
    name: str,
    what: str,
    opset: int = OPSET,
    about: str = "",
    notes: Mapping[str, str] | None = None,
) -> bytes:
    """Return a module as the content of an `.onnx` file; torch's global random state does not change.

    Args:
        module: the module, with its weights.
        name: the graph's name.
        what: the part of the module that may be impossible to write, for messages.
        opset: the operator set's version.
        about: a human-readable line to store in the file.
        notes: machine-readable strings to store in the file, keyed by name.

    Raises:
        StageError: if torch can't write the module; the message says why.
    """
    examples = tuple(torch.zeros(_ROWS, *shape) for shape in module.inputs.values())
    file = io.BytesIO()
    with _EXPORTING, warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")  # the exporter warns about itself, and about each size it makes constant
        outputs = module.outputs(*examples)
        try:
            torch.onnx.export(
                module.eval(),
                examples,
                file,  # type: ignore[arg-type]  # this exporter writes into any file
                input_names=list(module.inputs),
                output_names=list(outputs),
                dynamic_axes={key: {0: BATCH} for key in (*module.inputs, *outputs) if key not in module.constants},
                opset_version=opset,
                dynamo=False,  # the newer exporter does not write operator sets as old as Unity's runtimes need
            )
        except Exception as error:
            text = " ".join(str(error).split())
            raise StageError(
                f"{what} can't be written to ONNX (operator set {opset}): {type(error).__name__}: {text}"
            ) from error
    model = onnx.load_from_string(file.getvalue())
    model.producer_name, model.producer_version = _PRODUCER, _version()
    model.graph.name, model.doc_string = name, about
    for output, value in zip(model.graph.output, outputs.values(), strict=True):
        # The exporter does not know all sizes behind a Reshape.
        for axis, size in zip(output.type.tensor_type.shape.dim, value.shape, strict=True):
            if axis.dim_param != BATCH:
                axis.dim_value = size
    onnx.helper.set_model_props(model, dict(notes or {}))
    return sealed(model.SerializeToString(deterministic=True))


def _version() -> str:
    try:
        return metadata.version(_PRODUCER)
    except metadata.PackageNotFoundError:  # running from a checkout that is not installed
        return "unknown"
