"""The pool of a league: frozen policies, each a file that never changes, and brains that do not learn in this run."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from headrace.config.brains import MemberSettings
from headrace.config.plain_data import parse_json
from headrace.queues.disks import answered
from headrace.queues.files import ON_LOOP, PAUSES_S, REAL, free_name, matching, read_file, write_atomic
from headrace.queues.messages import PolicyUpdate
from headrace.stages.errors import StageError
from headrace.stages.plain_state import policy_from_state

log = logging.getLogger(__name__)

FOLDER = "league"
"""Name of the pool's folder, inside the behaviour's folder of a run."""
INDEX = "pool.json"
SUFFIX = ".policy"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a pool."""

    number: int
    """Number of the member, counted from 0."""
    learner: str
    """Name of the learner that was frozen; empty for a brain."""
    parent: int
    """Number of the member that this one descends from; -1 for none."""
    step: int
    """The trainer's step when the learner was frozen."""
    version: int
    """Version of the frozen policy."""
    hash: str
    """SHA-256 of the weights' bytes, or of a brain's file, in hexadecimal; empty for a brain without a file."""
    path: str
    """Path of the member's file, relative to the pool's folder. For a brain, this is the brain's `use`."""
    use: str = ""
    """The brain's kind (`headrace.config.brains`); empty for a frozen policy."""
    name: str = ""
    """The brain's name; empty for a frozen policy."""
    behavior: str = ""
    """The environment's behaviour that the member plays; empty if only one behaviour has a league."""

    @property
    def label(self) -> str:
        """The member's name for display."""
        return self.name or f"{self.learner} {self.number}"


class Pool:
    """A pool with write access, for the main process.

    A member's file is flushed to disk before the index names it. If the process is killed between the two, the pool is
    unchanged except for an additional file, which `write` or `restore` adopts or removes. The pool keeps no weights in
    memory.

    Args:
        folder: the folder for the files, created when it is needed. A damaged index costs as much as a missing one: the
            pool is empty until `restore`.

    Raises:
        StageError: if a different version of Headrace wrote the index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._members: list[Member] = []
        try:
            self._members = read_index(folder)
        except ValueError as error:
            log.warning("%s. A new index replaces it, with the members that the checkpoint lists.", error)
            if (folder / INDEX).is_dir():
                REAL.replace(folder / INDEX, free_name(folder / f"{INDEX}.damaged"))

    @property
    def members(self) -> Sequence[Member]:
        """All members, in order of their numbers."""
        return self._members

    def enter(self, member: Member) -> None:
        """Add the result of `write` to the members."""
        self._members.append(member)

    def write(self, update: PolicyUpdate, learner: str, parent: int, behavior: str = "") -> Member:
        """Write a policy's file, and an index that names it; only `enter` makes the policy a member.

        May be called in a thread, as long as nothing else changes the pool.

        Args:
            update: the policy; the pool does not keep a reference to it.
            learner: the policy's learner.
            parent: number of the member that the policy descends from; -1 for none.
            behavior: the behaviour that the policy plays, if several behaviours have a league.

        Raises:
            StageError: if a file with this name has different content.
            OSError: if writing fails; the pool is then unchanged.
        """
        number, digest = len(self._members), hash_of(update)
        prefix = f"{number:05}-"
        path = self.folder / f"{prefix}{digest[:12]}{SUFFIX}"
        member = Member(number, learner, parent, update.step, update.version, digest, path.name, behavior=behavior)
        REAL.make_folder(self.folder)
        self._remove([name for name in self._files() if name.startswith(prefix) and name != member.path])
        if answered(path, path.exists):
            read_member(self.folder, member)  # from a run that was killed here; raises if it differs
        else:
            write_atomic(path, packed(replace(update, snapshot=number)))
        self._write_index([*self._members, member])
        return member

    def add_brains(self, brains: Iterable[MemberSettings], behaviors: Mapping[str, str]) -> None:
        """Add brains to the members, unless they are already members.

        Args:
            brains: the brains.
            behaviors: the behaviour that each brain plays, keyed by the brain's name, if several behaviours have a
                league.

        Raises:
            StageError: if a brain's file has changed since it became a member.
            OSError: if writing fails.
        """
        members = {(member.name, member.use): member for member in self._members if member.use}
        for brain in brains:
            file, before = Path(brain.use), members.get((brain.name, brain.use))
            digest = hashlib.sha256(read_file(file)).hexdigest() if answered(file, file.is_file) else ""
            if before is None:
                about = brain.use, brain.name, behaviors.get(brain.name, "")
                member = Member(len(self._members), "", -1, 0, 0, digest, brain.use, *about)
                REAL.make_folder(self.folder)
                self._write_index([*self._members, member])
                self.enter(member)
            elif before.hash != digest:
                raise StageError(
                    f"{brain.use}, member {before.number} ({before.name}) of the league's pool, has changed since it "
                    f"joined the pool: its SHA-256 was {before.hash or 'none'} and is {digest or 'none'}; restore the "
                    "original file, or give the new one a different name under league.members"
                )

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the members as plain data. Their files contain the weights."""
        return [asdict(member) for member in self._members]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the members from `state_dict()`, and remove the files of members that were frozen later.

        `check_members` has checked the files before the run started.
        """
        members = [Member(**plain) for plain in state]
        self._members = members
        if answered(self.folder, self.folder.exists):
            kept = {member.path for member in members if not member.use}
            self._write_index(members)
            self._remove([name for name in self._files() if name not in kept])

    def _write_index(self, members: Iterable[Member]) -> None:
        content = {"format": FORMAT, "members": [*map(asdict, members)]}
        write_atomic(self.folder / INDEX, json.dumps(content, indent=1).encode())

    def _files(self) -> list[str]:
        paths = matching(self.folder, "*")
        return [path.name for path in paths if path.suffix in (SUFFIX, ".partial") and answered(path, path.is_file)]

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            REAL.remove(self.folder / name)


def read_member(folder: Path, member: Member) -> PolicyUpdate:
    """Read a pool member's policy.

    Args:
        folder: the pool's folder.
        member: a member that is not a brain.

    Raises:
        StageError: if its file is missing, can't be read, or holds weights other than the frozen ones.
    """
    try:
        update = unpacked(_read_again(folder / member.path))
    except FileNotFoundError:
        raise _fault(folder, member, f"is missing (SHA-256 {member.hash})") from None
    except Exception as error:
        raise _fault(folder, member, f"can't be read: {error}") from error
    digest = hash_of(update)
    if digest != member.hash:
        was = f"has changed since it was frozen: the SHA-256 of its weights was {member.hash} and is {digest}"
        raise _fault(folder, member, was)
    return update


def check_members(folder: Path, state: Iterable[Mapping[str, Any]]) -> None:
    """Check the files of all members in a pool's `state_dict()`.

    Raises:
        StageError: if a file is missing or damaged; the message names the first one.
    """
    for member in (Member(**plain) for plain in state):
        if not member.use:
            read_member(folder, member)


def hash_of(update: PolicyUpdate) -> str:
    """Return the SHA-256 of a policy's weights, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(update.weights, "<f4").data).hexdigest()


def packed(update: PolicyUpdate) -> bytes:
    """Return a policy as bytes."""
    plain = {name: getattr(update, name) for name in ("behavior_id", "version", "step", "snapshot", "layout")}
    data: bytes = msgpack.packb({**plain, "weights": np.ascontiguousarray(update.weights, "<f4").tobytes()})
    return data


def unpacked(data: bytes) -> PolicyUpdate:
    """Invert `packed`."""
    plain = msgpack.unpackb(data)
    update = policy_from_state({**plain, "weights": np.frombuffer(plain["weights"], "<f4").astype(np.float32)})
    assert update is not None, "there is plain data"
    return update


def _read_again(path: Path) -> bytes:
    """Read a file, again and again for a second if the disk refuses to open, read or close it."""
    for pause_s in PAUSES_S[:ON_LOOP]:
        try:
            return read_file(path)
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause_s)
    return read_file(path)


def read_index(folder: Path) -> list[Member]:
    """Return the members that a pool's index lists; none if there is no index.

    Raises:
        StageError: if a different version of Headrace wrote the index.
        ValueError: if the index can't be read.
    """
    path = folder / INDEX
    try:
        content = parse_json(read_file(path))
        if content["format"] != FORMAT:
            raise StageError(
                f"{path} has format {content['format']}, but this version of Headrace reads format {FORMAT}"
            )
        members = [Member(**plain) for plain in content["members"]]
        for number, member in enumerate(members):
            kinds = [type(value) for value in asdict(member).values()]
            if kinds != [int if each.type == "int" else str for each in fields(Member)] or member.number != number:
                raise ValueError(f"its member {number} has a value of a different kind, or a different number")
            if not (member.use or re.fullmatch(rf"\d{{5,}}-[0-9a-f]{{12}}{SUFFIX}", member.path)):
                raise ValueError(f"its member {number} names a file that is not a member's: {member.path!r}")
        return members
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}, which lists the members of the league's pool, can't be read: {error}") from error


def _fault(folder: Path, member: Member, fault: str) -> StageError:
    return StageError(
        f"{folder / member.path}, member {member.number} ({member.label}) of the league's pool, {fault}; restore the "
        "original file, or restart the run with --force"
    )
