"""What can go wrong with a Unity, done on purpose at a given exchange."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from typing import Any

from unity_client.channels import Channels
from unity_client.connection import Connection
from unity_client.faults import CRASHED, Closed

_FORGOTTEN_S = 600
"""A hanging process that nobody kills ends by itself, long after its test."""


class Misbehavior:
    """One kind of trouble, at one exchange; or none."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._kind = options.misbehave
        self._at = options.at_step
        self._size = int(options.huge_mib * 2**20)
        self._exchanges = 0
        self._quits = options.quits
        if self._kind and options.once and not _first(options.once):
            self._kind = None
        options.misbehave = self._kind

    def before_connecting(self) -> None:
        if self._kind == "never-connects":
            hang()

    def after_greeting(self) -> None:
        if self._kind == "refuses-us":
            hang()

    def on_first_order(self, connection: Connection) -> None:
        if self._kind == "never-asks":
            hang()
        if self._kind == "quit-at-start":
            _say_goodbye(connection)

    def in_step(self, channels: Channels) -> None:
        """While Unity computes."""
        self._exchanges += 1
        if self._exchanges != self._at:
            return
        if self._kind == "die-mid-step":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "exit-mid-step":
            os._exit(CRASHED)
        elif self._kind == "quit-in-step":
            os._exit(0)
        elif self._kind == "hang":
            hang()
        elif self._kind == "huge-message":
            channels.tell_bulk(self._size)

    def send(self, connection: Connection, output: Any) -> Any:
        """Exchange, with trouble or without."""
        if self._quits is not None and self._quits.exists():
            _say_goodbye(connection)
        if self._exchanges == self._at:
            if self._kind == "stop":
                _say_goodbye(connection)
            if self._kind == "garbage":
                connection.raw(b"\xff" * 100)
            if self._kind == "empty-message":
                connection.raw(b"")
            self._spoil(output.rl_output)
        return connection.exchange(output)

    def _spoil(self, said: Any) -> None:
        name = next((name for name, infos in said.agentInfos.items() if infos.value), "")
        if not name:
            self._at += 1  # nobody to spoil anything of; the next one then
            return
        infos = said.agentInfos[name].value
        if self._kind == "nan-reward":
            infos[0].reward = float("nan")
        elif self._kind == "wrong-observation":
            infos[0].observations[0].float_data.data.append(0.0)
        elif self._kind == "duplicate-ids":
            infos.append(infos[-1])
        elif self._kind == "unknown-behavior":
            said.agentInfos["Stranger?team=0"].CopyFrom(said.agentInfos[name])


def _say_goodbye(connection: Connection) -> None:
    """End as a game that quits by itself.

    Raises:
        Closed: always.
    """
    connection.stop()
    raise Closed("Unity has closed the connection")


def hang() -> None:
    """Do nothing, as a program that waits for ever."""
    print("The stand-in Unity hangs from now on", flush=True)
    if hasattr(signal, "alarm"):
        signal.alarm(_FORGOTTEN_S)
    threading.Event().wait()


def _first(path: Any) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
