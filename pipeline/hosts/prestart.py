"""Starts the first learner's process before the configuration is read, because importing torch takes most of a start.

Parsing the command and the YAML needs imports that take a quarter of a second, so this module guesses the learner from
their text with only the standard library. It guesses only if the command clearly requests a run in processes. A wrong
guess wastes one process and its imports; that process ends as soon as the configuration is known.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.pipeline.common.process import usable_cores
from headrace.pipeline.hosts.birth import child_environment, start_child
from headrace.pipeline.hosts.last_words import LastWords
from headrace.pipeline.hosts.process_cleanup import host_mark
from headrace.process_tree import ProcessTree
from headrace.surroundings import socket_pair

_NO_RUN = re.compile(
    r"(-h|--(help|version|validate|convert|to-demo|export-onnx|plot|tournament|view|serve|inference|env))\b"
)
"""Arguments of commands that start no learner, or start it late because an engine starts first."""
_ELSEWHERE = re.compile(r"\b(inline|ray|deterministic|inference)\b|^replay:", re.MULTILINE)
"""Words that suggest that learners won't run in processes; a false match, as in a comment, only costs time."""
_BEHAVIOR = re.compile(r"""^behaviors:\s*(?:#.*)?\n(?:\s*(?:#.*)?\n)*\s+["']?([\w-]+)["']?:""", re.MULTILINE)
"""Matches the first listed behaviour, in YAML's block style."""
_TRAINER = re.compile(r"\btrainer_type:\s*(\w+)")
_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class PrestartedProcess:
    """A started process that waits for the message that assigns its host."""

    process: ProcessTree
    mark: str
    lifeline: socket.socket
    """Main's end of the lifeline; the process ends when this socket closes, whatever the process is doing."""
    socket: socket.socket
    """Carries the process's start message; the process ends when this socket closes."""
    words: LastWords

    def dismiss(self) -> None:
        """End the process, because no host needs it."""
        with suppress(ProcessLookupError):  # it has already ended
            self.process.kill()
        self.socket.close()
        self.lifeline.close()
        self.process.wait()
        self.words.take()


_prestarted: dict[str, PrestartedProcess] = {}
"""Started children, keyed by the name of the intended host."""


def spawn(name: str, modules: Sequence[str], mark: str) -> PrestartedProcess:
    """Start a child process for a host.

    Args:
        name: name of the host that the child will run.
        modules: modules that the child imports while it waits.
        mark: environment mark that lets the sweeper recognise the child's own children.
    """
    (ours, theirs), words = socket_pair(), LastWords()
    with theirs:
        stdin = subprocess.PIPE if sys.platform == "win32" else theirs.fileno()
        module = "headrace.pipeline.hosts.child"
        process, lifeline, ticket = start_child(module, name, words, modules, child_environment(), mark, stdin=stdin)
        if sys.platform == "win32" and process.stdin is not None:
            with suppress(OSError), process.stdin:  # the child has died, as its exit status will show
                process.stdin.write(ticket + theirs.share(process.pid))
    return PrestartedProcess(process, mark, lifeline, ours, words)


@contextmanager
def prestarted_learner(arguments: Sequence[str]) -> Iterator[None]:
    """Start the learner process that a command is certain to need; at exit, end it if no host has taken it."""
    guess = guess_learner(arguments)
    try:
        if guess is not None:
            name, modules = guess
            with suppress(OSError):  # at a system limit, which the host's own start will report
                _prestarted[name] = spawn(name, modules, host_mark(name))
        yield
    finally:
        end_prestarted()


def take_prestarted(name: str) -> PrestartedProcess | None:
    """Return the child that was prestarted for a host; None if there is none."""
    return _prestarted.pop(name, None)


def end_prestarted() -> None:
    """End the prestarted children that no host has taken."""
    while _prestarted:
        _prestarted.popitem()[1].dismiss()


# Imports take most of a start, so the first learner imports while main reads the configuration (docs/decisions/009).
def guess_learner(arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the name of the first learner that a command will run, and the modules it imports; None if in doubt."""
    words = "\n".join(arguments)
    files = [argument for argument in arguments if argument.endswith((".yaml", ".yml"))]
    if usable_cores() == 1 or len(files) != 1 or any(map(_NO_RUN.match, arguments)) or _ELSEWHERE.search(words):
        return None
    try:
        with Path(files[0]).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_BYTES)
    except OSError:  # reported when the configuration is read
        return None
    first = _BEHAVIOR.search(text)
    if first is None or _ELSEWHERE.search(text):
        return None
    named = _TRAINER.search(text)
    trainer = "ppo" if named is None else named[1]
    return f"learner-{first[1]}", learner_imports(f"headrace.stages.trainer.{trainer}")


def learner_imports(*own: str) -> list[str]:
    """Return the modules that a learner imports.

    Args:
        own: the trainer's module, if the trainer is one of Headrace's.
    """
    return ["torch", "headrace.pipeline.roles.learner", *own]
