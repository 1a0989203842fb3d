"""Mutated requests: whatever is sent to the live page and to the policy server is answered or refused, with 2xx or 4xx.

The long ones also look at memory, and print what they did; their figures are in docs/reliability.md.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time

import grpc.aio
import psutil
import pytest
from fuzz_requests import SILENT, of_page, of_server, requests, statuses
from page_calls import LONG, Page
from runs import COMMAND, Command
from serving_samples import serving, write_model

from headrace.pipeline.serving.http_api import serving_routes
from headrace.pipeline.serving.kserve_grpc import SERVICE, GrpcServer, message
from headrace.pipeline.web import Site, SiteOptions

ROW = (0.5, -1.0, 2.0)
METHODS = ("ModelInfer", "ModelInfer", "ModelMetadata", "ModelReady")
REFUSED = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}
MANY, STEP = 10_000, 2500
MOST_MIB = 16
"""By which a server's memory may grow over the last three quarters of the requests."""


@pytest.mark.lengthy
async def test_the_policy_server_answers_or_refuses_mutated_requests(tmp_path):
    write_model(tmp_path)
    async with serving(tmp_path) as service:
        site = Site(serving_routes(service), SiteOptions("127.0.0.1:0", drops_abandoned=True))
        server = GrpcServer(service, "127.0.0.1", "", 100_000, 64)
        await site.start()
        await server.start((0,))
        found = await statuses(site.port, requests(0, 150, of_server(ROW)))
        assert found[200] > 10
        assert found[422] > 10
        assert found[SILENT] < 10
        assert await grpc_codes(server.port, 0, 60) <= {"OK", *REFUSED}
        await server.stop(0.0)
        await site.stop()


async def grpc_codes(port, seed, count):
    """The codes of so many calls with mutated messages."""
    import random

    chance, found = random.Random(seed), set()
    tensor = {"name": "vector", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": ROW}}
    request = message("ModelInferRequest")(model_name="Ball", inputs=[tensor])
    good = request.SerializeToString()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(count):
            sent = bytearray(good)
            for _ in range(chance.randrange(4)):
                sent[chance.randrange(len(sent))] = chance.randrange(256)
            call = channel.unary_unary(f"/{SERVICE}/{chance.choice(METHODS)}")(bytes(sent), timeout=20)
            found.add((await call.code()).name)
    return found


def memory_mib(pid):
    return psutil.Process(pid).memory_info().rss / 2**20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_policy_servers_memory_stays_flat_over_ten_thousand_mutated_requests(tmp_path):
    write_model(tmp_path)
    line = [sys.executable, str(COMMAND), "--serve", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while "Serving" not in said:
            said += process.stdout.readline()
        port, grpc_port = (int(re.search(text, said)[1]) for text in (r"127\.0\.0\.1:(\d+)/", r"gRPC: port (\d+)"))
        memory = []
        try:
            for seed in range(MANY // STEP):
                found = asyncio.run(statuses(port, requests(seed + 1, STEP, of_server(ROW))))
                codes = asyncio.run(grpc_codes(grpc_port, seed + 1, STEP // 5))
                assert codes <= {"OK", *REFUSED}
                memory.append(memory_mib(process.pid))
                print(dict(found), codes, f"{memory[-1]:.1f} MiB")
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert memory[-1] - memory[0] < MOST_MIB


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_continues_with_flat_memory_over_ten_thousand_mutated_requests_to_its_page(tmp_path):
    command = Command(tmp_path, LONG, "--monitor=0", "--monitor-control")
    try:
        page = Page(command)
        page.until(lambda state: state["status"] == "running" and state["behaviors"], "a running run")
        port = int(page.origin.rpartition(":")[2])
        memory, before = [], rate(page, 20.0)
        for seed in range(MANY // STEP):
            began, step = time.monotonic(), page.step()
            found = asyncio.run(statuses(port, requests(seed + 1, STEP, of_page(page.token, "CartPole"))))
            took = time.monotonic() - began
            memory.append(memory_mib(command.process.pid))
            print(dict(found), f"{memory[-1]:.1f} MiB, {STEP / took:.0f} requests/s", end=", ")
            print(f"{(page.step() - step) / took:.0f} steps/s")
        print(f"without: {before:.0f} and {rate(page, 20.0):.0f} steps/s")
        assert page.state()["status"] == "running"
        command.interrupt()
        assert command.wait() == 0, command.output
        assert "could not be answered" not in command.output
    finally:
        command.end()
    assert memory[-1] - memory[0] < MOST_MIB


def rate(page, seconds):
    """Steps per second over so many seconds."""
    began, step = time.monotonic(), page.step()
    page.command.until(lambda: time.monotonic() - began > seconds, "some seconds")
    return (page.step() - step) / (time.monotonic() - began)
