"""The example clients, each against a real server: the file of Python, and that of JavaScript in Node and in a browser."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import sys
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from browsers import needs_browser, opened_browser
from serving_samples import MEMORY, expected, serving, write_model

from headrace.pipeline.serving.http_api import serving_routes
from headrace.pipeline.web import Site, SiteOptions

EXAMPLES = Path(__file__).parents[3] / "examples" / "serving"
NODE = shutil.which("node")
ROW = [0.5, -1.0, 2.0]
TALK = """
const client = new PolicyClient(URL, { token: "right" });
const said = [(await client.models()).map((model) => model.name)];
said.push((await client.act("Ball", { vector: [new Float32Array(ROW)] }, { deterministic: true })).continuous[0]);
const session = await client.session("Mind");
for (const start of [true, false, true])
  said.push((await session.act([[ROW]], { episode_start: [start] })).continuous[0]);
await session.close();
for (const call of [() => session.act([[ROW]]), () => client.act("Ball", [[1]])])
  said.push(await call().catch((error) => `${error.name} ${error.message}`));
said.push(await new PolicyClient(URL, { token: "wrong" }).models().catch((error) => error.status));
"""


@asynccontextmanager
async def models(folder, endpoint="127.0.0.1:0", **options):
    """A server with a token and two models, one of which has a memory."""
    write_model(folder, "Ball")
    write_model(folder, "Mind", memory=MEMORY)
    async with serving(folder) as service:
        site = Site(serving_routes(service), SiteOptions(endpoint, token="right", **options))
        await site.start()
        try:
            yield site
        finally:
            await site.stop()


def check(said):
    """What a client has found out about these models."""
    first = expected([[ROW]], memory=MEMORY)
    second = expected([[ROW]], recall=first.recall, memory=MEMORY)
    names, ball, *minds, gone, unfit, wrong = said
    assert names == ["Ball", "Mind"]
    np.testing.assert_allclose(ball, expected([[ROW]]).actions.continuous[0], rtol=1e-5)
    for found, wanted in zip(minds, (first, second, first), strict=True):
        np.testing.assert_allclose(found, wanted.actions.continuous[0], rtol=1e-5)
    assert gone.startswith("ServerRefused 404: this model has no session")
    assert unfit.startswith("ServerRefused 422: observations.vector: expected float32[n, 3]")
    assert wrong == 401


def python_client():
    spec = importlib.util.spec_from_file_location("serving_client", EXAMPLES / "client.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def talk(module, url):
    """What `TALK` does, in Python."""
    client = module.PolicyClient(url, "right")

    def refused(call):
        with pytest.raises(module.ServerRefused) as raised:
            call()
        return raised.value

    said: list[Any] = [[model["name"] for model in client.models()]]
    said.append(client.act("Ball", {"vector": np.asarray([ROW], np.float32)}, deterministic=True)["continuous"][0])
    with client.session("Mind") as session:
        said += [session.act([[ROW]], episode_start=[start])["continuous"][0] for start in (True, False, True)]
    for call in (lambda: session.act([[ROW]]), lambda: client.act("Ball", [[1]])):
        said.append(f"ServerRefused {refused(call)}")
    stranger = module.PolicyClient(url, "wrong")
    said.append(refused(stranger.models).status)
    stranger.close()
    client.close()
    return said


@pytest.mark.lengthy
async def test_the_python_client_talks_with_a_server(tmp_path):
    async with models(tmp_path) as site:
        check(await asyncio.to_thread(talk, python_client(), site.url))


async def test_a_client_reconnects_after_the_server_was_restarted(tmp_path):
    module = python_client()
    async with models(tmp_path / "first") as site:
        client = module.PolicyClient(site.url, "right")
        assert len(await asyncio.to_thread(client.models)) == 2
        port = site.port
        session = await asyncio.to_thread(client.session, "Mind")
    async with models(tmp_path / "second", endpoint=f"127.0.0.1:{port}"):
        with pytest.raises((ConnectionError, module.HTTPException)):  # is not sent twice
            await asyncio.to_thread(session.act, [[ROW]])
        assert len(await asyncio.to_thread(client.models)) == 2
        client.close()


def test_invalid_addresses_and_values_are_refused_by_the_python_client():
    module = python_client()
    with pytest.raises(ValueError, match=r"such as http://localhost:8480, got 'localhost:8480'"):
        module.PolicyClient("localhost:8480")
    with pytest.raises(TypeError, match="a set can't be sent"):
        module.PolicyClient().act("Ball", [{1, 2}])


async def test_leaving_a_session_by_an_error_shows_that_error(tmp_path):
    module = python_client()

    def leave(url):
        with closing(module.PolicyClient(url, "right")) as client, client.session("Mind") as session:
            session.close()  # it can't be ended again
            raise ZeroDivisionError

    async with models(tmp_path) as site:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(leave, site.url)


async def run(*line):
    process = await asyncio.create_subprocess_exec(
        *line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


def script(url):
    return f"const URL = {json.dumps(url)}, ROW = {json.dumps(ROW)};\n{TALK}"


@pytest.mark.lengthy
@pytest.mark.skipif(NODE is None, reason="needs Node")
async def test_the_javascript_client_talks_with_a_server_in_node(tmp_path):
    file = tmp_path / "talk.mjs"
    address = (EXAMPLES / "client.mjs").as_uri()
    async with models(tmp_path) as site:
        source = f"import {{ PolicyClient }} from {json.dumps(address)};\n{script(site.url)}"
        file.write_text(f"{source}\nconsole.log(JSON.stringify(said));\n")
        status, said, errors = await run(NODE, str(file))
        assert status == 0, errors
        check(json.loads(said))


@pytest.mark.lengthy
async def test_both_list_the_models_of_a_server_as_programs(tmp_path):
    copied = tmp_path / "a b ü"  # the names of folders do not matter
    shutil.copytree(EXAMPLES, copied)
    programs = [(sys.executable, "client.py"), *([(NODE, "client.mjs")] if NODE else [])]
    async with models(tmp_path) as site:
        url = site.url.rstrip("/")
        for program, file in programs:
            _, said, _ = await run(program, str(copied / file), url, "right")
            assert [each.partition(":")[0] for each in said.splitlines()] == ["Ball, step 500", "Mind, step 500"]
            status, _, errors = await run(program, str(copied / file), url, "wrong")
            assert (status, errors.count("\n"), "401: a token is needed" in errors) == (1, 1, True)
    for program, file in programs:
        status, _, errors = await run(program, str(copied / file), url)
        assert (status, errors.count("\n"), url in errors) == (1, 1, True)  # nobody is there any more


FOREIGN = "; a proxy or a different server answered, not a policy server"


@pytest.mark.lengthy
@pytest.mark.parametrize("program", [(sys.executable, "client.py"), (NODE, "client.mjs")])
@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, "<html>Who are you?</html>", "401: Unauthorized"),
        (401, '{"message": "Who are you?"}', "401: Unauthorized"),
        (200, "<html>Welcome</html>", "200: OK"),
    ],
)
async def test_both_report_answers_of_a_proxy_and_of_other_servers(program, status, body, message):
    async def answer(_):
        return web.Response(status=status, text=body)

    if program[0] is None:
        pytest.skip("needs Node")
    site = Site([web.get("/api/models", answer)], SiteOptions("127.0.0.1:0"))
    await site.start()
    try:
        ended, _, errors = await run(program[0], str(EXAMPLES / program[1]), site.url.rstrip("/"))
    finally:
        await site.stop()
    assert (ended, errors.endswith(f"{message}{FOREIGN}\n"), errors.count("\n")) == (1, True, 1), errors


@needs_browser
@pytest.mark.lengthy
async def test_the_javascript_client_talks_with_a_server_from_a_page_of_another_origin(tmp_path):
    page = web.Application()
    runner = web.AppRunner(page)

    async def client(_):
        return web.Response(text=(EXAMPLES / "client.mjs").read_text(), content_type="text/javascript")

    async def talking(request):
        url = request.query["url"]
        body = f"import {{ PolicyClient }} from '/client.mjs';\n{script(url)}\nwindow.said = said;"
        return web.Response(text=f"<!doctype html><script type=module>{body}</script>", content_type="text/html")

    page.add_routes([web.get("/client.mjs", client), web.get("/", talking)])
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    origin = f"http://localhost:{runner.addresses[0][1]}"
    try:
        async with models(tmp_path, origins=frozenset({origin})) as site:
            check(await asyncio.to_thread(said_in_browser, f"{origin}/?url={site.url}"))
    finally:
        await runner.cleanup()


def said_in_browser(address):
    from selenium.webdriver.support.wait import WebDriverWait

    with opened_browser() as driver:
        driver.get(address)
        return WebDriverWait(driver, 30).until(lambda driver: driver.execute_script("return window.said"))
