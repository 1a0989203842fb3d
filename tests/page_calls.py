"""Calls of a live page as a program makes them: the address from the log, JSON, the stream."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from run_configs import Plain, cartpole
from runs import Command

LONG = cartpole(behaviors__CartPole__max_steps=10**8, behaviors__CartPole__checkpoint_interval=10**8)
"""A run that goes on until it is stopped."""
SLOW = """
import time
from headrace.stages import Stage


class Slow(Stage):
    may_block = True

    def process(self, batch):
        time.sleep(0.4)
        yield batch
"""


def held_up(folder: Any) -> Plain:
    """A run in which a stage of main is slower than the actors, which may run far ahead."""
    (folder / "slow_stage.py").write_text(SLOW)
    return cartpole(
        behaviors__CartPole__max_steps=10**8,
        behaviors__CartPole__hyperparameters__buffer_size=4000,
        pipeline={
            "max_policy_lag": 20,
            "queues": {"trajectories": {"maxlen": 2}},
            "stages": [{"use": "slow_stage:Slow", "after": "agent_processor", "host": "main"}],
        },
    )


class Page:
    """The page of a command.

    Args:
        command: started with `--monitor`.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        command.until(lambda: "The live page of this run: http" in command.output, "the page's address")
        found = re.search(r"live page of this run: (http://[^/]+)/(?:\?token=(\S+))?", command.output)
        assert found is not None
        self.origin, self.token = found[1], found[2] or ""

    @property
    def address(self) -> str:
        return f"{self.origin}/?token={self.token}" if self.token else f"{self.origin}/"

    def call(
        self, path: str, body: Any = None, token: str | None = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """The status and the JSON (or text) of an answer."""
        token = self.token if token is None else token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(f"{self.origin}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, plain(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, plain(error.read())

    def state(self) -> Mapping[str, Any]:
        return self.call("/api/runs/live/state")[1]

    def step(self) -> int:
        return sum(each["step"] for each in self.state()["behaviors"])

    def until(self, holds: Callable[[Mapping[str, Any]], bool], what: str) -> Mapping[str, Any]:
        """Wait for a state; it is returned."""
        seen: list[Mapping[str, Any]] = []

        def look() -> bool:
            seen.append(self.state())
            return holds(seen[-1])

        self.command.until(look, what)
        return seen[-1]

    def stream(self, **headers: str) -> Iterator[dict[str, Any]]:
        """The events of the stream."""
        secret = f"?token={self.token}" if self.token else ""
        request = urllib.request.Request(f"{self.origin}/api/runs/live/stream{secret}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])


def plain(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()
