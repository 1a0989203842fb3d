"""The policy server over gRPC, on loopback: refusals, bounds and its end; tests/pipeline/serving/test_kserve.py has the protocol."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from importlib.resources import files

import grpc.aio
import pytest
from serving_samples import serving, write_model

from headrace.pipeline.serving.kserve_grpc import SERVICE, GrpcServer, message

ROW = [0.5, -1.0, 2.0]


class Stub:
    """What a client's generated code would be."""

    def __init__(self, channel):
        for name in ("ModelMetadata", "ModelInfer"):
            request, response = (message(f"{name}{end}") for end in ("Request", "Response"))
            setattr(
                self, name, channel.unary_unary(f"/{SERVICE}/{name}", request.SerializeToString, response.FromString)
            )
        self.raw = channel.unary_unary(f"/{SERVICE}/ModelInfer")


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


def asking(model="Ball"):
    tensor = {"name": "vector", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": ROW}}
    return message("ModelInferRequest")(model_name=model, inputs=[tensor])


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name, raised.value.details()


async def test_a_malformed_or_oversized_message_is_refused_as_a_client_error(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (_, stub):
        assert (await refusal(stub.raw(b"\xff\xff")))[0] == "INVALID_ARGUMENT"
        code, words = await refusal(stub.ModelInfer(asking("x" * 200_000)))
        assert (code, "larger than" in words) == ("RESOURCE_EXHAUSTED", True)
        assert (await stub.ModelInfer(asking())).model_version == "1"


async def test_at_its_end_the_server_is_unready(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (service, stub):
        answers = [asyncio.ensure_future(stub.ModelInfer(asking())) for _ in range(5)]
        await answers[0]
        await service.end()
        assert await refusal(stub.ModelInfer(asking())) == ("UNAVAILABLE", "the server is shutting down")
        await asyncio.gather(*answers, return_exceptions=True)


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


def test_the_compiled_description_is_that_of_the_source(tmp_path):
    tools = pytest.importorskip("grpc_tools.protoc", reason="python -m pip install grpcio-tools")
    folder = files("headrace.pipeline.serving").joinpath("proto")
    source, made = folder.joinpath("open_inference.proto"), tmp_path / "made.binpb"
    assert tools.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", str(source)]) == 0
    assert made.read_bytes() == folder.joinpath("open_inference.binpb").read_bytes()
