"""The KServe protocol, over HTTP and gRPC, spoken by hand; and by Triton's client, where that is installed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager, redirect_stdout
from html import unescape
from io import StringIO
from typing import Any

import grpc.aio
import numpy as np
import pytest
from aiohttp import ClientSession
from serving_samples import MEMORY, PICTURE, expected, served, serving, write_model

from headrace.pipeline.serving import kserve_grpc
from headrace.pipeline.serving.http_api import OPEN, serving_routes
from headrace.pipeline.serving.kserve_grpc import GrpcServer
from headrace.pipeline.serving.service import ServingLimits
from headrace.pipeline.web import Site, SiteOptions

ROW = [0.5, -1.0, 2.0]
VECTOR = {"name": "vector", "datatype": "FP32", "shape": [1, 3], "data": ROW}
INFER = "/v2/models/Ball/infer"


@asynccontextmanager
async def called(folder, token="", **options):
    """A caller of the models in a folder, by both protocols."""
    async with serving(folder, **options) as service:
        of_site = SiteOptions("127.0.0.1:0", token=token, needs_token=lambda request: request.path not in OPEN)
        site, server = Site(serving_routes(service), of_site), GrpcServer(service, "127.0.0.1", token, 100_000, 64)
        await site.start()
        await server.start((0,))
        try:
            async with (
                ClientSession(site.url) as caller,
                grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
            ):
                yield service, caller, channel
        finally:
            await server.stop(0.0)
            await site.stop()


async def get(caller, path):
    async with caller.get(path) as answer:
        return answer.status, await answer.json()


async def post(caller, body, path=INFER, **headers):
    async with caller.post(path, data=body if isinstance(body, bytes) else json.dumps(body), headers=headers) as answer:
        return answer.status, await answer.json()


def asking(method, **fields):
    """A call of a method of the protocol."""
    message = kserve_grpc.message

    def call(channel):
        unary = channel.unary_unary(
            f"/{kserve_grpc.SERVICE}/{method}",
            message(f"{method}Request").SerializeToString,
            message(f"{method}Response").FromString,
        )
        return unary(message(f"{method}Request")(**fields))

    return call


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code().name, raised.value.details()


def outputs(answer):
    """The arrays of an answer in JSON."""
    return {each["name"]: np.reshape(each["data"], each["shape"]) for each in answer["outputs"]}


async def test_a_model_is_described_alike_over_both(tmp_path):
    write_model(tmp_path, observed=(PICTURE,), memory=MEMORY)
    async with called(tmp_path) as (_, caller, channel):
        status, model = await get(caller, "/v2/models/Ball/versions/1")
        assert (status, model["versions"], model["platform"]) == (200, ["1"], "headrace_policy")
        assert model["inputs"] == [
            {"name": "eye", "datatype": "UINT8", "shape": [-1, 3, 20, 20]},
            {"name": "masks", "datatype": "BOOL", "shape": [-1, 5]},
            {"name": "episode_start", "datatype": "BOOL", "shape": [-1]},
        ]
        assert model["outputs"] == [
            {"name": "continuous", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "discrete", "datatype": "INT64", "shape": [-1, 2]},
        ]
        told = await asking("ModelMetadata", name="Ball")(channel)
        assert [(each.name, each.datatype, [*each.shape]) for each in (*told.inputs, *told.outputs)] == [
            (each["name"], each["datatype"], each["shape"]) for each in (*model["inputs"], *model["outputs"])
        ]
        status, server = await get(caller, "/v2")
        assert (server["name"], "binary_tensor_data" in server["extensions"]) == ("headrace", True)
        assert (await asking("ServerMetadata")(channel)).version == server["version"]


async def test_json_flat_or_nested_and_bytes_are_answered_as_the_policy_decides(tmp_path):
    write_model(tmp_path)
    rows = np.asarray([ROW, [1, 2, 3]], np.float32)
    wanted = expected([rows]).actions
    async with called(tmp_path) as (_, caller, _channel):
        for data in (rows.tolist(), rows.reshape(-1).tolist()):
            tensor = {**VECTOR, "shape": [2, 3], "data": data}
            status, answer = await post(caller, {"id": "7", "inputs": [tensor]})
            assert (status, answer["id"], answer["model_name"], answer["model_version"]) == (200, "7", "Ball", "1")
            found = outputs(answer)
            np.testing.assert_allclose(found["continuous"], wanted.continuous, rtol=1e-5)
            assert found["discrete"].tolist() == wanted.discrete.tolist()
        tensor = {"name": "vector", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
        masks = {"name": "masks", "datatype": "BOOL", "shape": [2, 5], "parameters": {"binary_data_size": 10}}
        asked = {"inputs": [tensor, masks], "outputs": [{"name": "discrete", "parameters": {"binary_data": True}}]}
        head = json.dumps(asked).encode()
        body = head + rows.tobytes() + bytes([0, 1, 0, 0, 1] * 2)
        async with caller.post(INFER, data=body, headers={"Inference-Header-Content-Length": str(len(head))}) as answer:
            said, at = await answer.read(), int(answer.headers["Inference-Header-Content-Length"])
            (output,) = json.loads(said[:at])["outputs"]
            assert (output["shape"], output["parameters"]) == ([2, 2], {"binary_data_size": 32})
            assert np.frombuffer(said[at:], np.int64).tolist() == [1, 1, 1, 1]


async def test_grpc_takes_contents_or_bytes_and_answers_in_kind(tmp_path):
    write_model(tmp_path)
    wanted = expected([[ROW]]).actions
    tensor = {"name": "vector", "datatype": "FP32", "shape": [1, 3]}
    masks = {"name": "masks", "datatype": "BOOL", "shape": [1, 5]}
    async with called(tmp_path) as (_, _caller, channel):
        contents = {**tensor, "contents": {"fp32_contents": ROW}}
        answer = await asking("ModelInfer", model_name="Ball", id="7", inputs=[contents])(channel)
        np.testing.assert_allclose(answer.outputs[0].contents.fp32_contents, wanted.continuous[0], rtol=1e-5)
        assert [*answer.outputs[1].contents.int64_contents] == wanted.discrete[0].tolist()
        assert (answer.id, answer.model_version) == ("7", "1")
        raw = [np.asarray(ROW, np.float32).tobytes(), bytes([0, 1, 0, 0, 1])]
        asked = {"model_name": "Ball", "inputs": [tensor, masks], "raw_input_contents": raw}
        answer = await asking("ModelInfer", **asked, outputs=[{"name": "discrete"}])(channel)
        assert np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() == [1, 1]


async def test_a_sequence_is_what_a_model_with_a_memory_remembers(tmp_path):
    write_model(tmp_path, memory=MEMORY)
    first = expected([[ROW]], memory=MEMORY)
    second = expected([[ROW]], recall=first.recall, memory=MEMORY)
    start, end = {"sequence_start": True}, {"sequence_end": True}
    async with called(tmp_path) as (_, caller, channel):
        for wanted, more in ((first, start), (second, {}), (first, start), (second, end)):
            status, answer = await post(caller, {"parameters": {"sequence_id": 5, **more}, "inputs": [VECTOR]})
            assert status == 200, answer
            np.testing.assert_allclose(outputs(answer)["continuous"], wanted.actions.continuous, rtol=1e-5)
        assert (await post(caller, {"parameters": {"sequence_id": 5}, "inputs": [VECTOR]}))[0] == 404
        status, answer = await post(caller, {"inputs": [VECTOR]})
        assert (status, "by sequence_id and sequence_start" in answer["error"]) == (400, True)
        _, answer = await post(caller, {"parameters": {"sequence_id": "a", **start}, "inputs": [VECTOR]})
        starts = {"name": "episode_start", "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [True]}}
        tensor = {**VECTOR, "contents": {"fp32_contents": ROW}}
        del tensor["data"]
        asked = {"parameters": {"sequence_id": {"string_param": "a"}}, "inputs": [tensor, starts]}
        answer = await asking("ModelInfer", model_name="Ball", **asked)(channel)
        np.testing.assert_allclose(answer.outputs[0].contents.fp32_contents, first.actions.continuous[0], rtol=1e-5)


async def test_a_sequence_that_is_refused_has_not_begun(tmp_path):
    write_model(tmp_path)
    asked = {"parameters": {"sequence_id": 5, "sequence_start": True}, "inputs": [VECTOR]}
    async with called(tmp_path) as (service, caller, _):
        service.ending = True
        assert (await post(caller, asked))[0] == 503
        service.ending = False
        assert 'headrace_serving_sessions{model="Ball"} 0.0' in service.metrics.text().decode()
        assert (await post(caller, asked))[0] == 200
        two = {**asked, "inputs": [{**VECTOR, "shape": [2, 3], "data": ROW * 2}]}
        assert (await post(caller, two))[0] == 400
        assert 'headrace_serving_sessions{model="Ball"} 1.0' in service.metrics.text().decode()


def changed(**fields):
    return {"inputs": [{**VECTOR, **fields}]}


async def test_an_invalid_request_is_refused_with_the_reason(tmp_path):
    write_model(tmp_path)
    binary = {
        "inputs": [{"name": "vector", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}]
    }
    refused = [
        (b"{", "not JSON"),
        ({"input": []}, "inputs"),
        ({"inputs": []}, "inputs.vector: missing; available: vector, masks"),
        (changed(name="vektor"), "inputs: unknown name 'vektor'; did you mean 'vector'?"),
        (changed(datatype="FP64"), "inputs.vector: the datatype is FP64; expected FP32"),
        (changed(shape=[1, -3]), "inputs.0.shape.1"),
        (changed(shape=[2, 3]), "the data is for 1 agents, but the shape is [2, 3]"),
        (changed(data=[1, 2, True]), "expected numbers"),
        (changed(parameters={"content_type": "pd"}), "inputs.vector.parameters.content_type: 'pd' is not supported"),
        ({"inputs": [VECTOR, VECTOR]}, "give each input once"),
        ({"inputs": [VECTOR, {**VECTOR, "name": "masks", "datatype": "BOOL", "shape": [1, 5]}]}, "masks: "),
        ({"inputs": [VECTOR], "parameters": {"priority": 1}}, "parameters: unknown name 'priority'"),
        ({"inputs": [VECTOR], "parameters": {"sequence_start": True}}, "needs a sequence_id, but none is given"),
        ({"inputs": [VECTOR], "outputs": [{"name": "value"}]}, "outputs: unknown name 'value'"),
        (
            {"inputs": [VECTOR], "outputs": [{"name": "discrete", "parameters": {"classification": 1}}]},
            "classification",
        ),
        (binary, "12 bytes, but only 0 remain after the JSON"),
    ]
    async with called(tmp_path) as (service, caller, _):
        for body, words in refused:
            status, answer = await post(caller, body)
            assert (status, words in answer["error"]) == (400, True), (body, answer)
        head = json.dumps(binary).encode()
        for length, body, words in (("x", head, "Length: x"), (str(len(head)), head + bytes(13), "1 bytes more")):
            status, answer = await post(caller, body, **{"Inference-Header-Content-Length": length})
            assert (status, words in answer["error"]) == (400, True), answer
        for path, words in (
            ("/v2/models/Bell/infer", "did you mean 'Ball'"),
            ("/v2/models/Ball/versions/2/infer", "'2'"),
        ):
            status, answer = await post(caller, changed(), path)
            assert (status, words in answer["error"]) == (404, True), answer
        assert 'headrace_serving_decisions_total{model="Ball"} 0.0' in service.metrics.text().decode()


async def test_grpc_refuses_by_name_too(tmp_path):
    write_model(tmp_path)
    tensor = {"name": "vector", "datatype": "FP32", "shape": [1, 3]}
    filled = {**tensor, "contents": {"fp32_contents": ROW}}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"inputs": [{**tensor, "contents": {"fp64_contents": ROW}}]}, "has fp64_contents; expected fp32_contents"),
        ({"inputs": [tensor]}, "has no contents; expected fp32_contents"),
        ({"inputs": [{**filled, "datatype": "BF16"}]}, "expected raw_input_contents"),
        ({"inputs": [tensor], "raw_input_contents": [bytes(12)] * 2}, "raw_input_contents: has 2 entries for 1 inputs"),
        ({"inputs": [tensor], "raw_input_contents": [bytes(8)]}, "got 8 bytes; expected a multiple of 12"),
    ]
    async with called(tmp_path) as (_, _caller, channel):
        for fields, words in refused:
            code, said = await refusal(asking("ModelInfer", model_name="Ball", **fields)(channel))
            assert (code, words in said) == ("INVALID_ARGUMENT", True), (fields, said)
        assert (await refusal(asking("ModelReady", name="Bell")(channel)))[0] == "NOT_FOUND"
        assert (await refusal(asking("ModelMetadata", name="Ball", version="2")(channel)))[0] == "NOT_FOUND"


async def test_health_needs_no_token_and_says_when_the_server_ends(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path, token="right") as (service, caller, channel):
        for ready in (True, False):
            service.ending = not ready
            assert (await get(caller, "/v2/health/live"))[0] == 200
            assert (await get(caller, "/v2/health/ready"))[0] == (200 if ready else 503)
            assert (await asking("ServerLive")(channel)).live
            assert (await asking("ServerReady")(channel)).ready == ready
        assert (await refusal(asking("ServerMetadata")(channel)))[0] == "UNAUTHENTICATED"
        for path in ("/v2", "/v2/models/Ball", "/v2/models/Ball/ready", "/", "/docs"):
            assert (await get(caller, path))[0] == 401


async def test_the_index_has_a_line_for_each_model_that_asks_it(tmp_path):
    write_model(tmp_path, "Ball")
    write_model(tmp_path, "Eye<b>", observed=(PICTURE,))
    write_model(tmp_path, "Mind", memory=MEMORY)
    async with called(tmp_path) as (_, caller, _channel):
        async with caller.get("/") as answer:
            text = await answer.text()
            assert "<b>" not in text
        lines = [shlex.split(unescape(each.partition("</pre>")[0])) for each in text.split("<pre>")[1:]]
        assert len(lines) == 3
        for words in lines:
            with redirect_stdout(StringIO()) as made:
                if words[0] == "python3":
                    exec(words[2])
            body = (made.getvalue() or words[2]).encode()
            status, answer = await post(caller, body, words[-1].removeprefix(f"http://{caller._base_url.authority}"))
            assert (status, len(answer["outputs"])) == (200, 2), answer
        async with caller.get("/docs") as answer:
            assert "POST /v2/models/{model}/infer" in await answer.text()


async def test_a_newer_policy_takes_over_while_requests_run_and_none_is_lost(tmp_path):
    write_model(tmp_path)
    wanted = {str(version): expected([[ROW]], seed).actions.continuous for version, seed in ((1, 0), (2, 1))}
    seen: list[str] = []
    answered = asyncio.Event()
    async with called(tmp_path, limits=ServingLimits(refresh_s=0.02)) as (_, caller, channel):

        async def ask_http() -> None:
            while "2" not in seen[-1:]:
                status, answer = await post(caller, {"inputs": [VECTOR]})
                assert status == 200, answer
                np.testing.assert_allclose(outputs(answer)["continuous"], wanted[answer["model_version"]], rtol=1e-5)
                seen.append(answer["model_version"])
                answered.set()

        async def ask_grpc() -> None:
            tensor = {"name": "vector", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": ROW}}
            while "2" not in seen[-1:]:
                answer = await asking("ModelInfer", model_name="Ball", inputs=[tensor])(channel)
                found = [answer.outputs[0].contents.fp32_contents]
                np.testing.assert_allclose(found, wanted[answer.model_version], rtol=1e-5)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(ask_http())
                group.create_task(ask_grpc())
            await answered.wait()  # by the older policy, before there is a newer one
            await asyncio.to_thread(write_model, tmp_path, step=600, seed=1)
    assert {*seen} == {"1", "2"}


CLIENT = """
import json, sys
import numpy as np
import tritonclient.grpc, tritonclient.http
said = []
for kind, port in ((tritonclient.http, sys.argv[1]), (tritonclient.grpc, sys.argv[2])):
    client = kind.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("Ball", "1")
    client.get_server_metadata(), client.get_model_metadata("Ball")
    vector, masks = kind.InferInput("vector", [2, 3], "FP32"), kind.InferInput("masks", [2, 5], "BOOL")
    vector.set_data_from_numpy(np.asarray([[0.5, -1, 2], [1, 2, 3]], np.float32))
    masks.set_data_from_numpy(np.asarray([[0, 1, 0, 0, 1]] * 2, np.bool_))
    found = client.infer("Ball", [vector], parameters={"deterministic": True})
    said.append([found.as_numpy("continuous").tolist(), found.as_numpy("discrete").tolist()])
    wanted = [kind.InferRequestedOutput("discrete")]
    said[-1].append(client.infer("Ball", [vector, masks], outputs=wanted).as_numpy("discrete").tolist())
    eye = kind.InferInput("eye", [1, 3, 20, 20], "UINT8")
    eye.set_data_from_numpy(np.full((1, 3, 20, 20), 7, np.uint8))
    for more in ({"sequence_start": True}, {}, {"sequence_end": True}):
        said[-1].append(client.infer("Eye", [eye], sequence_id=9, **more).as_numpy("continuous").tolist())
    try:
        client.infer("Eye", [eye], sequence_id=9)
    except Exception as error:
        said[-1].append(str(error))
print(json.dumps(said))
"""


@pytest.mark.slow
def test_tritons_client_is_answered(tmp_path):
    """HEADRACE_TRITON_PYTHON names the Python that has `tritonclient[http,grpc]`, if it is another one."""
    python = os.environ.get("HEADRACE_TRITON_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import tritonclient.http, tritonclient.grpc"], capture_output=True).returncode:
        pytest.skip("tritonclient[http,grpc] is not installed")
    write_model(tmp_path, "Ball")
    write_model(tmp_path, "Eye", observed=(PICTURE,), memory=MEMORY)
    rows, seen = [ROW, [1, 2, 3]], [np.full((1, *PICTURE.shape), 7, np.uint8)]
    wanted, recall, remembered = expected([rows]).actions, None, []
    for _ in range(3):
        decision = expected(seen, recall=recall, observed=(PICTURE,), memory=MEMORY)
        recall = decision.recall
        remembered.append(decision.actions.continuous)
    with served(tmp_path, tmp_path, "--listen=0", "--deterministic") as (_, text):
        ports = [text.split("localhost:")[1].split("/")[0], text.split("gRPC: port ")[1].split()[0]]
        done = subprocess.run([python, "-c", CLIENT, *ports], check=True, capture_output=True, text=True)
    for continuous, discrete, masked, *minds, gone in json.loads(done.stdout):
        np.testing.assert_allclose(continuous, wanted.continuous, rtol=1e-5)
        assert (discrete, masked) == (wanted.discrete.tolist(), [[1, 1], [1, 1]])
        np.testing.assert_allclose(minds, remembered, rtol=1e-4)
        assert "this model has no session '9'" in gone
