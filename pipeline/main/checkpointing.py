"""Main's side of saving: announces checkpoints, makes them real, and keeps the run's status files.

`BehaviorState.receive_report` decides when one is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.control.messages import BeginCheckpoint, PartFailed, PartSaved, SaveNow, Stop
from pipeline.hosts.protocol import HostHandle
from pipeline.main.behavior import BehaviorState
from pipeline.main.run_plan import RunPlan
from pipeline.policies.onnx_export import copy_final_model
from pipeline.reporting.timers import Timers
from pipeline.run_folder.checkpoint_assembler import CheckpointAssembler
from pipeline.run_folder.training_status import BehaviorStatus, ExportEntry, TrainingStatus

log = logging.getLogger(__name__)


class Checkpointing:
    """The checkpoints and status files of a run.

    Args:
        plan: the run.
        behaviors: the behaviours that are trained, by name.
        timers: what `timers.json` is written from.
        progress: what main itself goes on from after a resume.
        lessons: the present lesson of each curriculum, by the environment parameter's name.
        ended: called when a checkpoint has ended: None if it is whole, else why it could not be written.
    """

    def __init__(
        self,
        plan: RunPlan,
        behaviors: Mapping[str, BehaviorState],
        timers: Timers,
        progress: Callable[[], Mapping[str, Any]],
        lessons: Callable[[], Mapping[str, int]],
        ended: Callable[[str | None], None],
    ) -> None:
        self._plan = plan
        self._folder = plan.folder
        self._behaviors = behaviors
        self._timers = timers
        self._progress = progress
        self._lessons = lessons
        self._ended = ended
        self._assembler = CheckpointAssembler(
            plan.folder.checkpoints, plan.resumed.number if plan.resumed is not None else -1
        )

    @property
    def newest(self) -> int:
        """Number of the newest whole checkpoint, -1 if there is none."""
        return self._assembler.newest

    @property
    def busy(self) -> bool:
        """True while a checkpoint is under way."""
        return self._assembler.busy

    def begin(self, sources: Iterable[HostHandle], then_stop: bool = False) -> None:
        """Let the sources put a barrier into their streams, and stop behind it if asked to."""
        number = self._announce(self._expected())
        for host in sources:
            host.control.send(BeginCheckpoint(number))
            if then_stop:
                host.control.send(Stop())

    def repeat_announcement(self, source: HostHandle) -> None:
        """A source that replaces a dead one has to make the barrier that the other may have taken to the grave."""
        number = self._assembler.pending
        if number is not None:
            source.control.send(BeginCheckpoint(number))

    def save_now(self, save_part: Callable[[str, int, Mapping[str, Any] | None], None]) -> None:
        """Without barriers, as the stream has broken off: let trainers and main's stages save where they stand."""
        number = self._announce(name for name in self._expected() if not name.rpartition("@")[2].startswith("actor"))
        for state in self._behaviors.values():
            if state.learner is not None:
                state.learner.control.send(SaveNow(number))
            state.path.save_now(lambda stage, saved: save_part(stage, number, saved))

    def receive(self, part: PartSaved | PartFailed) -> None:
        """A part was written, or could not be."""
        if isinstance(part, PartFailed):
            if self._assembler.give_up(part.number):
                self._failed(part.number, f"{part.name}: {part.reason}")
        elif self._assembler.add(part):
            self._commit(part.number)

    def check_time(self, now_s: float) -> None:
        """Give up a checkpoint that has lost a host."""
        if self._assembler.give_up_if_overdue(now_s):
            self._ended("it took too long")

    def close(self) -> None:
        """All hosts have ended: a part that is not written by now won't be."""
        number, missing = self._assembler.pending, self._assembler.missing
        if number is not None and self._assembler.give_up(number):
            self._failed(number, f"its hosts have ended, and there is no word of {missing}")

    def write_status(self, final: bool) -> None:
        """Write `training_status.json` and `timers.json`."""
        behaviors = {
            name: BehaviorStatus(tuple(state.exports), self._last(name, state) if final else None, state.elo)
            for name, state in self._behaviors.items()
        }
        try:
            self._folder.write_training_status(TrainingStatus(behaviors, self._lessons()))
            self._timers.write(self._folder.timers)
        except OSError as error:
            log.error("the run's status could not be written: %s", error)

    def _last(self, name: str, state: BehaviorState) -> ExportEntry | None:
        if not state.exports:
            return None
        return copy_final_model(self._folder.path, name, state.exports[-1], self._folder.files)

    def _expected(self) -> set[str]:
        return self._plan.expected_parts(self._behaviors)

    def _announce(self, expected: Iterable[str]) -> int:
        return self._assembler.begin(expected, time.monotonic())

    def _commit(self, number: int) -> None:
        steps = {name: state.step for name, state in self._behaviors.items()}
        self.write_status(final=False)  # before the manifest: a kill in between leaves a list ahead of it, not behind
        try:
            self._assembler.commit(steps, self._progress())
        except OSError as error:
            self._failed(number, str(error))
            return
        for state in self._behaviors.values():
            state.saved()
        log.debug("checkpoint %d is whole", number)
        self._ended(None)

    def _failed(self, number: int, reason: str) -> None:
        log.error("Checkpoint %d could not be written, the one before it stays: %s", number, reason)
        self._ended(reason)
