"""Plays what ML-Agents' own C# package said, from a recording in `unity_recordings/`.

The trainer's answers decide nothing, except that it can end the connection. As Unity takes actions by their position,
the player checks that every behaviour gets as many actions as its agents asked for.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.stages.environments.engines.unity.messages import CLOSE, OK, STEP, UnityMessageProto

FOLDER = Path(__file__).with_name("unity_recordings")
NAMES = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.wire.gz"))


def said(name: str) -> Iterator[Any]:
    """What Unity said, as `UnityMessageProto`."""
    data, at = gzip.decompress((FOLDER / f"{name}.wire.gz").read_bytes()), 0
    while at < len(data):
        from_unity = data[at : at + 1] == b"C"
        at += 1 if from_unity else 5  # the trainer's frames have a status, too
        (size,) = struct.unpack_from("<i", data, at)
        at += 4 + size
        if from_unity:
            yield UnityMessageProto.FromString(data[at - size : at])


def play(name: str, port: int) -> list[str]:
    """Play a recording to the trainer at a port; return what the trainer did wrong."""
    from unity_client.connection import Connection
    from unity_client.faults import Lost

    connection, wrong = Connection(port), []
    for number, message in enumerate(said(name)):
        if message.header.status != OK:
            break
        answer = UnityMessageProto.FromString(connection.raw(message.SerializeToString(), wait=number == 0))
        if answer.header.status == CLOSE:
            connection.close()
            return wrong
        orders = answer.unity_input.rl_input
        if number > 1 and orders.command == STEP:
            for behavior, infos in message.unity_output.rl_output.agentInfos.items():
                asked = sum(not info.done for info in infos.value)
                got = len(orders.agent_actions[behavior].value) if behavior in orders.agent_actions else 0
                if asked != got:
                    wrong.append(f"message {number}: {behavior}: {asked} agents asked, {got} actions came")
    with contextlib.suppress(Lost):  # nobody has to answer the last message
        connection.stop()
    connection.close()
    return wrong


class PlayedRecording:
    """A recording played in a thread of this process, as an Editor in which the user has pressed Play."""

    def __init__(self, name: str, port: int) -> None:
        self._wrong = ["not played to its end"]
        self._thread = threading.Thread(target=self._run, args=(name, port), daemon=True)
        self._thread.start()

    def _run(self, name: str, port: int) -> None:
        self._wrong = play(name, port)

    def wrong(self) -> list[str]:
        """Wait for the end; return what the trainer did wrong."""
        self._thread.join()
        return self._wrong


def build(name: str, folder: Path) -> Path:
    """Write a program that plays a recording, for `env_path`."""
    path = folder / f"{name}.x86_64"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    wrong_ones = play(sys.argv[1], int(sys.argv[sys.argv.index("--mlagents-port") + 1]))
    sys.exit("\n".join(wrong_ones))
