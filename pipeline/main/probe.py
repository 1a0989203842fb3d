"""Calls a function with a run's configuration in a process host, before the run (`pipeline/roles/probe.py`)."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.config import RunConfig
from headrace.pipeline.control import HostFailed, ProbeAnswer, ProbeRequest
from headrace.pipeline.hosts.failures import how_it_ended
from headrace.pipeline.hosts.links import HostLinks
from headrace.pipeline.hosts.process import ProcessHost, start_process
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.stop_requests import cleaned_up_by

_START_S = 60.0
"""Seconds that the process may take to start and to import its modules."""


class ProbeError(Exception):
    """A probe gave no answer; the message says why."""


def probe(config: RunConfig, function: str, *arguments: Any, timeout_s: float) -> tuple[Any, ...]:
    """Call an async function with a configuration and more arguments; return the items of its result.

    Call this in a thread without a running event loop. If the thread is abandoned, the process ends.

    Args:
        config: the function's first argument.
        function: `module:name`; the function's other arguments and its result's items are msgpack types.
        arguments: the other arguments.
        timeout_s: time limit in seconds, in addition to the time that a host may take to start.

    Raises:
        ProbeError: if the function raises, crashes, or takes too long.
    """
    return asyncio.run(_ask(config, ProbeRequest(function, arguments), timeout_s + _START_S))


async def _ask(config: RunConfig, request: ProbeRequest, timeout_s: float) -> tuple[Any, ...]:
    path = None if config.path is None else str(config.path)
    host = await start_process(HostPlan("probe", "probe", config.to_plain(), path, "", 0), HostLinks())
    with cleaned_up_by(host.kill):
        host.control.send(request)
        try:
            async with asyncio.timeout(timeout_s):
                return await _answer(host)
        except TimeoutError:
            raise ProbeError(f"no answer within {timeout_s:g} s: {await host.describe()}") from None
        finally:
            host.kill()
            await host.wait()
            host.close()


async def _answer(host: ProcessHost) -> tuple[Any, ...]:
    async for message in host.control.receive():
        if isinstance(message, ProbeAnswer):
            return message.values
        if isinstance(message, HostFailed):
            raise ProbeError(message.message)
    raise ProbeError(f"its process {how_it_ended(await host.wait())}")
