"""The page for runs in folders, whether finished or still running in other processes: `--view RUN…`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.config.listen import endpoint_of, reaches_others
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.common.signals import requests_received
from headrace.pipeline.monitor.api import OPEN, USUAL_PORT, page_routes, run_routes
from headrace.pipeline.monitor.live_run import curves_of, league_for_page
from headrace.pipeline.reporting.console import ELO, REWARD
from headrace.pipeline.reporting.history import History, read_events
from headrace.pipeline.reporting.pictures import grouped, shared_settings
from headrace.pipeline.reporting.statistics import PIPELINE
from headrace.pipeline.reporting.time_shares import held_up_by
from headrace.pipeline.run_folder.folder import find_run, read_configuration
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.pipeline.web import Site, SiteOptions, make_token


class RunInFolder:
    """A run that is read from its folder, and read again when its event files have grown.

    Args:
        folder: `results/<run-id>`.

    Attributes:
        group: a number shared by runs that have the same configuration and differ only in their seeds.
    """

    live = False

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder
        self._history = History()
        self._signature: object = None
        self.group = 0

    def state(self) -> dict[str, Any]:
        """Return the progress of the run's behaviours."""
        named, found, all_curves = self._behaviors(), [], self._read().plain()
        cause = held_up_by(all_curves.pop(PIPELINE, {}), blocks=named)
        for name, curves in all_curves.items():
            newest, block = {each: curve["values"][-1] for each, curve in curves.items()}, named.get(name) or {}
            found.append(
                {
                    "name": name,
                    "trainer": block.get("trainer_type"),
                    "done": False,
                    "step": max(curve["steps"][-1] for curve in curves.values()),
                    "max_steps": block.get("max_steps"),
                    "steps_per_s": newest.get("Pipeline/Steps per Second"),
                    "reward": newest.get(REWARD),
                    "elo": newest.get(ELO),
                    "lag": newest.get("Policy/Lag"),
                    "policy_wait": None,
                    "updates": None,
                    "seconds_left": None,
                }
            )
        rest: dict[str, Any] = {"hosts": [], "edges": [], "players": [], "bottleneck": cause and asdict(cause)}
        return {"status": "from its folder", "message": "", "behaviors": found, **rest}

    def curves(self) -> dict[str, Any]:
        """Return all curves and marks."""
        return curves_of(self._read())

    def leagues(self) -> list[dict[str, Any]]:
        """Return the leagues stored in the run's folder; skip damaged files."""
        found = []
        for path in sorted(self._folder.glob("*/league.json")):
            try:
                found.append(league_for_page(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, LookupError, TypeError):
                continue
        return found

    def configuration(self) -> str:
        """Return the run's `configuration.yaml`."""
        try:
            return (self._folder / CONFIGURATION).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"# {error}"

    def log(self) -> list[dict[str, Any]]:
        """Return no lines, because this page shows no log."""
        return []

    def _read(self) -> History:
        files = sorted(self._folder.glob("*/events.out.tfevents.*"))
        signature = [(path, path.stat().st_size) for path in files]
        if signature != self._signature:
            self._history, self._signature = History(), signature
            read_events(self._folder, self._behaviors(), self._history)
        return self._history

    def _behaviors(self) -> Mapping[str, Any]:
        return read_configuration(self._folder).get("behaviors") or {}


def view(names: Sequence[str], results: str, endpoint: str, tell: Callable[[str], None]) -> None:
    """Serve the page for runs until Ctrl-C.

    Args:
        names: folders of runs, or run ids in `results`.
        results: the folder that contains all runs.
        endpoint: the endpoint to listen on.
        tell: called with the page's address.

    Raises:
        CommandError: if a run is missing or the server can't listen.
    """
    folders = [find_run(name, results, "--view") for name in names]
    runs = {str(number): RunInFolder(folder) for number, folder in enumerate(folders)}
    for number, places in enumerate(grouped([shared_settings(read_configuration(folder)) for folder in folders])):
        for place in places:
            runs[str(place)].group = number
    asyncio.run(_serve(runs, endpoint, tell))


async def _serve(runs: Mapping[str, RunInFolder], endpoint: str, tell: Callable[[str], None]) -> None:
    wide = reaches_others(endpoint_of(endpoint)[0])
    token = make_token() if wide else ""
    routes = [*page_routes(), *run_routes(runs, {"control": False})]
    site = Site(routes, SiteOptions(endpoint, USUAL_PORT, token, lambda request: request.path not in OPEN))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with requests_received(lambda: loop.call_soon_threadsafe(stop.set)):
        try:
            await site.start()
        except OSError as error:
            raise CommandError(
                f"--monitor: {error.strerror}; choose a different address with --monitor=HOST:PORT"
            ) from error
        tell(f"{', '.join(run.name for run in runs.values())}: {site.addresses(token)}  (Ctrl-C ends)")
        await stop.wait()
        await site.stop()
