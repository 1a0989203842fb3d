"""The page's server: a thread with an event loop of its own, so that a long update in main does not stop it.

What goes wrong in it never reaches the run: it is logged, and training goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.web.site import Site, SiteOptions

log = logging.getLogger(__name__)

STOP_S = 5.0
"""Seconds that the server has to say goodbye to its viewers."""


class PageServer:
    """A site in a thread.

    Args:
        routes: what it answers.
        options: what it allows.
        goodbye: called in its loop before it ends, and awaited.
    """

    def __init__(
        self, routes: Sequence[web.RouteDef], options: SiteOptions, goodbye: Callable[[], Awaitable[None]]
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._site = Site(routes, options)
        self._goodbye = goodbye

    @property
    def url(self) -> str:
        """The page's address, without a token."""
        return self._site.url

    def start(self) -> None:
        """Listen.

        Raises:
            RunError: if it can't.
        """
        self._thread.start()
        try:
            self._do(self._site.start())
        except OSError as error:
            self._end_thread()
            raise RunError(f"monitor.listen: {error.strerror}; choose another with --monitor=HOST:PORT") from error

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the server's loop, soon."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._guarded, function, *arguments)

    def stop(self) -> None:
        """Tell the viewers, and end."""
        try:
            self._do(self._say_goodbye())
        except Exception as error:
            log.warning("The page's server did not end in order: %s", error or type(error).__name__)
        self._end_thread()

    async def _say_goodbye(self) -> None:
        await self._goodbye()
        await asyncio.sleep(0.1)  # the newest state is on its way to the viewers
        await self._site.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STOP_S)

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            log.error("The page can't show the run's state (training goes on): %r", error)
