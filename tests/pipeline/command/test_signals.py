"""Signals of the command are its own: a process that an inline environment forks can be terminated."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap

import pytest

COMMAND = """
    async def main():
        with stopped_by_signals(MainSilence()) as signals:
            await asyncio.to_thread(terminate_a_fork)
            await asyncio.sleep(0.05)
            assert not signals.stop.is_set(), "the signal was for the fork alone"
    asyncio.run(main())
"""
HOST = """
    leave_signals_to_main()
    terminate_a_fork()
    game = subprocess.Popen(["sleep", "60"])
    game.terminate()
    assert game.wait(30) == -signal.SIGTERM
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
"""
BEGINNING = """
    import asyncio, multiprocessing, signal, subprocess, time
    from headrace.config.pipeline import MainSilence
    from headrace.pipeline.command.signals import stopped_by_signals
    from headrace.pipeline.hosts.child import leave_signals_to_main

    def terminate_a_fork():
        forking = multiprocessing.get_context("fork")
        runs = forking.Event()
        worker = forking.Process(target=lambda: (runs.set(), time.sleep(60)))
        worker.start()
        assert runs.wait(30)
        worker.terminate()
        worker.join(30)
        assert worker.exitcode == -signal.SIGTERM, worker.exitcode
"""


@pytest.mark.lengthy
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="nothing is forked here")
def test_processes_forked_by_main_or_a_host_end_when_terminated():
    whole = "".join(map(textwrap.dedent, (BEGINNING, COMMAND, HOST)))
    ended = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
