"""An ONNX model in onnxruntime, read as Unity reads it: names, shapes, and the constants from a run on zeros.

`stated_notes` reads the spec from the model itself: from its notes, or else from its inputs and constants.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from headrace.config.observation_kinds import kind_of_rank
from headrace.queues.files import read_file
from headrace.queues.messages import Array, Floats
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.onnx import contract
from headrace.stages.policy.onnx.contract import ModelMetadata, is_damaged, read_notes

MISSING = 'playing an .onnx model needs onnxruntime: python -m pip install "headrace[onnx]"'
_IMAGE = re.compile(r"visual_observation_(\d+)")
_NUMBERED = re.compile(r"obs_(\d+)")


class Runtime:
    """A model in onnxruntime. It runs in one thread, because actors' batches are small and other processes need cores.

    Args:
        model: the model's file, or its content.

    Attributes:
        shapes: the shapes of the inputs, keyed by name, without the batch axis; None for a dynamic size.
        outputs: the names of the outputs, in the model's order.
        properties: the strings that the model's producer stored in it, keyed by name.

    Raises:
        StageError: if onnxruntime is not installed or can't run the file, or an input is not float32.
    """

    def __init__(self, model: Path | bytes) -> None:
        self._where = str(model) if isinstance(model, Path) else "the exported model"
        self._session = _session(model, self._where)
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        for value in self._session.get_inputs():
            if value.type != "tensor(float)":
                raise StageError(f"{self._where}: its input {value.name} is a {value.type}; expected tensor(float)")
            if not value.shape or isinstance(value.shape[0], int):
                raise StageError(
                    f"{self._where}: its input {value.name} has shape {value.shape}, whose first axis is fixed: "
                    "expected a model for any number of agents, as ML-Agents exports them"
                )
            self.shapes[value.name] = tuple(n if isinstance(n, int) else None for n in value.shape[1:])
        self.outputs = tuple(value.name for value in self._session.get_outputs())
        self.properties: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Floats]) -> list[Array]:
        """Run the model and return the named outputs.

        Raises:
            StageError: if the model fails.
        """
        try:
            return self._session.run(list(outputs), dict(inputs))  # type: ignore[no-any-return]  # untyped
        except Exception as error:  # onnxruntime's errors have no more specific base class
            raise StageError(f"{self._where}: the model failed: {error}") from error

    def on_zeros(self, names: Sequence[str]) -> dict[str, Array]:
        """Return those of the named outputs that the model has, computed for all-zero inputs as Unity does."""
        present = [name for name in names if name in self.outputs]
        if not present:
            return {}
        zeros = {
            name: np.zeros((1, *(1 if n is None else n for n in shape)), np.float32)
            for name, shape in self.shapes.items()
        }
        return dict(zip(present, self.run(present, zeros), strict=True))


def whole_numbers(constant: Array | None) -> tuple[int, ...]:
    """Return the integers that an output states: 0 for a value that is not finite, (0,) for a missing output."""
    if constant is None or not constant.size:
        return (0,)
    flat = constant.reshape(-1)
    return tuple(int(n) for n in np.where(np.isfinite(flat), flat, 0).tolist())


def stated_version(runtime: Runtime, on_zeros: Mapping[str, Array], where: str) -> int:
    """Return the version of a model's format, from the model's outputs for all-zero inputs.

    Raises:
        StageError: if the model states no version, or a version that Headrace does not read.
    """
    if contract.VERSION_NUMBER not in on_zeros:
        raise StageError(
            f"{where}: is not a model in ML-Agents' format: it has no output {contract.VERSION_NUMBER}, only "
            f"{', '.join(runtime.outputs)}; expected a file that Headrace or ML-Agents has exported"
        )
    version = whole_numbers(on_zeros[contract.VERSION_NUMBER])[0]
    if version not in contract.VERSIONS:
        raise StageError(
            f"{where}: has ML-Agents' model version {version}; expected {' or '.join(map(str, contract.VERSIONS))}; "
            "export it again with a current version"
        )
    return version


def load_onnxruntime() -> Any:
    """Import onnxruntime with its telemetry off.

    Since version 1.31 the package sends telemetry unless an environment variable forbids it before the import.

    Raises:
        ImportError: if onnxruntime is not installed.
    """
    forbidden = "ORT_DISABLE_TELEMETRY"
    said = forbidden in os.environ
    os.environ.setdefault(forbidden, "1")
    try:
        import onnxruntime
    finally:
        if not said:  # a script that calls `run` keeps its environment variables unchanged
            del os.environ[forbidden]
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def _options(onnxruntime: Any, where: str) -> Any:
    options = onnxruntime.SessionOptions()
    # Else a model could read weights from any file in the working directory.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", where)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


_TRIAL_BYTES, _TRIAL_S = 96 << 20, 4.0


@cache
def _limit_trials(onnxruntime: Any) -> None:
    """Register the process's allocator for trials, which takes at most `_TRIAL_BYTES`."""
    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    limits = {"max_mem": _TRIAL_BYTES, "arena_extend_strategy": 1, "initial_chunk_size_bytes": 1 << 20}
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(limits))


def _try(onnxruntime: Any, content: bytes, where: str) -> None:
    """Run a stranger's model once on zeros within limits, because a short model may describe huge or endless work.

    Raises:
        StageError: if the model needs more; other errors are reported when the model is used.
    """
    _limit_trials(onnxruntime)
    options, end = _options(onnxruntime, where), onnxruntime.RunOptions()
    options.log_severity_level = end.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.use_env_allocators", "1")
    timer = threading.Timer(_TRIAL_S, setattr, (end, "terminate", True))
    timer.start()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        shapes = {value.name: [n if isinstance(n, int) else 1 for n in value.shape] for value in session.get_inputs()}
        session.run(None, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, end)
    except Exception as error:
        if end.terminate or isinstance(error, MemoryError | ValueError) or "Available memory of" in str(error):
            raise StageError(
                f"{where}: needs more than {_TRIAL_BYTES:,} bytes or {_TRIAL_S:g} s for one agent whose observations "
                "are zeros, so it is not run; expected a file that Headrace or ML-Agents has exported"
            ) from error
    finally:
        timer.cancel()


def _session(model: Path | bytes, where: str) -> Any:
    try:
        onnxruntime = load_onnxruntime()
    except ImportError as error:
        raise StageError(f"{where}: {MISSING}") from error
    options = _options(onnxruntime, where)
    try:
        content = read_file(model) if isinstance(model, Path) else model
        if is_damaged(content):
            raise StageError(
                f"{where}: is damaged, or another program has changed it: its checksum does not match. Restore it "
                "from a backup, or export it again from its .pt file with --export-onnx"
            )
        _try(onnxruntime, content, where)
        try:
            return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception:
            # Looking for the reason takes the onnx package, which slows the start of a program, so it comes second.
            if (mended := _without_empty_outputs(content)) is None:
                raise
            return onnxruntime.InferenceSession(mended, options, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise StageError(f"{where}: can't be read: {error.strerror}") from error
    except StageError:
        raise
    except Exception as error:
        raise StageError(f"{where}: is not a model that onnxruntime can run: {error}") from error


def _without_empty_outputs(content: bytes) -> bytes | None:
    """Drop outputs that a model declares but no node computes; return None if there are none.

    Unity's conversion to package 3.0 left such outputs, and onnxruntime rejects them.
    """
    import onnx

    try:
        model = onnx.load_from_string(content)
    except DecodeError:
        return None
    graph = model.graph
    computed = {name for node in graph.node for name in node.output}
    computed |= {value.name for value in (*graph.initializer, *graph.input)}
    empty = [output for output in graph.output if output.name not in computed]
    for output in empty:
        graph.output.remove(output)
    changed: bytes = model.SerializeToString()
    return changed if empty else None


def stated_notes(model: Path, behavior: str) -> ModelMetadata:
    """Return the spec of the behaviour that a model plays, and the model's step (0 if unknown).

    If a model has no notes, observations are named after the model's inputs.

    Raises:
        StageError: if the model can't be run, or does not state everything that a spec needs.
    """
    runtime, where = Runtime(model), f"{behavior}: {model}"
    return read_notes(runtime.properties, where) or ModelMetadata(_spec(runtime, behavior, where), 0)


def _spec(runtime: Runtime, behavior: str, where: str) -> BehaviorSpec:
    inputs = [name for name in runtime.shapes if name not in (contract.ACTION_MASKS, contract.RECURRENT_IN)]
    observations = tuple(_observation(name, runtime.shapes[name], where) for name in sorted(inputs, key=_place))
    on_zeros = runtime.on_zeros((contract.VERSION_NUMBER, *contract.METADATA, *contract.ACTIONS))
    version = stated_version(runtime, on_zeros, where)
    continuous = max(0, whole_numbers(on_zeros.get(contract.CONTINUOUS_SIZE))[0])
    if not continuous and contract.DISCRETE_SIZES not in on_zeros and contract.CONTINUOUS in on_zeros:
        continuous = on_zeros[contract.CONTINUOUS].size
    branches: tuple[int, ...] = ()
    if contract.DISCRETE_SIZES in on_zeros or contract.DISCRETE in on_zeros:
        branches = tuple(size for size in whole_numbers(on_zeros.get(contract.DISCRETE_SIZES)) if size > 0)
        if version < contract.VERSION or not branches:
            raise StageError(
                f"{where}: does not say how many choices each discrete branch has (ML-Agents' model version {version} "
                "only has their sum); play the model with --inference in an environment that defines these numbers"
            )
    if not continuous and not branches:
        raise StageError(f"{where}: does not say which actions it outputs")
    return BehaviorSpec(
        behavior, observations, ActionSpec(continuous, branches, masked=contract.ACTION_MASKS in runtime.shapes)
    )


def _observation(name: str, shape: tuple[int | None, ...], where: str) -> ObservationSpec:
    sizes = tuple(size for size in shape if size is not None)
    if len(sizes) < len(shape) or kind_of_rank(len(sizes)) == "unknown":
        raise StageError(f"{where}: its input {name} has shape {list(shape)}, which does not say what it observes")
    return ObservationSpec(name, sizes)


def _place(name: str) -> tuple[int, int]:
    """Return an input's sort key among the observations.

    Version 2's vectors come first, then version 2's images by number, then all numbered inputs.
    """
    for rank, pattern in ((1, _IMAGE), (2, _NUMBERED)):
        if match := pattern.fullmatch(name):
            return rank, int(match[1])
    return 0, 0
