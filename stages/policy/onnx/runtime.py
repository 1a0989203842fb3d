"""An ONNX model in onnxruntime, read as Unity reads it: names, shapes, and the constants of a run on zeros."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from queues.messages import Array, Floats
from stages.errors import StageError

MISSING = "playing an .onnx model needs onnxruntime: python -m pip install 'headrace[onnx]'"


class Runtime:
    """A model, ready to run; computes in one thread: batches of actors are small, and other processes need cores.

    Args:
        model: the file, or its content.

    Attributes:
        shapes: of the inputs by name, without the batch's axis; None stands for a size that is open.
        outputs: names, in the model's order.

    Raises:
        StageError: if onnxruntime is not installed or can't run the file, or an input is not of float32.
    """

    def __init__(self, model: Path | bytes) -> None:
        self._where = str(model) if isinstance(model, Path) else "the exported model"
        self._session = _session(model, self._where)
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        for given in self._session.get_inputs():
            if given.type != "tensor(float)":
                raise StageError(f"{self._where}: its input {given.name} is a {given.type}, expected tensor(float)")
            if not given.shape or isinstance(given.shape[0], int):
                raise StageError(
                    f"{self._where}: its input {given.name} has the shape {given.shape}, whose first axis is not open: "
                    "expected a model for any number of agents, as ML-Agents exports them"
                )
            self.shapes[given.name] = tuple(n if isinstance(n, int) else None for n in given.shape[1:])
        self.outputs = tuple(given.name for given in self._session.get_outputs())

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Floats]) -> list[Array]:
        """The outputs of these names.

        Raises:
            StageError: if the model fails.
        """
        try:
            return self._session.run(list(outputs), dict(inputs))  # type: ignore[no-any-return]  # untyped
        except Exception as error:  # its errors have no class in common but this one
            raise StageError(f"{self._where}: the model failed: {error}") from error

    def constants(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return the whole numbers in these outputs, as far as the model has them, read as Unity reads them."""
        present = [name for name in names if name in self.outputs]
        if not present:
            return {}
        zeros = {
            name: np.zeros((1, *(1 if n is None else n for n in shape)), np.float32)
            for name, shape in self.shapes.items()
        }
        found = self.run(present, zeros)
        return {name: tuple(int(n) for n in array.reshape(-1)) for name, array in zip(present, found, strict=True)}


def load_onnxruntime() -> Any:
    """Import the package; from version 1.31 on it reports to its makers unless a variable forbids it before the import.

    Raises:
        ImportError: if it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def _session(model: Path | bytes, where: str) -> Any:
    try:
        onnxruntime = load_onnxruntime()
    except ImportError as error:
        raise StageError(f"{where}: {MISSING}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        content = model.read_bytes() if isinstance(model, Path) else model
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise StageError(f"{where}: can't be read: {error.strerror}") from error
    except Exception as error:
        raise StageError(f"{where}: is no model that onnxruntime can run: {error}") from error
