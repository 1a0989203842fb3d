"""Exported policies: `<Behavior>/<Behavior>-<step>.pt`, each a plain dictionary of tensors and their description.

The file loads with `torch.load(path, weights_only=True)`; `load_acting_policy` makes an acting policy from it. The
file of a best policy also has its score, in an entry of the archive that torch ignores.

For Unity and Godot, there is a `<Behavior>/<Behavior>-<step>.onnx` next to each `.pt`, and a final `<Behavior>.onnx`.
Writing `.onnx` files is best effort: the `.pt` file and the checkpoint are written first, and an error here only logs a
warning. The `.onnx` files can be created later from the `.pt` files (`run-pipeline --export-onnx results/<run-id>`).
"""

from __future__ import annotations

import glob
import io
import json
import logging
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import BehaviorSettings, NetworkSettings
from headrace.config.paths import file_name
from headrace.config.plain_data import parse_json
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.tensor_file import check_undamaged, mentions, read_tensors
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.queues.archive import UNREADABLE, open_archive
from headrace.queues.disks import answered
from headrace.queues.files import REAL, FileOperations, matching, read_file, write_atomic
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError, error_summary
from headrace.stages.policy.design import PolicyDesign, design_of
from headrace.stages.policy.numpy_policy import make_policy
from headrace.stages.policy.protocol import ActingPolicy
from headrace.startup_context import shown

FORMAT = 1
_SCORE = "evaluation.json"
"""Name of the entry in a file's archive with the score of the policy."""
NEWEST = "checkpoint.pt"
"""File name of the copy of the newest export. ML-Agents users set this name as `init_path`."""


@dataclass(frozen=True)
class Export:
    """The content of an exported policy's file."""

    update: PolicyUpdate
    """The policy's weights, version and step; its `behavior_id` is the behaviour's name."""
    design: PolicyDesign
    """The policy's spec, network settings and kind of action distribution."""
    trainer_type: str
    """Type of the trainer that wrote the file."""
    learner: Mapping[str, Any] | None = None
    """Additional state that a trainer of this type can start from (`Trainer.warm_state`); None if the file has none."""


def export_policy(
    run_folder: Path,
    policy: PolicyUpdate,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    label: str | None = None,
    files: FileOperations = REAL,
    learner: Mapping[str, Any] | None = None,
    source_folder: Path | None = None,
    score: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy to a file and to `NEWEST`.

    Remove the oldest exports beyond `keep_checkpoints`, unless it is 0 or less.

    Args:
        run_folder: `results/<run-id>`.
        policy: the policy.
        spec: the behaviour's observations and actions.
        settings: the behaviour's settings; its trainer and network settings describe how the tensors are used.
        label: replaces the step in the file name, such as `best`; with a label, the policy is not written to `NEWEST`.
        files: file operations.
        learner: additional state for a trainer to start from: plain values and arrays of numbers, nested in dicts and
            lists.
        source_folder: the YAML's folder, where `trainer_type` may name a module.
        score: JSON values about the policy's evaluation, for `read_score`.

    Raises:
        OSError: if a file can't be written.
    """
    import torch

    folder = behavior_folder(run_folder, spec.name)
    name = folder.name
    files.make_folder(folder)
    design = design_of(spec, settings, source_folder)
    content = {
        "format": FORMAT,
        "behavior": spec.name,
        "version": policy.version,
        "step": policy.step,
        "spec": spec.to_plain(),
        "trainer_type": settings.trainer_type,
        "squashed": design.squashed,
        **({"greedy": True} if design.greedy else {}),
        "network_settings": settings.network_settings.model_dump(mode="json"),
        "weights": _as_tensors(policy.tensors()),
    }
    if learner:
        content["learner"] = _as_tensors(learner)
    buffer = io.BytesIO()
    torch.save(content, buffer)
    if score is not None:  # not in the dictionary, because main reads scores without importing torch
        with zipfile.ZipFile(buffer, "a") as archive:
            inside = archive.namelist()[0].partition("/")[0]
            archive.writestr(f"{inside}/{_SCORE}", json.dumps(score))
    data = buffer.getvalue()
    if label is not None:
        path = folder / f"{name}-{label}.pt"
        write_atomic(path, data, files=files)
        return path
    path = folder / f"{name}-{policy.step}.pt"
    write_atomic(path, data, files=files)
    write_atomic(folder / NEWEST, data, files=files)
    if settings.keep_checkpoints > 0:
        for old in exports_by_step(folder, spec.name)[: -settings.keep_checkpoints]:
            files.remove(old.with_suffix(".onnx"))  # first, because only a .pt is found after an interruption
            files.remove(old)
    return path


def best_policy(run_folder: Path, behavior: str) -> Path:
    """Return the path of a behaviour's best policy, which need not exist."""
    folder = behavior_folder(run_folder, behavior)
    return folder / f"{folder.name}-best.pt"


def read_score(path: Path) -> dict[str, Any]:
    """Return the score of an exported policy, without importing torch.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is damaged or contains no score.
    """
    check_undamaged(path)
    try:
        with open_archive(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(f"/{_SCORE}"))
            return dict(parse_json(archive.read(name)))
    except (*UNREADABLE, StopIteration) as error:
        raise ValueError(f"{path} contains no score of an evaluation") from error


def exports_by_step(folder: Path, behavior: str, suffix: str = ".pt") -> list[Path]:
    """Return a behaviour's exports that have a step in their file names, oldest first."""
    name = file_name(behavior)
    exports = matching(folder, f"{glob.escape(name)}-*{suffix}")
    return sorted((path for path in exports if path.stem.removeprefix(f"{name}-").isdecimal()), key=step_in_name)


def step_in_name(path: Path) -> int:
    """Return the step in an export's file name; 0 if the name has no step."""
    step = path.stem.rpartition("-")[2]
    return int(step) if step.isdecimal() else 0


def is_export(path: Path) -> bool:
    """Return True if a file is a Headrace export, even a damaged one, without importing torch.

    ML-Agents' `.pt` files have the same names but different content.
    """
    return not answered(path, path.is_file) or mentions(path, b"network_settings")


def read_export(path: Path, folder: Path | None = None) -> Export:
    """Read an exported policy.

    Args:
        path: the file.
        folder: the YAML's folder, where `network_settings.network` may name a module.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is not an export, or has a different version of the format.
    """
    content = read_tensors(path)
    if isinstance(content, Mapping) and "network_settings" in content and content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}, but this version of Headrace reads format {FORMAT}"
        )
    try:
        if not isinstance(content, Mapping):
            raise ValueError(f"it holds a {type(content).__name__}, not a dict")
        if "Policy" in content:
            raise ValueError(
                "it is an ML-Agents checkpoint, which --resume, --initialize-from, init_path and --inference accept"
            )
        tensors = dict(content["weights"].items())
        spec = BehaviorSpec.from_plain(content["spec"])
        settings = NetworkSettings.model_validate(content["network_settings"])
        layout = tuple((name, tuple(array.shape)) for name, array in tensors.items())
        weights = np.concatenate([array.reshape(-1) for array in tensors.values()]).astype(np.float32)
        if not np.isfinite(weights).all():
            raise ValueError("its weights contain NaN or infinity")
        return Export(
            PolicyUpdate(spec.name, int(content["version"]), weights, layout, int(content["step"])),
            PolicyDesign(spec, settings, bool(content["squashed"]), folder, greedy=bool(content.get("greedy"))),
            str(content["trainer_type"]),
            content.get("learner"),
        )
    except KeyError as error:
        raise ValueError(f"{path} is not an exported policy: it has no {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not an exported policy: {error}") from error
    except Exception as error:
        raise ValueError(
            f"{path} is not an exported policy: its content has an unexpected structure ({error_summary(error)})"
        ) from error


def load_acting_policy(path: Path, folder: Path | None = None) -> ActingPolicy:
    """Return an exported policy that is ready to act.

        policy = load_acting_policy(Path("results/run/Ball/Ball-best.pt"))
        decision = policy.act((observations,), None, np.random.default_rng(0), deterministic=True)

    Pass `decision.actions` to an `EnvironmentGroup`, which converts them to the environment's units. If the policy has
    a memory, pass `decision.recall` as `recall` to the same agents' next decision; pass None at the start of an
    episode.

    Args:
        path: the file.
        folder: the YAML's folder, where `network_settings.network` may name a module.

    Raises:
        OSError: if the file can't be read.
        ValueError: if the file is not an exported policy.
        StageError: if the policy's network can't be built, for example because the code of a custom network changed.
    """
    export = read_export(path, folder)
    policy = make_policy(export.design)
    policy.load(export.update)
    return policy


def _as_tensors(values: Mapping[str, Any]) -> Any:
    """Copy nested dictionaries and lists, converting their arrays to tensors."""
    import torch

    return _map_leaves(values, lambda leaf: torch.from_numpy(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf)


def _map_leaves(values: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(values, Mapping):
        return {name: _map_leaves(value, convert) for name, value in values.items()}
    if isinstance(values, list | tuple):
        inner = [_map_leaves(value, convert) for value in values]
        return inner if isinstance(values, list) else tuple(inner)
    return convert(values)


log = logging.getLogger(__name__)

SUFFIX = ".onnx"


class OnnxExporter:
    """Writes the `.onnx` files for one behaviour.

    If onnxruntime is installed, the first file is checked against the live policy. Later files differ only in weights,
    so they are not checked by default.

    Args:
        log: receives warnings.
        check: True to check every file against its policy, not only the first.
        files: file operations.

    Attributes:
        refused: the error that prevented writing the last file to disk; empty if there was none.
    """

    def __init__(self, log: logging.Logger = log, check: bool = False, files: FileOperations = REAL) -> None:
        self.refused = ""
        self._log = log
        self._checks_all = check
        self._files = files
        self._checked = False
        self._remarks: set[str] = set()
        """Beginnings of the remarks that have been logged; the numbers in them change with each file."""
        self._last_reason = ""

    def write(self, exported: Path, design: PolicyDesign, policy: PolicyUpdate) -> Path | None:
        """Write a policy next to its `.pt` file and return the path; on failure, log a warning and return None."""
        path, self.refused = exported.with_suffix(SUFFIX), ""
        try:
            from headrace.stages.policy.onnx.model import onnx_model, remark_on_order, remark_on_rounding

            model = onnx_model(design, policy)
            write_atomic(path, model, files=self._files)
            for text in (remark_on_order(design.spec), remark_on_rounding(design.spec, policy.tensors())):
                if text and (begins := text.partition("(")[0]) not in self._remarks:
                    self._remarks.add(begins)
                    self._log.warning("%s", text)
        except Exception as error:  # a failed .onnx export must not stop training or lose a checkpoint
            self._warn(path, error)
            if isinstance(error, OSError):
                self.refused = error.strerror or str(error)
            with suppress(OSError):
                self._files.remove(path)  # a stale file from an older policy at the same step
            return None
        self._compare(path, model, design, policy)
        return path

    def _compare(self, path: Path, model: bytes, design: PolicyDesign, policy: PolicyUpdate) -> None:
        if (self._checked and not self._checks_all) or find_spec("onnxruntime") is None:
            return
        from headrace.stages.policy.onnx.model import difference

        self._checked = True
        try:
            problem = difference(design, policy, model)
        except Exception as error:  # the model may be valid: the failure is onnxruntime's
            self._log.warning("%s could not be compared with the policy: %s: %s", path, type(error).__name__, error)
            return
        if problem is not None:
            self._log.warning("%s does not act like the policy that it was exported from: %s", path, problem)

    def _warn(self, path: Path, error: Exception) -> None:
        """Log a warning, unless it gives the same reason as the last one: many reasons recur at every checkpoint."""
        reason = str(error) if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
        if reason != self._last_reason:
            self._log.warning("%s could not be written; the policy itself is in the .pt file: %s", path, reason)
        self._last_reason = reason


def copy_final_model(run_folder: Path, behavior: str, last: ExportEntry, files: FileOperations = REAL) -> ExportEntry:
    """Copy a behaviour's last `.onnx` file to `results/<run-id>/<Behavior>.onnx`.

    Returns:
        The entry for `final_checkpoint`: that of the copy, or `last` if there is no `.onnx` file.

    Raises:
        OSError: if the copy can't be written.
    """
    source, target = Path(last.file_path), run_folder / f"{behavior_folder(run_folder, behavior).name}{SUFFIX}"
    if source.suffix != SUFFIX:
        return last
    write_atomic(target, read_file(source), files=files)
    log.info("Copied %s to %s.", shown(source), shown(target), extra={"behavior": behavior})
    return replace(last, file_path=str(target))


def reexport(run_folder: Path, network_folder: Path | None = None) -> bool:
    """Rewrite all of a run's `.onnx` files from its `.pt` files; return True if every file was written.

    Args:
        run_folder: `results/<run-id>`.
        network_folder: the YAML's folder, where `network_settings.network` may name a module.

    Raises:
        RunError: if there is nothing to export.
    """
    import torch  # noqa: F401  # else every export fails, which removes the model from before

    behaviors = sorted(folder.name for folder in run_folder.glob("*") if list(folder.glob(f"{folder.name}-*.pt")))
    if not behaviors:
        raise RunError(
            f"{run_folder} holds no trained policy (<Behavior>/<Behavior>-<step>.pt): give the folder of a run, such "
            "as results/ppo"
        )
    whole = [_export_behavior(run_folder, behavior, network_folder) for behavior in behaviors]
    return all(whole)


def _export_behavior(run_folder: Path, behavior: str, network_folder: Path | None) -> bool:
    exporter, last, whole = OnnxExporter(check=True), None, True
    best = best_policy(run_folder, behavior)
    for path in [*([best] if best.is_file() else []), *exports_by_step(run_folder / behavior, behavior)]:
        try:
            export = read_export(path, network_folder)
        except (OSError, ValueError) as error:
            log.warning("%s", error)
            whole = False
            continue
        written = exporter.write(path, export.design, export.update)
        if written is None:
            whole = False
            continue
        log.info("Exported %s", shown(written))
        last = written
    if last is not None and last.stem != best.stem:
        try:
            copy_final_model(run_folder, behavior, ExportEntry(0, str(last), None, 0.0))
        except OSError as error:
            log.warning("%s could not be copied to %s: %s", last, run_folder, error)
            whole = False
    return whole
