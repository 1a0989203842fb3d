"""What leaves the project is what the environment would get: over HTTP, over KServe's protocol, and from `.onnx` files."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial

import grpc.aio
import numpy as np
import onnx
import pytest
from aiohttp import ClientSession
from gymnasium import spaces
from onnx_samples import run
from predicted import MEMORY, Acting, group_of, saved
from serving_samples import serving

from headrace.pipeline.serving import kserve_grpc
from headrace.pipeline.serving.http_api import serving_routes
from headrace.pipeline.serving.kserve_grpc import GrpcServer
from headrace.pipeline.web import Site, SiteOptions

SEEN = spaces.Box(-2, 2, (3,))


def box(low, high):
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


DONE = {
    "symmetric": box([-2], [2]),
    "per dimension": box([0, -2, 5], [10, 6, 5]),
    "one bound": box([-1, -np.inf, 0, -np.inf], [3, np.inf, np.inf, 0.5]),
    "doubles of a shape": spaces.Box(-0.1, 0.3, (2, 2), np.float64),
    "whole numbers": spaces.Box(0, 9, (3,), np.int32),
    "choices": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "hybrid": spaces.Dict(
        arm=spaces.Tuple([box([-1, -1], [5, 5]), spaces.Discrete(3, start=1)]),
        aim=box([-np.inf], [np.inf]),
        grip=spaces.Box(-1, 1, (1,), np.int8),
        walk=spaces.MultiBinary(2),
    ),
}
CASES = [
    *(pytest.param(done, {}, {}, id=name) for name, done in DONE.items()),
    *(pytest.param(DONE[name], {"clips": True}, {}, id=f"{name}, clipped") for name in ("per dimension", "hybrid")),
    pytest.param(box([-1, -1], [1, 1]), {"clips": True}, {}, id="from -1 to 1, clipped"),
    pytest.param(DONE["per dimension"], {}, {"squashed": True}, id="squashed"),
    pytest.param(DONE["hybrid"], {}, MEMORY, id="with a memory"),
]
each_case = pytest.mark.parametrize(("done", "how", "policy"), CASES)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def boxes(space, action):
    """The numbers of an action's boxes, or of their bounds, side by side."""
    match space:
        case spaces.Box():
            return np.ravel(action).tolist()
        case spaces.Dict():
            return [n for key, part in space.spaces.items() for n in boxes(part, action[key])]
        case spaces.Tuple():
            return [n for part, inner in zip(space.spaces, action, strict=True) for n in boxes(part, inner)]
    return []


def bounds(space, end):
    """The same of one end of each box."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
            return [n for part in parts for n in bounds(part, end)]
        case spaces.Box():
            return np.ravel(getattr(space, end)).tolist()
    return []


def played(folder, done, how, suffix, **policy):
    """A policy's file; what three environments show it, and the numbers that they get for it."""
    group, envs, result = group_of(SEEN, done, **how)
    file = saved(folder, group.behavior_specs["Test"], suffix, **policy)
    Acting(file, group).step(result)
    return file, np.stack([env.seen[-2] for env in envs]), np.array([boxes(done, env.given[-1]) for env in envs])


@asynccontextmanager
async def called(file, **options):
    """Callers of a model over HTTP and gRPC: (post, ModelInfer)."""
    async with serving(file, **options) as service:
        site = Site(serving_routes(service), SiteOptions("127.0.0.1:0"))
        server = GrpcServer(service, "127.0.0.1", "", 100_000, 64)
        await site.start()
        await server.start((0,))
        message = kserve_grpc.message
        try:
            async with (
                ClientSession(site.url) as caller,
                grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
            ):

                async def post(path, body=None):
                    async with caller.request("GET" if body is None else "POST", path, json=body) as answer:
                        assert answer.status in (200, 201), await answer.text()
                        return await answer.json()

                infer = channel.unary_unary(
                    f"/{kserve_grpc.SERVICE}/ModelInfer",
                    message("ModelInferRequest").SerializeToString,
                    message("ModelInferResponse").FromString,
                )
                yield post, lambda **asked: infer(message("ModelInferRequest")(model_name="Test", **asked))
        finally:
            await server.stop(0.0)
            await site.stop()


@each_case
@pytest.mark.parametrize("suffix", [".pt", ".onnx"])
async def test_every_protocol_answers_in_the_environments_units(tmp_path, done, how, policy, suffix):
    file, seen, wanted = played(tmp_path, done, how, suffix, **policy)
    async with called(file) as (post, infer):
        model = await post("/api/models/Test")
        (observation,), actions = model["observations"], model["actions"]
        for key, end in (("low", -np.inf), ("high", np.inf)):
            close([end if bound is None else bound for bound in actions[key]], bounds(done, key))

        session = await post("/api/models/Test/sessions", {"agents": 3}) if model["memory"] else {}
        asked = {"observations": [seen.tolist()], **({"session": session["session"]} if session else {})}
        answer = await post("/api/models/Test/act", asked)
        close(answer["continuous"], wanted)
        assert np.shape(answer["discrete"]) == (3, len(actions["discrete_branches"]))

        if not wanted.size:
            return
        tensor = {"name": observation["name"], "datatype": "FP32", "shape": [3, 3]}
        flags = {"sequence_id": 1, "sequence_start": True} if session else {}
        body = {"inputs": [{**tensor, "data": seen.tolist()}], "outputs": [{"name": "continuous"}], "parameters": flags}
        (output,) = (await post("/v2/models/Test/infer", body))["outputs"]
        close(np.reshape(output["data"], output["shape"]), wanted)

        told = {"sequence_id": {"int64_param": 2}, "sequence_start": {"bool_param": True}} if session else {}
        inputs = [{**tensor, "contents": {"fp32_contents": seen.ravel().tolist()}}]
        (output,) = (await infer(inputs=inputs, outputs=[{"name": "continuous"}], parameters=told)).outputs
        close(np.reshape(output.contents.fp32_contents, output.shape), wanted)


@each_case
def test_a_model_in_onnxruntime_gives_the_environments_units(tmp_path, done, how, policy):
    file, seen, wanted = played(tmp_path, done, how, ".onnx", **policy)
    rows, graph = np.repeat(seen, 100, axis=0), onnx.load(file).graph
    shapes = {given.name: [300, *(d.dim_value for d in given.type.tensor_type.shape.dim[1:])] for given in graph.input}
    ours = {"obs_0": rows, "action_masks": np.ones(shapes.get("action_masks", 0), np.float32)}
    fed = {name: ours.get(name, np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    onnx.checker.check_model(onnx.load(file), full_check=True)
    found = run(file.read_bytes(), fed)
    if not wanted.size:
        assert not [name for name in found if "continuous" in name]
        return
    close(found["deterministic_continuous_actions"], np.repeat(wanted, 100, axis=0))
    drawn, low, high = found["continuous_actions"], *(np.float32(bounds(done, end)) for end in ("low", "high"))
    assert ((low <= drawn) & (drawn <= high)).all()
    assert (drawn.std(axis=0)[low < high] > 0).all()
