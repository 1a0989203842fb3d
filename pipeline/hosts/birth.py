"""Starts Headrace's child processes, each with a lifeline, a mark for the sweeper and a file for its last words."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.pipeline.common.process import let_child_find_us, start_python, use_one_thread
from headrace.pipeline.hosts.held import LENGTH
from headrace.pipeline.hosts.last_words import LastWords
from headrace.pipeline.hosts.sweeper import VARIABLE
from headrace.process_tree import ProcessTree
from headrace.surroundings import socket_pair, surroundings


# `multiprocessing` would need a guard in the user's script, and would pickle what it sends (docs/decisions/007).
def start_child(
    module: str,
    name: str,
    words: LastWords,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    mark: str,
    **options: Any,
) -> tuple[ProcessTree, socket.socket, bytes]:
    """Run one of Headrace's modules in a child process that ends when its lifeline closes.

    Args:
        module: the module to run. It must take its lifeline before anything else (`held`). Its command-line arguments
            are the name, one argument each for the lifeline and the last words, and then `arguments`.
        name: the child's name in a process list.
        words: main's end of the file for the child's last words.
        arguments: additional arguments.
        environment: the child's environment variables.
        mark: environment mark that lets the sweeper recognise the child's own children.
        options: as for `start_python`.

    Returns:
        The child, main's end of its lifeline, and the first bytes to write to its standard input.
    """
    ours, theirs = socket_pair()
    try:
        with theirs:
            options = {**words.options, **options}
            if sys.platform != "win32":
                options["pass_fds"] = [*options.get("pass_fds", ()), theirs.fileno()]
            # The working directory must not come first on the path: the user may have a `random.py` there.
            line = ["-P", "-m", module, name, f"{os.getpid()}:{theirs.fileno()}", words.argument, *arguments]
            child = start_python(line, {**environment, VARIABLE: mark}, **options)
            ticket = b""
            if sys.platform == "win32":
                ticket = theirs.share(child.pid)
                ticket = struct.pack(LENGTH, len(ticket)) + ticket
    except BaseException:
        ours.close()
        raise
    return child, ours, ticket


def child_environment() -> dict[str, str]:
    """Return a child's environment variables. They give it the same packages, and one thread for numeric libraries."""
    environment = dict(surroundings().variables)
    let_child_find_us(environment)
    use_one_thread(environment)
    return environment
