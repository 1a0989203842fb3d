"""The first learner's process, started before the configuration is read: most of a start is its import of torch.

What there will be is guessed from the words of the command and of the file, by the standard library alone, as reading
them in earnest needs imports that take a quarter of a second. A guess is made only where a run in processes is asked
for plainly; a wrong one costs a process that imports for nothing and is ended as soon as the configuration is known.
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
"""Arguments of commands that start no learner, or that may take a while to: an engine is started first."""
_ELSEWHERE = re.compile(r"\b(inline|ray|deterministic|inference)\b|^replay:", re.MULTILINE)
"""Words of files and commands whose learners may not be in processes; one of them in a comment costs speed alone."""
_BEHAVIOR = re.compile(r"""^behaviors:\s*(?:#.*)?\n(?:\s*(?:#.*)?\n)*\s+["']?([\w-]+)["']?:""", re.MULTILINE)
"""The first of the listed behaviours, in the block style that people write."""
_TRAINER = re.compile(r"\btrainer_type:\s*(\w+)")
_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class PrestartedProcess:
    """A process that has started and waits to be told which host it is."""

    process: ProcessTree
    mark: str
    lifeline: socket.socket
    """Main's end; it ends when this closes, whatever it is doing."""
    socket: socket.socket
    """Where it waits for its start message; it ends when this closes."""
    words: LastWords

    def dismiss(self) -> None:
        """End it, as nobody needs it."""
        with suppress(ProcessLookupError):  # it was quicker
            self.process.kill()
        self.socket.close()
        self.lifeline.close()
        self.process.wait()
        self.words.take()


_prestarted: dict[str, PrestartedProcess] = {}
"""By the name of the host that each is meant for."""


def spawn(name: str, modules: Sequence[str], mark: str) -> PrestartedProcess:
    """Start a child.

    Args:
        name: of the host that it will be.
        modules: what it imports while it waits.
        mark: by which the sweeper knows what it has started.
    """
    (ours, theirs), words = socket_pair(), LastWords()
    with theirs:
        stdin = subprocess.PIPE if sys.platform == "win32" else theirs.fileno()
        module = "headrace.pipeline.hosts.child"
        process, lifeline, ticket = start_child(module, name, words, modules, child_environment(), mark, stdin=stdin)
        if sys.platform == "win32" and process.stdin is not None:
            with suppress(OSError), process.stdin:  # it has died, which shows by its end
                process.stdin.write(ticket + theirs.share(process.pid))
    return PrestartedProcess(process, mark, lifeline, ours, words)


@contextmanager
def prestarted_learner(arguments: Sequence[str]) -> Iterator[None]:
    """Start the learner's process that a command line will surely need; ended at the end if nobody took it."""
    guess = guess_learner(arguments)
    try:
        if guess is not None:
            name, modules = guess
            with suppress(OSError):  # at a limit of the system, which whoever starts the host will name
                _prestarted[name] = spawn(name, modules, host_mark(name))
        yield
    finally:
        end_prestarted()


def take_prestarted(name: str) -> PrestartedProcess | None:
    """Return the child that was started for a host before all others, if there is one."""
    return _prestarted.pop(name, None)


def end_prestarted() -> None:
    """End what was guessed wrongly."""
    while _prestarted:
        _prestarted.popitem()[1].dismiss()


# Imports take most of a start, so the first learner imports while main reads the configuration (docs/decisions/009).
def guess_learner(arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the name of the first learner of a command's run and what it imports; None if that is not plain."""
    words = "\n".join(arguments)
    files = [argument for argument in arguments if argument.endswith((".yaml", ".yml"))]
    if usable_cores() == 1 or len(files) != 1 or any(map(_NO_RUN.match, arguments)) or _ELSEWHERE.search(words):
        return None
    try:
        with Path(files[0]).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_BYTES)
    except OSError:  # whoever reads it in earnest says so
        return None
    first = _BEHAVIOR.search(text)
    if first is None or _ELSEWHERE.search(text):
        return None
    named = _TRAINER.search(text)
    trainer = "ppo" if named is None else named[1]
    return f"learner-{first[1]}", learner_imports(f"headrace.stages.trainer.{trainer}")


def learner_imports(*own: str) -> list[str]:
    """Return what a learner imports, as far as it is ours.

    Args:
        own: the module of its trainer, if that is ours.
    """
    return ["torch", "headrace.pipeline.roles.learner", *own]
