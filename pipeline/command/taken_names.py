"""Names modules of the user's that have the names of Headrace's packages."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

OURS = ("config", "headrace", "pipeline", "queues", "stages")
_ROOT = Path(__file__).resolve().parents[2]


def taken_names(yaml_folder: Path | None) -> list[str]:
    """Name, in one sentence, the modules beside the YAML and in the working directory that no run can import.

    Returns:
        the sentence, or nothing if there are no such modules.
    """
    folders = [str(folder) for folder in (yaml_folder, Path.cwd()) if folder is not None]
    found = [PathFinder.find_spec(name, [folder]) for folder in dict.fromkeys(folders) for name in OURS]
    files = [Path(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    theirs = [str(file) for file in files if not file.resolve().is_relative_to(_ROOT)]
    if not theirs:
        return []
    return [
        f"{', '.join(theirs)}: Headrace has packages of its own by the names {', '.join(OURS)}, and in a run `import` "
        "finds those; rename yours if your modules need it"
    ]
