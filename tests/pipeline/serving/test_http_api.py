"""The policy server over HTTP, on loopback: right answers, and the right refusals of everything else."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from base64 import b64encode
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import ClientSession
from serving_samples import MEMORY, PICTURE, expected, serving, write_model

from headrace.pipeline.serving.http_api import OPEN, serving_routes
from headrace.pipeline.serving.served_models import load_models
from headrace.pipeline.serving.service import PolicyService, ServingLimits
from headrace.pipeline.web import Site, SiteOptions
from headrace.stages.policy.protocol import Recall

ROW = [0.5, -1.0, 2.0]
VECTOR = {"name": "vector", "datatype": "FP32", "shape": [1, 3], "data": ROW}
ACT = "/api/models/Ball/act"


@asynccontextmanager
async def called(*references, site=None, **options):
    """A service, and a caller of its site."""
    async with serving(*references, **options) as service:
        made = Site(serving_routes(service), SiteOptions("127.0.0.1:0", drops_abandoned=True, **(site or {})))
        await made.start()
        try:
            async with ClientSession(made.url) as caller:
                yield service, caller
        finally:
            await made.stop()


async def post(caller, path, plain, **headers):
    async with caller.post(path, json=plain, headers=headers) as answer:
        return answer.status, await answer.json()


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    return True


async def test_the_api_answers_as_the_policy_decides(tmp_path):
    write_model(tmp_path)
    rows = [ROW, [1, 2, 3]]
    wanted = expected([rows]).actions
    async with called(tmp_path) as (_, caller):
        for observations in ([rows], {"vector": rows}):
            status, answer = await post(caller, ACT, {"observations": observations})
            assert (status, answer["step"], answer["version"]) == (200, 500, 1)
            assert close(answer["continuous"], wanted.continuous)
            assert answer["discrete"] == wanted.discrete.tolist()


async def test_masks_forbid_choices(tmp_path):
    write_model(tmp_path)
    masks = [[False, True, False, False, True]]
    async with called(tmp_path) as (_, caller):
        _, answer = await post(caller, ACT, {"observations": [[ROW]], "masks": masks, "deterministic": False})
        assert answer["discrete"] == [[1, 1]]


async def test_pictures_are_lists_or_base64(tmp_path):
    write_model(tmp_path, observed=(PICTURE,))
    seen = np.random.default_rng(0).integers(0, 256, (2, *PICTURE.shape), np.uint8)
    wanted = expected([seen], observed=(PICTURE,)).actions
    async with called(tmp_path) as (_, caller):
        for eye in (seen.tolist(), b64encode(seen.tobytes()).decode()):
            assert close((await post(caller, ACT, {"observations": {"eye": eye}}))[1]["continuous"], wanted.continuous)
        async with caller.get("/api/models") as answer:
            (model,) = (await answer.json())["models"]
            assert model["observations"][0]["shape"] == [3, 20, 20]


async def test_samples_differ_and_the_most_likely_action_is_one(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path, deterministic=False) as (_, caller):
        ask = {"observations": [[ROW]]}
        drawn = [(await post(caller, ACT, ask))[1]["continuous"][0] for _ in range(5)]
        assert len(set(map(tuple, drawn))) == 5
        likely = [(await post(caller, ACT, {**ask, "deterministic": True}))[1]["continuous"][0] for _ in range(2)]
        assert likely[0] == likely[1]


async def test_many_callers_at_a_time_share_decisions(tmp_path):
    write_model(tmp_path)
    rows = np.random.default_rng(1).normal(size=(40, 3)).round(3)
    wanted = expected([rows]).actions.continuous
    async with called(tmp_path) as (service, caller):
        answers = await asyncio.gather(*(post(caller, ACT, {"observations": [[row.tolist()]]}) for row in rows))
        assert close([answer["continuous"][0] for _, answer in answers], wanted)
        async with caller.get("/metrics") as answer:
            text = await answer.text()
        assert 'headrace_serving_requests_total{model="Ball",outcome="answered"} 40.0' in text
        assert 'headrace_serving_agents_total{model="Ball"} 40.0' in text
        assert 'headrace_serving_model_step{model="Ball"} 500.0' in text


async def test_a_session_remembers(tmp_path):
    write_model(tmp_path, memory=MEMORY)
    first = expected([[ROW]], memory=MEMORY)
    second = expected([[ROW]], recall=first.recall, memory=MEMORY)
    assert isinstance(first.recall, Recall)
    assert not np.allclose(first.actions.continuous, second.actions.continuous)
    async with called(tmp_path) as (_, caller):
        status, session = await post(caller, "/api/models/Ball/sessions", {"agents": 1})
        assert status == 201
        ask = {"observations": [[ROW]], "session": session["session"]}
        for wanted in (first, second):
            assert close((await post(caller, ACT, ask))[1]["continuous"], wanted.actions.continuous)
        again = (await post(caller, ACT, {**ask, "episode_start": [True]}))[1]["continuous"]
        assert close(again, first.actions.continuous)
        async with caller.delete(f"/api/models/Ball/sessions/{session['session']}") as answer:
            assert answer.status == 200
        assert (await post(caller, ACT, ask))[0] == 404
        status, answer = await post(caller, ACT, {"observations": [[ROW]]})
        assert (status, "'Ball' has a memory; open a session" in answer["error"]) == (422, True)
        async with caller.post("/api/models/Ball/sessions") as answer:  # without a body: one agent
            assert (answer.status, (await answer.json())["agents"]) == (201, 1)


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "words"),
    [
        (ACT, b"{", "json", 400, "the body is not JSON"),
        (ACT, b"\x80", "msgpack", 415, "the header Content-Type: application/json"),
        (ACT, b" " * 200_001, "json", 413, ""),
        (ACT, b"[]", "json", 422, "a list is not valid"),
        (ACT, b'{"observations": [[[1, 2]]]}', "json", 422, "expected float32[n, 3]"),
        (ACT, b'{"observations": [[[1, 2, NaN]]]}', "json", 422, "not finite"),
        (ACT, b'{"observations": [[[1, 2, 3]]], "session": "none"}', "json", 404, "this model has no session 'none'"),
        ("/api/models/Bell/act", b"{}", "json", 404, "unknown model 'Bell'; did you mean 'Ball'"),
        ("/api/models/Ball/sessions", b'{"agents": 0}', "json", 422, "agents"),
        ("/api/models/..%2f..%2fsetup.cfg/act", b"{}", "json", 404, "unknown model"),
        ("/act", b"{}", "json", 404, "Not Found; GET /api/openapi.json lists the paths"),
        ("/api/models", b"{}", "json", 405, "Method Not Allowed; GET /api/openapi.json lists the paths"),
    ],
)
async def test_an_invalid_request_is_refused_without_side_effects(tmp_path, path, body, kind, status, words):
    write_model(tmp_path)
    async with called(tmp_path, site={"most_body_bytes": 200_000}) as (service, caller):
        async with caller.post(path, data=body, headers={"Content-Type": f"application/{kind}"}) as answer:
            assert answer.status == status
            assert words in (await answer.json())["error"]
        metrics = service.metrics.text().decode()
        assert 'headrace_serving_decisions_total{model="Ball"} 0.0' in metrics
        assert 'headrace_serving_sessions{model="Ball"} 0.0' in metrics
        assert (await post(caller, ACT, {"observations": [[ROW]]}))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer right", "Origin": "http://evil.example"}, 403),
        ({"Authorization": "Bearer right", "Host": "evil.example"}, 403),
        ({"Authorization": "Bearer right"}, 200),
    ],
)
async def test_a_forbidden_call_is_refused_before_the_body_is_read(tmp_path, headers, status):
    write_model(tmp_path)
    site = {"token": "right", "needs_token": lambda request: request.path not in OPEN}
    async with called(tmp_path, site=site) as (_, caller):
        assert (await post(caller, ACT, {"observations": [[ROW]]}, **headers))[0] == status
        for health in ("/healthz", "/readyz"):
            async with caller.get(health) as answer:
                assert answer.status == 200


async def test_each_request_is_logged_if_asked_without_the_token(tmp_path, caplog):
    write_model(tmp_path)
    caplog.set_level("INFO", "headrace")
    for wanted in (False, True):
        async with called(tmp_path, site={"access_log": wanted}) as (_, caller):
            await post(caller, ACT, {"observations": [[ROW]]})
            async with caller.get("/a%0Ab?token=secret") as answer:
                assert answer.status == 404
    act, lost = [record for record in caplog.records if hasattr(record, "path")]
    assert (act.method, act.path, act.status, act.behavior, act.remote) == ("POST", ACT, 200, "Ball", "127.0.0.1")
    assert lost.getMessage().startswith("127.0.0.1 GET /a%0Ab 404 ")


async def test_pages_of_an_origin_that_is_allowed_may_call_it(tmp_path):
    write_model(tmp_path)
    ours, other = "https://game.example", "https://evil.example"
    site = {"token": "right", "origins": frozenset({ours})}
    async with called(tmp_path, site=site) as (_, caller):
        asks = {"Access-Control-Request-Method": "POST", "Sec-Fetch-Site": "cross-site"}
        async with caller.options(ACT, headers={"Origin": ours, **asks}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, ours)
            assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
        async with caller.options(ACT, headers={"Origin": other, **asks}) as answer:
            assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (403, False)
        for token, status in (("right", 200), ("wrong", 401)):
            headers = {"Origin": ours, "Authorization": f"Bearer {token}", "Sec-Fetch-Site": "cross-site"}
            async with caller.post(ACT, json={"observations": [[ROW]]}, headers=headers) as answer:
                assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, ours)


async def test_requests_beyond_their_number_are_refused_and_answered_later(tmp_path):
    write_model(tmp_path)
    limits = ServingLimits(requests=2, refused_s=0.0, patience_s=120.0)  # a slow machine's requests are not late
    service = PolicyService(load_models([str(tmp_path)]), True, 0, time.monotonic, limits)  # it decides nothing yet
    site = Site(serving_routes(service), SiteOptions("127.0.0.1:0"))
    await site.start()
    async with ClientSession(site.url) as caller:
        bodies = [(ACT, {"observations": [[ROW]]}), ("/v2/models/Ball/infer", {"inputs": [VECTOR]})] * 3
        asked = [asyncio.create_task(post(caller, *body)) for body in bodies]
        for done in itertools.islice(asyncio.as_completed(asked), 4):
            status, answer = await done
            assert (status, answer["error"]) == (503, "too many requests are in progress; try again later")
        async with caller.get("/healthz") as answer:
            assert answer.status == 200
        running = asyncio.create_task(service.run())
        assert sorted([status for status, _ in await asyncio.gather(*asked)]) == [200] * 2 + [503] * 4
        assert (await post(caller, ACT, {"observations": [[ROW]]}))[0] == 200
        assert b"headrace_serving_turned_away_total 4.0" in service.metrics.text()
        running.cancel()
    await site.stop()


async def test_a_session_too_many_is_refused_with_429(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path, limits=ServingLimits(session_agents=3)) as (_, caller):
        sessions = "/api/models/Ball/sessions"
        assert (await post(caller, sessions, {"agents": 2}))[0] == 201
        async with caller.post(sessions, json={"agents": 2}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert "there are 1 sessions with 2 agents in all (at most 10000 and 3)" in (await answer.json())["error"]
        for wrong in (True, "2", 0, 1025):
            assert (await post(caller, sessions, {"agents": wrong}))[0] == 422


async def test_half_of_a_pair_of_surrogates_is_refused(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (_, caller):
        for plain in ({"observations": {"\ud800": [ROW]}}, {"observations": [[ROW]], "session": "\udfff"}):
            assert (await post(caller, ACT, plain))[0] == 400


async def test_at_its_end_the_server_is_unready_and_answers_requests_in_flight(tmp_path, caplog):
    caplog.set_level("INFO", "headrace")
    write_model(tmp_path)
    async with called(tmp_path) as (service, caller):
        under_way = [asyncio.create_task(post(caller, ACT, {"observations": [[ROW]]})) for _ in range(5)]
        await under_way[0]
        await service.end()
        assert "Stopping: answering the requests in progress." in caplog.text
        statuses = [status for status, _ in await asyncio.gather(*under_way)]
        assert set(statuses) <= {200, 503}
        for health in ("/readyz", "/healthz"):
            async with caller.get(health) as answer:
                assert (answer.status, answer.headers["Connection"]) == (503, "close")
        status, answer = await post(caller, ACT, {"observations": [[ROW]]})
        assert (status, answer["error"]) == (503, "the server is shutting down")


async def test_a_client_that_hangs_up_is_dropped(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (service, caller):
        async with caller.get("/healthz") as answer:
            port = answer.url.port
        body = b'{"observations": [[[1, 2, 3]]]}'
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as gone:
                gone.sendall(head % (ACT.encode(), len(body)) + body)
        assert (await post(caller, ACT, {"observations": [[ROW]]}))[0] == 200
        async with asyncio.timeout(10):
            await service.end()  # nothing is under way for ever


async def test_the_api_describes_itself(tmp_path):
    write_model(tmp_path)
    async with called(tmp_path) as (_, caller), caller.get("/api/openapi.json") as answer:
        described = await answer.json()
        assert "/v2/models/{model}/versions/{version}/infer" in described["paths"]
        operation = described["paths"][ACT.replace("Ball", "{model}")]["post"]
        keys = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert set(keys) == {"observations", "masks", "deterministic", "session", "episode_start"}
