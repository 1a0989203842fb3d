"""An ONNX model in onnxruntime, read as Unity reads it: names, shapes, and the constants of a run on zeros."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from headrace.queues.messages import Array, Floats
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx.messages import ModelProto

MISSING = "playing an .onnx model needs onnxruntime: python -m pip install 'headrace[onnx]'"


class Runtime:
    """A model, ready to run; computes in one thread: batches of actors are small, and other processes need cores.

    Args:
        model: the file, or its content.

    Attributes:
        shapes: of the inputs by name, without the batch's axis; None stands for a size that is open.
        outputs: names, in the model's order.
        properties: texts by key, which the model's maker has kept in it.

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
        self.properties: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Floats]) -> list[Array]:
        """The outputs of these names.

        Raises:
            StageError: if the model fails.
        """
        try:
            return self._session.run(list(outputs), dict(inputs))  # type: ignore[no-any-return]  # untyped
        except Exception as error:  # its errors have no class in common but this one
            raise StageError(f"{self._where}: the model failed: {error}") from error

    def on_zeros(self, names: Sequence[str]) -> dict[str, Array]:
        """Return these outputs, as far as the model has them, for an agent that observes zeros: so Unity reads them."""
        present = [name for name in names if name in self.outputs]
        if not present:
            return {}
        zeros = {
            name: np.zeros((1, *(1 if n is None else n for n in shape)), np.float32)
            for name, shape in self.shapes.items()
        }
        return dict(zip(present, self.run(present, zeros), strict=True))


def whole_numbers(constant: Array | None) -> tuple[int, ...]:
    """The whole numbers of an output that states some; those that are not finite are 0, and so is what is not there."""
    if constant is None or not constant.size:
        return (0,)
    flat = constant.reshape(-1)
    return tuple(int(n) for n in np.where(np.isfinite(flat), flat, 0).tolist())


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
        content = _without_empty_outputs(model.read_bytes() if isinstance(model, Path) else model)
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise StageError(f"{where}: can't be read: {error.strerror}") from error
    except Exception as error:
        raise StageError(f"{where}: is no model that onnxruntime can run: {error}") from error


def _without_empty_outputs(content: bytes) -> bytes:
    """Drop outputs that a model declares and no node makes, which Unity's own conversion to its package 3.0 left."""
    try:
        model = ModelProto.FromString(content)
    except DecodeError:
        return content  # refused by onnxruntime
    graph = model.graph
    made = {name for node in graph.node for name in node.output}
    made |= {given.name for given in (*graph.initializer, *graph.input)}
    empty = [output for output in graph.output if output.name not in made]
    if not empty:
        return content
    for output in empty:
        graph.output.remove(output)
    changed: bytes = model.SerializeToString()
    return changed
