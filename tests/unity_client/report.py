"""What the stand-in Unity tells the test: a JSON file, written as it ends."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from unity_client.faults import Violation

PATIENCE_S = 60.0


class Report:
    """What happened, by the end; and the log, line by line."""

    def __init__(self, folder: Path | None, log_file: Path | None, port: int | None, arguments: list[str]) -> None:
        self._folder = folder
        self._log_file = log_file
        self.facts: dict[str, Any] = {"arguments": arguments, "port": port, "pid": os.getpid()}
        self.episodes: dict[str, list[float]] = defaultdict(list)
        """By behaviour, each finished episode's return."""
        self.ends: dict[str, list[tuple[int, float]]] = defaultdict(list)
        """By behaviour, of each finished episode: the agent steps that all agents had made by then, and the time."""
        self.measures: dict[str, list[float]] = defaultdict(list)
        """By behaviour, how well each finished episode was played, in the scene's own measure: 1 is perfect."""
        self.agent_steps = 0
        self.messages = 0
        self.endings_only = 0
        self.resets = 0

    def log(self, line: str) -> None:
        """Add a line to Unity's log."""
        if self._log_file is None:
            print(line, flush=True)
        else:
            with self._log_file.open("a") as file:
                print(line, file=file)

    def meet(self, companions: int) -> None:
        """Wait until so many stand-ins of a run are connected, this one included; those of earlier runs don't count.

        Raises:
            Violation: if the trainer does not connect them.
        """
        if self._folder is None or companions < 2:
            return
        met = self._folder / "met"
        met.mkdir(parents=True, exist_ok=True)
        (met / str(os.getpid())).touch()
        due = -(-len(list(met.iterdir())) // companions) * companions
        patience = time.monotonic() + PATIENCE_S
        while len(list(met.iterdir())) < due:
            if time.monotonic() > patience:
                raise Violation(f"{companions} were to be connected")
            time.sleep(0.01)

    def write(self, returncode: int, reason: str) -> None:
        """Write the report, whole or not at all."""
        self.log(f"Ended ({returncode}): {reason}")
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self.facts['port']}-{os.getpid()}.json"
        counts = ("episodes", "ends", "measures", "agent_steps", "messages", "endings_only", "resets")
        everything = {**self.facts, **{name: getattr(self, name) for name in counts}}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps({**everything, "returncode": returncode, "reason": reason}))
        unfinished.replace(path)
