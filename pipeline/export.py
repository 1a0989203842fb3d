"""Policies for use elsewhere: `<Behavior>/<Behavior>-<step>.pt`, a plain dictionary of tensors with its description.

The file loads with `torch.load(path, weights_only=True)`; `load_policy` makes an acting policy of it, without torch's
network.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from config import BehaviorSettings
from pipeline.atomic_files import REAL, FileOperations, write_atomic
from queues.messages import PolicyUpdate
from queues.specs import BehaviorSpec


def export_policy(
    run_folder: Path,
    policy: PolicyUpdate,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    label: str | None = None,
    files: FileOperations = REAL,
) -> Path:
    """Write a policy; the oldest beyond `keep_checkpoints` goes (0 or less keeps all).

    Args:
        run_folder: `results/<run-id>`.
        policy: the policy.
        spec: observations and actions.
        settings: the behaviour's settings; its network settings say how the tensors are used.
        label: in place of the step in the file's name, such as `best`.
        files: file operations.

    Raises:
        OSError: if the disk refuses.
    """
    import torch

    folder = run_folder / spec.name
    files.make_folder(folder)
    content = {
        "behavior": spec.name,
        "version": policy.version,
        "step": policy.step,
        "spec": spec.to_plain(),
        "network_settings": settings.network_settings.model_dump(mode="json"),
        "weights": {name: torch.from_numpy(view.copy()) for name, view in policy.tensors().items()},
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path = folder / f"{spec.name}-{label if label is not None else policy.step}.pt"
    write_atomic(path, buffer.getvalue(), files=files)
    if label is None and settings.keep_checkpoints > 0:
        for old in numbered(folder, spec.name)[: -settings.keep_checkpoints]:
            files.remove(old)
    return path


def numbered(folder: Path, behavior: str) -> list[Path]:
    """The exports of a behaviour that carry a step in their names, oldest first."""
    found = [p for p in folder.glob(f"{behavior}-*.pt") if p.stem.removeprefix(f"{behavior}-").isdigit()]
    return sorted(found, key=lambda p: int(p.stem.removeprefix(f"{behavior}-")))


def read_policy(path: Path) -> tuple[PolicyUpdate, BehaviorSpec, dict[str, Any]]:
    """Read an exported policy: its weights, its spec, its network settings.

    Raises:
        OSError: if the file can't be read.
        ValueError: if it is not such an export.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {name: tensor.numpy() for name, tensor in content["weights"].items()}
        spec = BehaviorSpec.from_plain(content["spec"])
        layout = tuple((name, tuple(array.shape)) for name, array in tensors.items())
        weights = np.concatenate([array.reshape(-1) for array in tensors.values()]).astype(np.float32)
        update = PolicyUpdate(spec.name, int(content["version"]), weights, layout, int(content["step"]))
        return update, spec, dict(content["network_settings"])
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: is not an exported policy: {error}") from error
