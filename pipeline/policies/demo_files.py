"""`--to-demo`: converts recordings, or any other readable demonstrations, to Unity `.demo` files."""

from __future__ import annotations

import glob
import logging
from pathlib import Path

from headrace.config.paths import file_name
from headrace.queues.errors import StreamError
from headrace.queues.stream_file import StreamReader
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations
from headrace.stages.trainer.imitation.loading import PREFIX, load_demonstrations
from headrace.stages.trainer.imitation.unity_demos import write_unity_demo

log = logging.getLogger(__name__)

SUFFIX = ".demo"


def to_demo(source: str, target: str) -> str:
    """Write `.demo` files and return one line of text per file.

    Raises:
        StageError: as for `write_demos`, and if a stream can't be read.
    """
    try:
        written = write_demos(source, Path(target))
    except StreamError as error:
        raise StageError(str(error)) from error
    return "\n".join(
        f"{path}: {len(demos)} steps of {demos.spec.name} in {len(demos.episode_lengths)} episodes"
        for path, demos in written.items()
    )


def write_demos(source: str, target: Path) -> dict[Path, Demonstrations]:
    """Write demonstrations as `.demo` files.

    Args:
        source: anything that `demo_path` accepts: a stream, a folder, a glob pattern or `minari:<data set id>`.
        target: a file whose name ends with `.demo`, or a folder that gets one file per recorded behaviour.

    Returns:
        The demonstrations, keyed by the path of the file to which they were written.

    Raises:
        StageError: if there is nothing to write, a `.demo` file can't hold the demonstrations, or a file already
            exists.
        StreamError: if a stream can't be read.
    """
    if not source.startswith(PREFIX) and not Path(source).exists() and not glob.glob(source, recursive=True):
        raise StageError(f"--to-demo {source}: no file or folder matches this path or pattern")
    folder = Path(source)
    files = folder.iterdir() if folder.is_dir() else map(Path, glob.glob(source, recursive=True))
    streams = [file for file in files if file.suffix == ".stream" and file.is_file()]
    behaviors = sorted({spec.name for file in streams for spec in StreamReader(file).header.specs})
    if target.suffix != SUFFIX:
        return _write_each(source, target, behaviors or [Path(source).stem])
    if len(behaviors) > 1:
        raise StageError(
            f"{target}: a .demo file holds only one behaviour, but {source} has {', '.join(behaviors)}; give a folder "
            "instead, to write a file for each behaviour"
        )
    return {target: _write(source, target, behaviors[0] if behaviors else target.stem)}


def _write_each(source: str, folder: Path, behaviors: list[str]) -> dict[Path, Demonstrations]:
    written: dict[Path, Demonstrations] = {}
    failures: list[StageError] = []
    for behavior in behaviors:
        path = folder / f"{file_name(behavior)}{SUFFIX}"
        try:
            written[path] = _write(source, path, behavior)
        except StageError as error:
            failures.append(error)
    if not written:
        raise failures[0]
    for failure in failures:
        log.warning("%s", failure)
    return written


def _write(source: str, path: Path, behavior: str) -> Demonstrations:
    demonstrations = load_demonstrations(source, behavior)
    write_unity_demo(path, demonstrations, behavior)
    return demonstrations
