"""Finding the folder of a run by what a command calls the run."""

from __future__ import annotations

from pathlib import Path

from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.run_folder.folder import CONFIGURATION


def find_run(name: str, results: str, option: str) -> Path:
    """Return the folder of a run.

    Args:
        name: the folder, or a run id below `results`.
        results: the folder of all runs.
        option: the option that names it, for the message.

    Raises:
        CommandError: if there is no such run.
    """
    for folder in (Path(name), Path(results) / name):
        if (folder / CONFIGURATION).is_file() or any(folder.glob("*/events.out.tfevents.*")):
            return folder
    raise CommandError(f"{option} {name}: no run; neither {name} nor {Path(results) / name} is the folder of one")
