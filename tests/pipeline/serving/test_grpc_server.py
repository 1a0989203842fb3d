"""The policy server over gRPC, on loopback: right answers, and the right refusals of everything else."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from typing import Any

import grpc.aio
import numpy as np
import pytest
from serving_samples import MEMORY, PICTURE, expected, serving, write_model

from headrace.pipeline.serving import grpc_server, open_inference_grpc
from headrace.pipeline.serving.batcher import BatchLimits
from headrace.pipeline.serving.grpc_server import GrpcServer
from headrace.pipeline.serving.served_models import load_models
from headrace.pipeline.serving.service import PolicyService

ROW = [0.5, -1.0, 2.0]


class Stub:
    """What a client's generated code would be."""

    def __init__(self, channel):
        for name in ("ListModels", "Act", "OpenSession", "CloseSession"):
            request, response = (getattr(grpc_server, f"{name}{end}") for end in ("Request", "Response"))
            path = f"/{grpc_server.SERVICE}/{name}"
            setattr(self, name, channel.unary_unary(path, request.SerializeToString, response.FromString))
        self.raw = channel.unary_unary(f"/{grpc_server.SERVICE}/Act")


@asynccontextmanager
async def called(*references, token="", most_bytes=100_000, **options):
    async with serving(*references, **options) as service:
        server = GrpcServer(service, "127.0.0.1", token, most_bytes, 64)
        await server.start((0,))
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                yield service, Stub(channel)
        finally:
            await server.stop(0.0)


def asking(*rows, name="", model="Ball", **more):
    values = [number for row in rows or (ROW,) for number in row]
    return grpc_server.ActRequest(model=model, observations=[{"name": name, "values": values}], **more)


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name, raised.value.details()


async def test_it_answers_as_the_policy_decides(tmp_path):
    write_model(tmp_path)
    rows = [ROW, [1, 2, 3]]
    wanted = expected([rows]).actions
    async with called(tmp_path) as (_, stub):
        for name in ("", "vector"):
            answer = await stub.Act(asking(*rows, name=name))
            np.testing.assert_allclose(answer.continuous, wanted.continuous.reshape(-1), rtol=1e-5)
            assert list(answer.discrete) == wanted.discrete.reshape(-1).tolist()
            assert (answer.agents, answer.version, answer.step) == (2, 1, 500)
        masks = [False, True, False, False, True]
        assert list((await stub.Act(asking(masks=masks, deterministic=False))).discrete) == [1, 1]


async def test_models_are_described(tmp_path):
    write_model(tmp_path, observed=(PICTURE,), memory=MEMORY)
    async with called(tmp_path) as (_, stub):
        (model,) = (await stub.ListModels(grpc_server.ListModelsRequest())).models
        assert (model.name, model.memory, model.continuous_size, model.masked) == ("Ball", True, 2, True)
        assert list(model.discrete_branches) == [3, 2]
        (seen,) = model.observations
        assert (seen.name, list(seen.shape), seen.dtype) == ("eye", [3, 20, 20], "uint8")


async def test_pictures_are_bytes_or_numbers(tmp_path):
    write_model(tmp_path, observed=(PICTURE,))
    seen = np.random.default_rng(0).integers(0, 256, (1, *PICTURE.shape), np.uint8)
    async with called(tmp_path) as (_, stub):
        data = await stub.Act(grpc_server.ActRequest(model="Ball", observations=[{"data": seen.tobytes()}]))
        values = await stub.Act(
            grpc_server.ActRequest(model="Ball", observations=[{"values": seen.reshape(-1).tolist()}])
        )
        assert list(data.continuous) == list(values.continuous)
        np.testing.assert_allclose(
            data.continuous, expected([seen], observed=(PICTURE,)).actions.continuous[0], rtol=1e-5
        )


@pytest.mark.lengthy
async def test_a_session_remembers(tmp_path):
    write_model(tmp_path, memory=MEMORY)
    first = expected([[ROW]], memory=MEMORY)
    second = expected([[ROW]], recall=first.recall, memory=MEMORY)
    async with called(tmp_path) as (_, stub):
        key = (await stub.OpenSession(grpc_server.OpenSessionRequest(model="Ball"))).session
        for wanted, starts in ((first, []), (second, []), (first, [True])):
            answer = await stub.Act(asking(session=key, episode_start=starts))
            np.testing.assert_allclose(answer.continuous, wanted.actions.continuous[0], rtol=1e-5)
        await stub.CloseSession(grpc_server.CloseSessionRequest(model="Ball", session=key))
        assert (await refusal(stub.Act(asking(session=key))))[0] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (asking(model="Bell"), "NOT_FOUND", "did you mean 'Ball'"),
        (asking(session="none"), "NOT_FOUND", "this model has no session 'none'"),
        (
            asking([1, 2]),
            "INVALID_ARGUMENT",
            "got 2 numbers; expected a multiple of 3, because each agent's vector float32[3] has 3 numbers",
        ),
        (asking([1, 2, float("nan")]), "INVALID_ARGUMENT", "not finite"),
        (asking(name="vektor"), "INVALID_ARGUMENT", "did you mean 'vector'"),
        (asking(masks=[True] * 4), "INVALID_ARGUMENT", "masks: has shape (4,), for 1 agents"),
        (asking(masks=[False] * 5), "INVALID_ARGUMENT", "forbids all 3 choices of branch 0"),
        (asking(episode_start=[True]), "INVALID_ARGUMENT", "the request names none"),
        (grpc_server.ActRequest(model="Ball"), "INVALID_ARGUMENT", "observations.vector: missing"),
        (
            grpc_server.ActRequest(model="Ball", observations=[{"values": ROW}, {"name": "vector", "values": ROW}]),
            "INVALID_ARGUMENT",
            "either give each observation a different name, or leave all names empty",
        ),
        (
            grpc_server.ActRequest(model="Ball", observations=[{"values": ROW, "data": b"\0" * 12}]),
            "INVALID_ARGUMENT",
            "has both values and data",
        ),
        (grpc_server.ActRequest(model="x" * 200_000), "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
async def test_what_does_not_fit_is_refused_and_nothing_else_happens(tmp_path, request_, code, words):
    write_model(tmp_path)
    async with called(tmp_path) as (service, stub):
        found = await refusal(stub.Act(request_))
        assert (found[0], words in found[1]) == (code, True), found
        assert 'headrace_serving_decisions_total{model="Ball"} 0.0' in service.tally.text().decode()
        assert (await stub.Act(asking())).agents == 1


async def test_what_is_no_message_is_the_callers_mistake(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (_, stub):
        assert (await refusal(stub.raw(b"\xff\xff")))[0] == "INVALID_ARGUMENT"
        sessions = stub.OpenSession(grpc_server.OpenSessionRequest(model="Ball", agents=-3))
        assert (await refusal(sessions))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", "right"),)])
async def test_only_who_knows_the_token_is_served(tmp_path, metadata):
    write_model(tmp_path)
    async with called(tmp_path, token="right") as (_, stub):
        for call, request in ((stub.Act, asking()), (stub.ListModels, grpc_server.ListModelsRequest())):
            assert (await refusal(call(request, metadata=metadata)))[0] == "UNAUTHENTICATED"
            assert await call(request, metadata=(("authorization", "Bearer right"),))


async def test_beyond_its_bound_it_refuses(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path, batches=BatchLimits(waiting=0)) as (_, stub):
        code, words = await refusal(stub.Act(asking()))
        assert (code, "requests are already waiting" in words) == ("RESOURCE_EXHAUSTED", True)


async def test_clients_beyond_the_bound_are_refused_and_the_others_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(grpc_server, "MOST_UNDER_WAY", 8)
    monkeypatch.setattr(grpc_server, "REFUSED_S", 0.0)
    write_model(tmp_path)
    patient = BatchLimits(patience_s=120.0)  # else a slow machine's waiting calls are refused as late
    service = PolicyService(load_models([str(tmp_path)]), True, 0, time.monotonic, patient)  # it decides nothing yet
    server = GrpcServer(service, "127.0.0.1", "", 1000, 64)
    await server.start((0,))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, 0.0)
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each client
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", own) for _ in range(30)]
        stubs: list[Any] = [Stub(await stack.enter_async_context(channel)) for channel in channels]
        calls = [stub.Act(asking()) for stub in stubs]
        for done in itertools.islice(asyncio.as_completed([asyncio.ensure_future(call.code()) for call in calls]), 22):
            assert (await done).name == "RESOURCE_EXHAUSTED"
        assert await channels[0].unary_unary(f"/{open_inference_grpc.SERVICE}/ServerReady")(b"")  # health has room
        running = asyncio.create_task(service.run())
        assert sorted([(await call.code()).name for call in calls]) == ["OK"] * 8 + ["RESOURCE_EXHAUSTED"] * 22
        assert b"headrace_serving_turned_away_total 22.0" in service.tally.text()
        running.cancel()


async def test_when_it_ends_it_says_so(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (service, stub):
        answers = [asyncio.ensure_future(stub.Act(asking())) for _ in range(5)]
        await answers[0]
        await service.end()
        assert await refusal(stub.Act(asking())) == ("UNAVAILABLE", "the server is shutting down")
        await asyncio.gather(*answers, return_exceptions=True)


@pytest.mark.lengthy
async def test_calls_that_have_arrived_when_it_ends_are_told_so_however_many_wait(tmp_path):
    write_model(tmp_path)
    async with serving(tmp_path) as service:
        server = GrpcServer(service, "127.0.0.1", "", 100_000, 2000)
        await server.start((0,))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub: Any = Stub(channel)
            await stub.Act(asking())  # from here on the client knows how many calls a connection may have
            calls = [stub.Act(asking()) for _ in range(400)]
            await calls[0]
            await service.end()
            await server.read_all(20.0)
            await server.stop(0.0)
            codes = {(await call.code()).name for call in calls}
        assert codes - {"RESOURCE_EXHAUSTED"} == {"OK", "UNAVAILABLE"}


@pytest.mark.lengthy
async def test_calls_that_are_answered_together_leave_room_on_their_connection_for_as_many(tmp_path, monkeypatch):
    monkeypatch.setattr(grpc_server, "MOST_UNDER_WAY", 200)
    write_model(tmp_path)
    async with serving(tmp_path) as service:
        server = GrpcServer(service, "127.0.0.1", "", 1000, 2000)
        await server.start((0,))
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel, ThreadPoolExecutor(80) as pool:
            act = channel.unary_unary(f"/{grpc_server.SERVICE}/Act")
            asked = [asyncio.wrap_future(pool.submit(act, asking().SerializeToString())) for _ in range(600)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(each) for each in answers} == {bytes}
        await server.stop(0.0)


@pytest.mark.parametrize("method", ["Act", "ListModels", "OpenSession", "CloseSession"])
async def test_a_message_that_does_not_come_ends_its_call_and_leaves_room_for_others(tmp_path, monkeypatch, method):
    monkeypatch.setattr(grpc_server, "BODY_S", 0.1)
    write_model(tmp_path)
    never = asyncio.Event()

    async def nothing():
        await never.wait()
        yield b""

    async with serving(tmp_path) as service:
        server = GrpcServer(service, "127.0.0.1", "", 1000, 1)  # one call at a time
        await server.start((0,))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            call: Any = channel.stream_unary(f"/{grpc_server.SERVICE}/{method}")(nothing())
            assert await refusal(call) == ("INVALID_ARGUMENT", "the message did not arrive within 0.1 s")
            stub: Any = Stub(channel)
            assert (await stub.Act(asking())).agents == 1
        await server.stop(0.0)


async def test_a_port_in_use_is_named(tmp_path):
    write_model(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(tmp_path) as service:
            server = GrpcServer(service, "127.0.0.1", "", 1000, 1)
            with pytest.raises(
                OSError, match=f"can't listen on 127.0.0.1:{port} for gRPC: another program is using it"
            ):
                await server.start((port,))


@pytest.mark.parametrize("name", ["policy_server", "open_inference", "health", "reflection"])
def test_the_compiled_description_is_that_of_the_source(tmp_path, name):
    tools = pytest.importorskip("grpc_tools.protoc", reason="python -m pip install grpcio-tools")
    folder = files("headrace.pipeline.serving").joinpath("proto")
    source, made = folder.joinpath(f"{name}.proto"), tmp_path / "made.binpb"
    assert tools.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", str(source)]) == 0
    assert made.read_bytes() == folder.joinpath(f"{name}.binpb").read_bytes()
