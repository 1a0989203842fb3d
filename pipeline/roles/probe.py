"""The host of a probe: it calls one function with the run's configuration and sends the result to main.

Before a run, some answers require an environment: how long its steps take, and what its checkers say. The functions
run here, so that main imports no environment and does not hang or crash with one.
"""

from __future__ import annotations

from headrace.config import RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.pipeline.control import ControlEnd, ProbeAnswer, ProbeRequest
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.protocol import maybe_await
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.user_calls import call_user


class ProbeHost:
    """Answers one request; an error that the function raises ends the process, and main receives the traceback."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        self._plan = plan
        self._control = control

    async def run(self) -> bool:
        """Call the requested function and send its result; return True for success."""
        async for message in self._control.receive():
            if isinstance(message, ProbeRequest):
                call = load_attribute(message.function, None, "probe")
                self._control.send(ProbeAnswer(tuple(await call(self._plan.load_config(), *message.arguments))))
                return True
        return False


async def advice_on(config: RunConfig) -> list[str]:
    """Return what the run itself does not report: findings of the environment checkers, and why no game is shown."""
    kind, request = config.environment_kind, EnvironmentRequest(config)
    advice = [] if kind.advice is None else call_user(list, load_entry(kind.advice)(request))
    if config.monitor is not None and not kind.not_shown:
        from headrace.stages.exhibition.film import make_shown_group

        try:
            group, _ = make_shown_group(request)
            try:
                await maybe_await(group.reset, 0)
            finally:
                await maybe_await(group.close)
        except StageError as error:
            advice.append(f"monitor: the live page can't show the game: {error}")
    return advice
