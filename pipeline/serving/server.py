"""The policy server as a program: reads models, opens the servers, and answers requests until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.config.listen import LAST_PORT, endpoint_of, reaches_others
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.common.process import allow_open_files, uncollected
from headrace.pipeline.common.signals import requests_received
from headrace.pipeline.serving.http_api import OPEN, serving_routes
from headrace.pipeline.serving.kserve_grpc import GrpcServer
from headrace.pipeline.serving.served_models import ServedModel, load_models
from headrace.pipeline.serving.service import PolicyService, ServingLimits
from headrace.pipeline.web import TOKEN_VARIABLE, TRIED_PORTS, Site, SiteOptions, make_token
from headrace.stop_requests import BY_SIGNAL

USUAL_PORT = 8480
MOST_BODY_BYTES = 8 * 1024 * 1024
"""Maximum size of a request in bytes: eleven images of 512×512×3 as bytes, or 4 MiB of numbers as JSON."""
MOST_CONNECTIONS = 2048
DRAIN_S = 10.0
"""Seconds for answering pending requests when the server shuts down: twice a request's time limit."""


@dataclass(frozen=True)
class ServingOptions:
    """The served models and the server's settings."""

    references: Sequence[str]
    """Model references with optional names (`load_models`)."""
    endpoint: str = ""
    """Address of the HTTP server, as `headrace.config.listen.Endpoint`; the gRPC server takes the next port."""
    deterministic: bool = False
    """True to answer with the mean and the most likely choice by default; requests can override this."""
    seed: int | None = None
    """Seed of all randomness; None for a random seed."""
    origins: Sequence[str] = ()
    """Origins whose pages may call the server from a browser."""
    access_log: bool = False
    """True to log every HTTP request."""


def serve(options: ServingOptions, tell: Callable[[str], None], at_once: Callable[[str, int], None]) -> None:
    """Serve models until the first stop request, then answer pending requests.

    Args:
        options: the models and settings.
        tell: called with text that lists the models and addresses.
        at_once: ends the process with a message and a status, at a second Ctrl-C or if requests can't be answered.

    Raises:
        CommandError: if a model can't be read, or the server can't listen.
    """
    allow_open_files(4 * MOST_CONNECTIONS)
    with uncollected():  # a garbage collection over the libraries' objects would delay requests by 0.1 s
        models = load_models(options.references)
    asyncio.run(_serve(models, options, tell, at_once))


async def _serve(
    models: Sequence[ServedModel],
    options: ServingOptions,
    tell: Callable[[str], None],
    at_once: Callable[[str, int], None],
) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def receive(request: signal.Signals) -> None:
        if stop.is_set():
            at_once("ended immediately; pending requests were not answered", BY_SIGNAL + request)
        stop.set()

    with requests_received(lambda request: loop.call_soon_threadsafe(receive, request)):
        service = PolicyService(models, options.deterministic, options.seed, time.monotonic)
        listen, port = endpoint_of(options.endpoint)
        token = make_token() if reaches_others(listen) else ""
        site_options = SiteOptions(
            options.endpoint,
            USUAL_PORT,
            token,
            lambda request: request.path not in OPEN,
            most_body_bytes=MOST_BODY_BYTES,
            most_connections=MOST_CONNECTIONS,
            origins=frozenset(options.origins),
            access_log=options.access_log,
            drops_abandoned=True,
        )
        site = Site(serving_routes(service), site_options)
        grpc_server = GrpcServer(service, listen, token, MOST_BODY_BYTES, MOST_CONNECTIONS)
        running = asyncio.create_task(service.run())
        running.add_done_callback(lambda _: stop.set())
        try:
            try:
                await site.start()
                await grpc_server.start(_grpc_ports(site.port, port))
            except OSError as error:
                raise CommandError(
                    f"--listen: {error.strerror}; choose a different address with --listen=HOST:PORT"
                ) from error
            tell(_words(models, site, grpc_server.port, token))
            await stop.wait()
            if running.done():  # the service has failed
                await running
            await _drain(service, site, grpc_server, at_once)
        finally:
            await grpc_server.stop(0.0)
            await site.stop()
            if not running.done():
                running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def _grpc_ports(taken: int, port: int | None) -> Sequence[int]:
    """Return the ports to try for the gRPC server: the HTTP server's plus 1, or several if the user gave no port."""
    if port is None:
        return range(taken + 1, taken + 1 + TRIED_PORTS)
    if port == LAST_PORT:
        raise CommandError(f"--listen: gRPC uses the next port, but {port} is the last one")
    return (0,) if port == 0 else (port + 1,)


async def _drain(
    service: PolicyService, site: Site, grpc_server: GrpcServer, at_once: Callable[[str, int], None]
) -> None:
    """Answer pending requests, while refusing new connections and new requests."""
    site.stop_listening()
    try:
        async with asyncio.timeout(DRAIN_S):
            await service.end()
    except TimeoutError:
        at_once(f"pending requests could not be answered within {DRAIN_S:g} s", 1)
    await grpc_server.stop(2 * ServingLimits.refused_s)
    await site.stop()


def _words(models: Sequence[ServedModel], site: Site, grpc_port: int, token: str) -> str:
    lines = [f"{model.name}: {model.newest.description}" for model in models]
    lines += [f"HTTP: {site.addresses()}", f"gRPC: port {grpc_port}"]
    if token:
        lines += [f"token: {'the value of ' + TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else token}"]
    return "\n".join([*lines, "Serving (Ctrl-C ends)"])
