"""The page for runs in folders, whether finished or still running in other processes: `--view RUN…`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from headrace.config.listen import endpoint_of, reaches_others
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.common.signals import requests_received
from headrace.pipeline.monitor.api import OPEN, USUAL_PORT, add_runs, page_routes
from headrace.pipeline.monitor.shown_runs import RunInFolder
from headrace.pipeline.reporting.pictures import distinct_names, grouped, shared_settings
from headrace.pipeline.run_folder.folder import find_run, read_configuration
from headrace.pipeline.web import Api, Site, SiteOptions, make_token


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
    folders = [*dict.fromkeys(find_run(name, results, "--view") for name in names)]
    runs = {str(number): run for number, run in enumerate(map(RunInFolder, folders, distinct_names(folders)))}
    for number, numbers in enumerate(grouped([shared_settings(read_configuration(folder)) for folder in folders])):
        for member in numbers:
            runs[str(member)].group = number
    asyncio.run(_serve(runs, endpoint, tell))


async def _serve(runs: Mapping[str, RunInFolder], endpoint: str, tell: Callable[[str], None]) -> None:
    wide = reaches_others(endpoint_of(endpoint)[0])
    token = make_token() if wide else ""
    api = Api("Headrace's page of finished runs", {}, page_routes())
    add_runs(api, runs, {"control": False})
    site = Site(api.routes, SiteOptions(endpoint, USUAL_PORT, token, lambda request: request.path not in OPEN))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with requests_received(lambda _: loop.call_soon_threadsafe(stop.set)):
        try:
            await site.start()
        except OSError as error:
            raise CommandError(
                f"--monitor: {error.strerror}; choose a different address with --monitor=HOST:PORT"
            ) from error
        tell(f"{', '.join(run.name for run in runs.values())}: {site.addresses(token)}  (Ctrl-C ends)")
        await stop.wait()
        await site.stop()
