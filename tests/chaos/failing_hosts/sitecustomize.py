"""Lets one host that runs no code of users fail: a shard of a replay buffer, a follower of a learner, the inference host.

Python imports this module as it starts, where its folder is in PYTHONPATH. `FAULT` says which host, when and what:
`host|moment|fault`, names of `test_failing_hosts.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

HOST, MOMENT, FAULT = os.environ.get("FAULT", "nobody|never|nothing").split("|")
HAPPENED = Path("happened")
"""Is there once the fault has happened; it happens once."""
SAVING = Path("saving")
"""Is there while the learner saves its part of a checkpoint, which waits for the fault."""


def strike() -> None:
    if HAPPENED.exists():
        return
    HAPPENED.touch()
    match FAULT:
        case "raise":
            raise RuntimeError("the disk is on fire")
        case "os._exit(0)":
            os._exit(0)
        case "kill -9" | "SIGSTOP":
            os.kill(os.getpid(), signal.SIGKILL if FAULT == "kill -9" else signal.SIGSTOP)
        case "hang in Python":
            while True:
                time.sleep(0.1)


def before(kind: Any, name: str, when: Any = lambda: True) -> None:
    """Let the fault come before a method of a class, where `when` holds."""
    method = getattr(kind, name)

    def failing(*arguments: Any) -> Any:
        if when():
            strike()
        return method(*arguments)

    setattr(kind, name, failing)


def behind(kind: Any, name: str) -> None:
    """Let the fault come behind a method that is awaited."""
    method = getattr(kind, name)

    async def failing(*arguments: Any) -> None:
        await method(*arguments)
        strike()

    setattr(kind, name, failing)


def checkpoint_is_whole() -> bool:
    return any(Path("results/run/checkpoints").glob("*[0-9]/manifest.json"))


def fail_as_a_shard() -> None:
    from headrace.pipeline.parts.replay_shards.host import ReplayShardHost
    from headrace.stages.trainer.replay.sharded_replay import ReplayShard

    match MOMENT:
        case "start":
            before(ReplayShardHost, "_restore")
        case "mid-run":
            before(ReplayShard, "process", checkpoint_is_whole)
        case "checkpoint":
            before(ReplayShard, "state_dict", checkpoint_is_whole)
        case "end":
            behind(ReplayShardHost, "_work")


def fail_as_the_inference_host() -> None:
    from headrace.pipeline.parts.central_inference import InferenceHost
    from headrace.stages.inference import CentralDecider

    match MOMENT:
        case "start":
            before(CentralDecider, "load")
        case "mid-run":
            before(CentralDecider, "answer", checkpoint_is_whole)
        case "checkpoint":
            before(CentralDecider, "answer", SAVING.exists)
        case "end":
            behind(InferenceHost, "_work")


def fail_as_a_follower() -> None:
    from headrace.pipeline.parts.followers import FollowerHost
    from headrace.stages.trainer.adam import Adam

    match MOMENT:
        case "start":
            before(FollowerHost, "_make_stage")
        case "end":
            behind(FollowerHost, "_work")
        case "mid-update":  # some gradients are added up, others are not
            calls = iter(range(10**9))
            before(Adam, "step", lambda: checkpoint_is_whole() and next(calls) == 2)
        case "checkpoint":
            watch_for_saving()


def watch_for_saving() -> None:
    """Let the fault come from a thread as soon as the learner saves."""
    import threading

    def watch() -> None:
        while not SAVING.exists():
            time.sleep(0.01)
        strike()

    threading.Thread(target=watch, daemon=True).start()


def wait_as_a_learner() -> None:
    """Let the learner's part of a second checkpoint take until the fault has happened."""
    from headrace.stages.trainer.stage import TrainerStage

    saved = TrainerStage.state_dict

    def slow(self: Any) -> Any:
        deadline = time.monotonic() + 20.0
        if checkpoint_is_whole():
            SAVING.touch()
        while SAVING.exists() and not HAPPENED.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return saved(self)

    TrainerStage.state_dict = slow  # type: ignore[method-assign]


if HOST in sys.orig_argv:
    if "-replica-" in HOST:
        fail_as_a_follower()
    elif HOST == "inference":
        fail_as_the_inference_host()
    else:
        fail_as_a_shard()
elif MOMENT == "checkpoint" and (
    ("-replica-" in HOST and HOST.partition("-replica-")[0] in sys.orig_argv)
    or (HOST == "inference" and "learner-CartPole" in sys.orig_argv)
):
    wait_as_a_learner()
