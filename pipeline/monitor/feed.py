"""The stream of a run's states to all who look: each state is written down once, and who is slow skips some."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from aiohttp import hdrs, web

PATIENCE_S = 30.0
"""A viewer that reads nothing for so long is left."""
SILENCE_S = 15.0
"""After so long without a state there is a sign of life, for whoever stands between."""
MOST_VIEWERS = 100


class StateFeed:
    """The newest state, as an event of a stream."""

    def __init__(self) -> None:
        self.sequence = 0
        self._state: dict[str, Any] = {}
        self._event: bytes | None = None
        self._changed = asyncio.Event()
        self._viewers = 0
        self._over = False

    @property
    def viewers(self) -> int:
        """The number of those who look."""
        return self._viewers

    def publish(self, state: dict[str, Any]) -> None:
        """Put a state in the place of the one before."""
        self.sequence += 1
        self._state, self._event = {**state, "sequence": self.sequence}, None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """End the streams, behind the newest state."""
        self._over = True
        self._changed.set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer a viewer: the newest state at once, then each that is the newest when the viewer has read."""
        if self._viewers >= MOST_VIEWERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_VIEWERS} look already")
        response = web.StreamResponse(headers={hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        self._viewers += 1
        try:
            await response.prepare(request)
            if request.transport is not None:
                request.transport.set_write_buffer_limits(high=64 * 1024)
            await self._send_to(response)
        except (ConnectionResetError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._viewers -= 1
        return response

    def _newest(self) -> bytes:
        """The newest state, written down when the first viewer asks for it."""
        if self._event is None:
            self._event = b"id: %d\ndata: %s\n\n" % (self.sequence, to_json(self._state))
        return self._event

    async def _send_to(self, response: web.StreamResponse) -> None:
        seen = 0
        while True:
            changed = self._changed
            event = self._newest() if self.sequence != seen else b": still here\n\n"
            seen = self.sequence
            async with asyncio.timeout(PATIENCE_S):
                await response.write(event)
            if self._over and seen == self.sequence:
                return
            try:
                async with asyncio.timeout(SILENCE_S):
                    await changed.wait()
            except TimeoutError:
                continue


def to_json(plain: Any) -> bytes:
    """Write plain data down; numbers that JSON has none for become null."""
    try:
        return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(plain), separators=(",", ":")).encode()


def _finite(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
