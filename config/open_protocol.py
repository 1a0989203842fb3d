"""The `environment` section of games that speak the open protocol."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.environment import EnvironmentSettings


class OpenProtocolSettings(EnvironmentSettings):
    """A game of any engine that speaks the open protocol (docs/protocol.md). `env_settings` says which program."""

    kind: Literal["open_protocol"]
    transport: Literal["tcp", "websocket"] = Field(
        "tcp", description="How games call: plain TCP, or WebSockets, as pages in a browser do."
    )
