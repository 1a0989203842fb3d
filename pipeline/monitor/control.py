"""A run's controls over HTTP: the requests, their schema, and how they reach main."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from headrace.config.errors import ConfigError
from headrace.pipeline.main.controls import NeedsConfirmation, NotNow, RunControls
from headrace.pipeline.monitor.api import answer
from headrace.pipeline.web.site import read_json

PATIENCE_S = 10.0
"""Seconds to wait for main, which a long update of an inline trainer may block."""
OFF = "controls are off: start the run with --monitor-control"

Action = Callable[[web.Request], Awaitable[Callable[[], None]]]


class HyperparameterChange(BaseModel):
    """A new value of a scheduled hyperparameter, effective at the next update and saved in checkpoints."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    behavior: str = Field(description="The behaviour's name.")
    name: str = Field(
        description="A hyperparameter, such as learning_rate: a key of `hyperparameters` in the behaviour's state."
    )
    value: float = Field(
        description="The value at the start of the schedule, within the bounds that the YAML key allows."
    )
    confirm: bool = Field(
        False, description="True to confirm a value that differs from the current one by more than a factor of 10."
    )


class Control:
    """Carries control requests to main.

    Args:
        controls: main's controls for users.
        stop: event that ends the run cleanly when set.
        loop: main's event loop.
        allowed: False to refuse all requests.
    """

    def __init__(
        self, controls: RunControls, stop: asyncio.Event, loop: asyncio.AbstractEventLoop, allowed: bool
    ) -> None:
        self._controls = controls
        self._stop = stop
        self._loop = loop
        self._allowed = allowed

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return the control routes, which are below the run's path."""
        plain = {
            "pause": self._controls.pause,
            "resume": lambda: self._controls.pause(False),
            "checkpoint": self._controls.checkpoint,
            "stop": self._stop.set,
        }
        return [
            *(web.post(f"{prefix}/{name}", self._handler(_always(call))) for name, call in plain.items()),
            web.post(f"{prefix}/hyperparameters", self._handler(self._change)),
            web.get("/api/openapi.json", _describe),
        ]

    async def _change(self, request: web.Request) -> Callable[[], None]:
        change = await read_json(request, HyperparameterChange)
        return lambda: self._controls.set_hyperparameter(**change.model_dump())

    def _handler(self, action: Action) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def respond(request: web.Request) -> web.Response:
            if not self._allowed:
                raise web.HTTPForbidden(text=OFF)
            await self._in_main(await action(request))
            return answer({"done": True})

        return respond

    async def _in_main(self, call: Callable[[], None]) -> None:
        async def carry_out() -> None:
            call()

        try:
            done = asyncio.run_coroutine_threadsafe(carry_out(), self._loop)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wrap_future(done)
        except NotNow as error:
            raise web.HTTPConflict(text=str(error)) from None
        except NeedsConfirmation as error:
            raise web.HTTPPreconditionRequired(text=f"{error}; to set it anyway, also send 'confirm: true'") from None
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error.args[0])) from None
        except ConfigError as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from None
        except TimeoutError:
            raise web.HTTPServiceUnavailable(
                text=f"the main process did not respond within {PATIENCE_S:.0f} s"
            ) from None


def _always(call: Callable[[], None]) -> Action:
    async def action(_: web.Request) -> Callable[[], None]:
        return call

    return action


async def _describe(_: web.Request) -> web.Response:
    return answer(schema())


def schema() -> dict[str, Any]:
    """Return the API as an OpenAPI document."""
    words = {
        "pause": "Pause the actors; the trainers still learn from steps in flight",
        "resume": "Resume the actors",
        "checkpoint": "Save a checkpoint now",
        "stop": "End the run with a final checkpoint, as Ctrl-C does",
        "hyperparameters": str(HyperparameterChange.__doc__),
    }
    refusals = {
        "401": "The token is missing or wrong",
        "403": "Controls are off, or the caller is from a different origin",
        "404": "Unknown behaviour or hyperparameter",
        "409": "Not possible now; the message says why",
        "413": "The body is too large",
        "422": "The body is malformed, or the value is out of bounds",
        "428": "The value is far from the current one: send `confirm: true` with it",
    }
    responses = {status: {"description": text} for status, text in {"200": "Done", **refusals}.items()}
    posts: dict[str, Any] = {}
    for name, text in words.items():
        operation: dict[str, Any] = {"summary": text, "responses": responses, "security": [{"token": []}]}
        if name == "hyperparameters":
            content = {"application/json": {"schema": HyperparameterChange.model_json_schema()}}
            operation["requestBody"] = {"required": True, "content": content}
        posts[f"/api/runs/live/{name}"] = {"post": operation}
    reads = ("state", "curves", "leagues", "configuration", "log", "stream")
    gets = {
        f"/api/runs/live/{name}": {
            "get": {"summary": f"The run's {name}", "responses": {"200": {"description": "JSON"}}}
        }
        for name in reads
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace's live page", "version": "1"},
        "paths": {**gets, **posts},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
