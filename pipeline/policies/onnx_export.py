"""Exports for Unity and Godot: `<Behavior>/<Behavior>-<step>.onnx` next to each `.pt`, and a final `<Behavior>.onnx`.

Writing `.onnx` files is best effort: the `.pt` file and the checkpoint are written first, and an error here only logs a
warning. The `.onnx` files can be created later from the `.pt` files (`run-pipeline --export-onnx results/<run-id>`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.export import exports_by_step, read_export
from headrace.pipeline.run_folder.atomic_files import REAL, FileOperations, write_atomic
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.pipeline.run_folder.training_status import ExportEntry
from headrace.queues.messages import PolicyUpdate
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.startup_context import shown

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
        self._checked = self._remarked = False
        self._last_reason = ""

    def write(self, exported: Path, design: PolicyDesign, policy: PolicyUpdate) -> Path | None:
        """Write a policy next to its `.pt` file and return the path; on failure, log a warning and return None."""
        path, self.refused = exported.with_suffix(SUFFIX), ""
        try:
            from headrace.stages.policy.onnx.model import onnx_model, remark

            model = onnx_model(design, policy)
            write_atomic(path, model, files=self._files)
            if not self._remarked and (text := remark(design.spec)):
                self._log.warning("%s", text)
            self._remarked = True
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
    write_atomic(target, source.read_bytes(), files=files)
    log.info("Copied %s to %s.", shown(source), shown(target))
    return replace(last, file_path=str(target))


def reexport(run_folder: Path, network_folder: Path | None = None) -> bool:
    """Rewrite all of a run's `.onnx` files from its `.pt` files; return True if every file was written.

    Args:
        run_folder: `results/<run-id>`.
        network_folder: the YAML's folder, where `network_settings.network` may name a module.

    Raises:
        RunError: if there is nothing to export.
    """
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
    best = run_folder / behavior / f"{behavior}-best.pt"
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
