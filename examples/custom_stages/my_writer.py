"""A statistics writer, used by config.yaml in this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace import Summary


class JsonLines:
    """Writes each summary as one line of JSON: category, step, and the statistics by name.

    Args:
        run_folder: the run's folder; the pipeline passes it to any parameter with this name.
        file: name of the file in the run's folder.
    """

    def __init__(self, run_folder: Path, file: str = "summaries.jsonl") -> None:
        self._file = (run_folder / file).open("a", encoding="utf-8")

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write one summary; `category` is a behaviour's name, or `Pipeline`."""
        values = {name: summary.value for name, summary in summaries.items()}
        self._file.write(json.dumps({"category": category, "step": step, **values}) + "\n")
        self._file.flush()

    def add_property(self, category: str, name: str, value: object) -> None:
        """Ignore properties, such as hyperparameters, because configuration.yaml contains them."""

    def close(self) -> None:
        """Close the file; calling this more than once is allowed."""
        self._file.close()
