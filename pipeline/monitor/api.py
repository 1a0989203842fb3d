"""What the page's server answers: the files of the page, and `/api/…`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Protocol

from aiohttp import web

from headrace.pipeline.monitor.feed import to_json
from headrace.pipeline.web.files import file_routes

PAGE = {
    "/": "index.html",
    "/style.css": "style.css",
    "/uplot.min.js": "uplot.min.js",
    "/uplot.min.css": "uplot.min.css",
    "/icon.svg": "icon.svg",
    **{
        f"/{name}.js": f"{name}.js"
        for name in ("main", "run", "api", "graph", "curves", "tables", "league", "control", "watch", "stage", "dom")
    },
}
"""The page's files by their paths."""
OPEN = frozenset({*PAGE, "/healthz"})
"""Paths without anything of the run, which need no token."""


def page_routes() -> list[web.RouteDef]:
    """Return the routes of the page's files."""
    return file_routes(files("headrace.pipeline.monitor").joinpath("page"), PAGE)


def run_routes(runs: Mapping[str, ShownRun], options: Mapping[str, Any]) -> list[web.RouteDef]:
    """Return the routes that read runs.

    Args:
        runs: by the id in their paths.
        options: what the page may do, for it to know.
    """

    async def all_runs(_: web.Request) -> web.Response:
        listed = [{"id": key, "name": run.name, "live": run.live} for key, run in runs.items()]
        return answer({"runs": listed, **options})

    def reading(read: Callable[[ShownRun], Any]) -> Callable[[web.Request], Any]:
        async def respond(request: web.Request) -> web.Response:
            key = request.match_info["run"]
            if key not in runs:
                raise web.HTTPNotFound(text=f"there is no run '{key}'; there are: {', '.join(runs)}")
            return answer(read(runs[key]))

        return respond

    return [
        web.get("/api/runs", all_runs),
        web.get("/api/runs/{run}/state", reading(lambda run: run.state())),
        web.get("/api/runs/{run}/curves", reading(lambda run: run.curves())),
        web.get("/api/runs/{run}/leagues", reading(lambda run: run.leagues())),
        web.get("/api/runs/{run}/configuration", reading(lambda run: {"yaml": run.configuration()})),
        web.get("/api/runs/{run}/log", reading(lambda run: run.log())),
    ]


def answer(plain: Any) -> web.Response:
    """Return plain data as JSON."""
    return web.Response(body=to_json(plain), content_type="application/json", headers={"Cache-Control": "no-store"})


# What a page asks of a run, live or finished.


class ShownRun(Protocol):
    """A run on the page. All calls come from the server's thread."""

    @property
    def name(self) -> str:
        """The run id."""
        ...

    @property
    def live(self) -> bool:
        """True if it goes on."""
        ...

    def state(self) -> dict[str, Any]:
        """The newest state; see `state.state_of`."""
        ...

    def curves(self) -> dict[str, Any]:
        """All curves, by category and name."""
        ...

    def leagues(self) -> list[dict[str, Any]]:
        """The leagues, as `league_for_page` makes them."""
        ...

    def configuration(self) -> str:
        """The resolved configuration, as YAML."""
        ...

    def log(self) -> list[dict[str, Any]]:
        """The newest lines of the log."""
        ...
