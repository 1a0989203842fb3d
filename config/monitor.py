"""The `monitor` section: the live page of a run."""

from __future__ import annotations

from pydantic import Field

from headrace.config.fields import Flag, Settings
from headrace.config.listen import Endpoint


class MonitorSettings(Settings):
    """The live page, and its HTTP API. Presence turns it on, as `--monitor` does. See docs/monitor.md."""

    listen: Endpoint = Field(
        "localhost",
        description="HOST:PORT, HOST or PORT; HOST is `localhost`, an address of this machine, or `all`. Without PORT "
        "the first that is free from 8470 on; 0: any.",
    )
    control: Flag = Field(
        False,
        description="Whoever has the token of the printed address may pause, save, stop and change hyperparameters.",
    )
