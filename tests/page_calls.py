"""Calls of a live page as a program makes them: the address from the log, JSON, the stream."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from run_configs import INLINE, Plain, cartpole, changed
from runs import PATIENCE_S, run_here

from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_handle import StopRequest

LONG = cartpole(
    behaviors__CartPole__max_steps=10**8,
    behaviors__CartPole__checkpoint_interval=10**8,
    behaviors__CartPole__hyperparameters__beta=0.005,
)
"""A run that goes on until it is stopped."""
CALM = Path(__file__).parent / "end_to_end" / "calm_stages.py"
LONG_HERE = changed(
    LONG,
    {**INLINE, "pipeline__stages": [{"use": "calm_stages:Calm"}], "behaviors__CartPole__summary_freq": 500},
)
"""The same in one process, at its ease; `CALM` lies beside it."""
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


class RunBeside:
    """A run with a page in a thread of this process: what tests ask of a command, without its start.

    Args:
        folder: where results go.
        plain: the configuration, all of whose hosts are inline.
        monitor: its section of that name.
        settings: of the checkpoints, such as `resume`.
    """

    def __init__(self, folder: Path, plain: Plain, monitor: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.results = folder
        self._stop = StopRequest()
        self._failure: BaseException | None = None
        monitored = changed(plain, {"monitor": monitor or {"listen": 0, "control": True}})
        self._log = folder / "run" / "run_logs" / "run.log"
        self._before = len(self._log.read_text(encoding="utf-8")) if self._log.exists() else 0
        self._thread = threading.Thread(target=self._run, args=(monitored, settings), daemon=True)
        self._thread.start()

    def _run(self, plain: Plain, settings: Mapping[str, Any]) -> None:
        try:
            run_here(plain, self.results, "run", RunOptions(stop=self._stop), **settings)
        except BaseException as failure:
            self._failure = failure

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._log.read_text(encoding="utf-8")[self._before :] if self._log.exists() else ""

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the run does."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if not self._thread.is_alive() and not condition():
                pytest.fail(f"the run ended ({self._failure!r}) before {what}; it said:\n{self.output}")
            assert time.monotonic() < deadline, f"no {what}; the run said:\n{self.output}"
            self._thread.join(0.01)

    def end(self) -> None:
        """Ask the run to stop, and see it end well."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), self.output
        assert self._failure is None, self._failure


class Page:
    """The page of a run.

    Args:
        command: started with `--monitor`, or a run beside the test.
        token: if the run says none.
    """

    def __init__(self, command: Any, token: str = "") -> None:
        self.command = command
        command.until(lambda: "The live page of this run: http" in command.output, "the page's address")
        found = re.search(r"live page of this run: (http://[^/]+)/(?:\?token=(\S+))?", command.output)
        assert found is not None
        self.origin, self.token = found[1], token or found[2] or ""

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
        """Wait for a state, of which there is a new one each second; it is returned."""
        deadline = time.monotonic() + PATIENCE_S
        for event in self.stream():
            if holds(event["state"]):
                return event["state"]
            if time.monotonic() > deadline:
                break
        pytest.fail(f"no {what}; the command said:\n{self.command.output}")

    def stream(self, **headers: str) -> Iterator[dict[str, Any]]:
        """The events of the stream."""
        secret = f"?token={quote(self.token, safe='')}" if self.token else ""
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
