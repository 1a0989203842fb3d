"""Main's side of saving: begins checkpoints, commits them, and writes the run's status files.

`BehaviorState.receive_report` decides when a checkpoint is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from headrace.pipeline.common.global_state_guard import put_back
from headrace.pipeline.common.graph import MAIN, TRAINER, learner_name, part_name, saved_shards
from headrace.pipeline.control import (
    BeginCheckpoint,
    ExportFailed,
    FolderMoved,
    HostFailed,
    PartFailed,
    PartSaved,
    PolicyExported,
    SaveNow,
    Stop,
)
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.behavior_start import BehaviorStarter
from headrace.pipeline.main.fixed_settings import FIXED, fixed_by
from headrace.pipeline.main.run_part import Run
from headrace.pipeline.policies.export import copy_final_model
from headrace.pipeline.reporting.league_files import write_leagues
from headrace.pipeline.run_folder.checkpoint import PATIENCE_S, CheckpointAssembler, newest_checkpoint
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.pipeline.run_folder.remote_copy import CheckpointCopier
from headrace.pipeline.run_folder.training_status import BehaviorStatus, ExportEntry, TrainingStatus
from headrace.queues.disks import answered
from headrace.queues.files import FileGuard
from headrace.startup_context import shown

log = logging.getLogger(__name__)


class SavedRun(Run, Protocol):
    """The run's interface for this module: `Run`, extended with the members that checkpoints need."""

    starter: BehaviorStarter
    checkpointing: Checkpointing


class Checkpointing:
    """A run's checkpoints and status files.

    Args:
        run: the run.

    Attributes:
        copier: copies complete checkpoints to `checkpoint_settings.copy_to`.
        ended: called when a checkpoint ends, with None if it is complete and with the reason if it is not.
        written: called after `ended` if the checkpoint is complete.
        failed: called when the run's folder is lost or a final policy could not be written; returns False if the run
            had already failed.
    """

    def __init__(self, run: SavedRun) -> None:
        self.ended: Callable[[str | None], object] = lambda problem: None
        self.written: Callable[[], object] = lambda: None
        self.failed: Callable[[HostFailed], bool] = lambda failure: True
        self._run = run
        self._plan = plan = run.plan
        self._folder = plan.folder
        self._behaviors = run.behaviors
        self._patience_s = max(PATIENCE_S, plan.config.pipeline.supervision.learners.end_s or 0.0)
        self._signs: object = None
        self._delayed = -1
        """Number of the last checkpoint that had to wait for another program; -1 if none did."""
        self._saved_at: dict[str, int] = {}
        """Steps of the trainers' states in the checkpoint in progress, keyed by behaviour name."""
        self.copier = CheckpointCopier(plan.config, plan.folder)
        self._files = FileGuard(log)
        self._before = plan.folder.read_training_status().behaviors if plan.resumes else {}
        self._lost: set[str] = set()
        """Behaviours that had not yet appeared in this run when their checkpoint parts were removed from the disk."""
        self._assembler = CheckpointAssembler(
            plan.folder.checkpoints,
            plan.resumed.number if plan.resumed is not None else -1,
            plan.folder.files,
            keep=plan.config.checkpoint_settings.keep,
        )

    @property
    def newest(self) -> int:
        """Number of the newest complete checkpoint; -1 if there is none."""
        return self._assembler.newest

    @property
    def folder(self) -> Path:
        """The folder that contains all checkpoints."""
        return self._folder.checkpoints

    @property
    def busy(self) -> bool:
        """True while a checkpoint is in progress."""
        return self._assembler.pending is not None

    def check_folder(self) -> bool:
        """Check that the folder still belongs to this run; if not, end the run and save its state next to the folder.

        Returns:
            True if the run has lost its folder.
        """
        why = "" if self._plan.playing else self._folder.lost()
        if not why:
            return False
        self._run.reporter.drop_writers()
        was_busy = self.busy
        self._assembler.move(self.folder)
        for state in self._behaviors.values():
            state.exports = []
        try:
            self._folder.rescue()
        except OSError as error:
            why = f"{why}. Everything learned since its last checkpoint is lost, because {error}"
        else:
            self._assembler.move(self.folder)
            self._run.stages.folder.move(self._folder.path)
            for host in self._run.running.hosts.values():
                host.control.send(FolderMoved(str(self._folder.path.resolve())))
        if not self.failed(HostFailed(f"{why}.", "", MAIN)):  # the run had failed already, and reports that at its end
            log.error("%s.", why)
            if was_busy:
                self.save_now()
        return True

    def begin(self, then_stop: bool = False) -> None:
        """Begin a checkpoint: make the sources put a barrier into their streams and, if requested, stop after it.

        The order matters. Credits stop before anything is saved. Self-play and the parts of the run record their state
        before any source can react to its barrier. The number is announced before the barriers are sent, because saved
        parts of a number that is not pending are ignored.
        """
        if self.check_folder():
            return
        put_back()
        if self._plan.deterministic:
            self._run.flow.ledger.pause()  # no actor steps meanwhile, so a resumed run starts at the same point
        if self._run.starter.self_play is not None:
            self._run.starter.self_play.shared.begin_checkpoint()
        for part in self._run.parts.all:
            part.checkpoint_begins()
        number = self._announce(self._plan.expected_parts(self._behaviors))
        for state in self._behaviors.values():
            state.checkpoint_begun()
        for host in self._run.broadcaster.sources():
            host.control.send(BeginCheckpoint(number))
            if then_stop:
                host.control.send(Stop())
        self._commit_if_whole()  # without learners there may be no parts

    def repeat_announcement(self, source: HostHandle) -> None:
        """Let a source that replaces a dead one emit the barrier that the dead source may have lost.

        Do nothing if the dead source has saved its parts: a second copy might arrive after the checkpoint is complete.
        """
        number, name = self._assembler.pending, source.plan.name
        has_parts = name in map(_host_of, self._plan.expected_parts(self._behaviors))
        saved = has_parts and not self._missing_of(name)
        if number is not None and not saved:
            source.control.send(BeginCheckpoint(number))

    def repeat_for_learner(self, learner: HostHandle) -> None:
        """Let a learner that replaces a lost one save immediately, because the barrier may have been lost too."""
        number = self._assembler.pending
        if number is not None and self._missing_of(learner.plan.name):
            learner.control.send(SaveNow(number))

    def save_now(self) -> None:
        """Let trainers and main's stages save immediately, because barriers may no longer arrive.

        A checkpoint in progress continues and keeps the parts it already has; otherwise a new checkpoint begins. If
        stages in actor hosts can't save their parts, the checkpoint is completed without them.
        """
        if self._folder.waits:
            return
        number, expected = self._assembler.pending, self._plan.expected_parts(self._behaviors)
        if number is None:
            number = self._announce(expected)
        else:  # it may have begun with fewer behaviours
            self._assembler.expect(part for part in expected if not _is_of_actor(part))
        self._leave_out(part for part in self._assembler.missing if _is_of_actor(part))
        for state in self._behaviors.values():
            if state.learner is not None:
                state.learner.control.send(SaveNow(number))
            state.path.save_now(lambda stage, saved: self._run.stages.save_part(stage, number, saved))
        self._commit_if_whole()

    def host_ended(self, name: str) -> None:
        """Handle the end of a host that won't be replaced, whose parts a checkpoint can omit unless it is a learner."""
        number, missing = self._assembler.pending, self._missing_of(name)
        if number is None or not missing:
            return
        if _is_of_actor(missing[0]):
            self._leave_out(missing)
            self._commit_if_whole()
        elif self._assembler.give_up(number):
            self._failed(number, f"{name} ended before it delivered {', '.join(missing)}")

    def signs(self) -> object:
        """Return values that change while a checkpoint progresses: trainers' steps, missing parts, disk usage."""
        trainers = [(state.step, state.version) for state in self._behaviors.values()]
        written = None
        with suppress(OSError):
            written = answered(self.folder, _bytes_in, self.folder)
        return trainers, len(self._assembler.missing), written

    def receive(self, part: PartSaved | PartFailed) -> None:
        """Handle a part that was saved or could not be saved."""
        if isinstance(part, PartFailed):
            if self._assembler.give_up(part.number):
                self._failed(part.number, f"{part.name}: {part.reason}")
            return
        for name, state in self._behaviors.items():
            if part.number == self._assembler.pending and part.name == part_name(TRAINER, learner_name(name)):
                self._saved_at[name] = state.step
        if self._assembler.add(part):
            self._commit()

    def check_time(self, now_s: float) -> None:
        """Abandon a checkpoint that makes no progress, usually because a host is lost."""
        if not self.busy:
            return
        signs = self.signs()
        if signs != self._signs:
            self._signs = signs
            self._assembler.progressed(now_s)
        if self._assembler.give_up_if_overdue(now_s, self._patience_s):
            self._ended("it took too long")
        else:
            self._commit_if_whole()  # another program may have had one of its files open

    def close(self) -> None:
        """Finish after all hosts have ended, when no more parts will come."""
        self._commit_if_whole()
        number, missing = self._assembler.pending, self._assembler.missing
        if number is not None and self._assembler.give_up(number):
            lacking = f"never delivered {', '.join(missing)}" if missing else "another program has its files open"
            self._failed(number, f"its hosts have ended, and {lacking}")

    def exported(self, message: PolicyExported | ExportFailed) -> None:
        """Handle a policy that a trainer has exported or failed to export."""
        if isinstance(message, ExportFailed):
            self._behaviors[message.behavior].not_exported = message.reason
            return
        file, beside = (message.file, ()) if message.onnx is None else (message.onnx, (message.file,))
        entry = ExportEntry(message.step, file, message.reward, time.time(), beside).within(self._folder.path)
        self._behaviors[message.behavior].add_export(entry)
        log.info("Exported %s", shown(entry.file_path), extra={"behavior": message.behavior, "step": message.step})

    def go_on(self) -> None:
        """Write a resumed run's options to its folder."""
        with self._files.writing(self._folder.path / CONFIGURATION, "it still has the old options"):
            self._folder.go_on()

    def write_status(self, final: bool) -> None:
        """Write `training_status.json`."""
        last = {name: self._last(name, state) if final else None for name, state in self._behaviors.items()}
        with self._files.writing(self._folder.training_status, "its list of exported policies is out of date"):
            behaviors = dict(self._before)
            for name, state in self._behaviors.items():
                kept = (e for e in state.exports[:-1] if answered(e.file_path, Path(e.file_path).exists))
                state.exports = [*kept, *state.exports[-1:]]
                behaviors[name] = BehaviorStatus(tuple(state.exports), last[name], state.elo)
            lessons = self._run.parts.merged(lambda part: part.lessons())
            self._folder.write_training_status(TrainingStatus(behaviors, lessons))

    def _last(self, name: str, state: BehaviorState) -> ExportEntry | None:
        if not state.exports:
            return None
        last = state.exports[-1]
        try:
            return copy_final_model(self._folder.path, name, last, self._folder.files)
        except OSError as error:
            state.not_exported = f"{name}.onnx: {error.strerror or error}"
            return last

    def check_exports(self) -> None:
        """Fail the run if a behaviour's final policy could not be written, even if older policies exist."""
        lost = [f"{name} ({state.not_exported})" for name, state in self._behaviors.items() if state.not_exported]
        if lost:
            text = f"the final policy could not be written for {', '.join(lost)}. Free disk space and resume the run"
            self.failed(HostFailed(f"{text} to write it again.", "", MAIN))

    def _missing_of(self, host: str) -> list[str]:
        return [part for part in self._assembler.missing if _host_of(part) == host]

    def _leave_out(self, parts: Iterable[str]) -> None:
        left = sorted(parts)
        if left:
            log.warning("The checkpoint lacks %s: a resumed run starts these stages from scratch.", ", ".join(left))
        self._assembler.leave_out(left)

    def _commit_if_whole(self) -> None:
        if self.busy and not self._assembler.missing:
            self._commit()

    def _announce(self, expected: Iterable[str]) -> int:
        self._saved_at.clear()
        return self._assembler.begin(expected, time.monotonic())

    def _commit(self) -> None:
        if self.check_folder():
            return
        number = self._assembler.pending
        assert number is not None, "a checkpoint is whole"
        self.write_status(final=False)  # before the manifest, so a kill in between leaves the list newer, not older
        try:
            self._carry_over()
            steps = {name: self._saved_at.get(name, state.step) for name, state in self._behaviors.items()}
            steps |= self._unseen()
            self._assembler.commit(steps, self._progress())
        except OSError as error:
            if self._assembler.pending is None:
                self._failed(number, str(error))
            elif number != self._delayed:
                self._delayed = number
                log.warning("Checkpoint %d is delayed: %s.", number, error)
            return
        if self._plan.deterministic:  # the next checkpoint is due at the same step as in a resumed run
            for state in self._behaviors.values():
                state.checkpoint_begun()
        if self._unseen():  # they start from this checkpoint, because the run's original one may be gone
            self._run.stages.checkpoint = newest_checkpoint(self.folder)
        log.debug("checkpoint %d is complete", number)
        write_leagues(self._run.starter.league_reports(), self._folder.path, pictures=False)  # if the run is killed
        for name in self._behaviors:
            self._run.reporter.mark(name, steps[name], "checkpoint", f"checkpoint {number}")
        self._ended(None)

    def _progress(self) -> dict[str, Any]:
        """Return main's own state, to save in the manifest."""
        before = self._plan.resumed.progress.get(FIXED, {}) if self._plan.resumed is not None else {}
        fixed = {name: before[name] for name in self._unseen() if name in before}
        fixed |= {name: fixed_by(s.settings, s.spec) for name, s in self._behaviors.items() if s.learns}
        return {
            "elapsed_s": self._run.reporter.elapsed_s,
            "seed": self._plan.seed,
            **self._run.parts.merged(lambda part: part.progress()),
            "brains": self._run.starter.brain_league.state_dict(),
            FIXED: fixed,
        }

    def _ended(self, problem: str | None) -> None:
        self.ended(problem)
        for part in self._run.parts.all:
            part.checkpoint_ended()
        self._run.flow.resume()
        if problem is None:
            self.copier.begin()
            self.written()

    def _unseen(self) -> dict[str, int]:
        """Return the checkpointed steps of a resumed run's behaviours that have not appeared yet."""
        resumed = self._plan.resumed
        steps = resumed.steps if resumed is not None else {}
        return {name: step for name, step in steps.items() if name not in self._behaviors and name not in self._lost}

    def _carry_over(self) -> None:
        """Copy the parts of behaviours that have not appeared yet into this checkpoint, to keep their progress."""
        unseen, resumed = self._unseen(), self._plan.resumed
        if not unseen or resumed is None:
            return
        shards = [shard for name in unseen for shard in saved_shards(resumed.parts, name)]
        hosts = {MAIN, *map(learner_name, unseen), *shards}
        parts = [part for part in resumed.parts.values() if _host_of(part.name) in hosts]
        try:
            self._assembler.carry_over(parts)
        except FileNotFoundError as error:
            self._lost.update(unseen)
            names, path = ", ".join(unseen), error.filename2 or error.filename
            log.error("%s is gone. A resumed run starts these behaviours at step 0: %s.", path, names)

    def _failed(self, number: int, reason: str) -> None:
        if self.check_folder():
            return
        before = "so the previous one is kept" if self.newest >= 0 else "and there is no earlier one"
        log.error("Checkpoint %d could not be written, %s: %s", number, before, reason)
        self._ended(reason)


def _host_of(part: str) -> str:
    return part.rpartition("@")[2]


def _is_of_actor(part: str) -> bool:
    return _host_of(part).startswith("actor")


def _bytes_in(folder: Path) -> int:
    """Return the total size of a folder's files, which hosts may create, rename and remove at the same time."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
