"""`--serve`: the policy server by the real command."""

from __future__ import annotations

import re
import signal

import grpc
import pytest
from gymnasium.spaces import Box
from predicted import Acting, group_of, saved
from serving_samples import expected, post, served, write_model

from headrace.pipeline.cli import main
from headrace.pipeline.serving.kserve_grpc import SERVICE, message


def test_models_answer_until_the_server_is_stopped(tmp_path):
    write_model(tmp_path / "results" / "first")
    write_model(tmp_path / "results" / "first", step=100, seed=1)
    wanted = {"Ball": expected([[[1, 2, 3]]]), "old": expected([[[1, 2, 3]]], seed=1)}
    group, envs, result = group_of(Box(-2, 2, (3,)), Box(-2, 6, (2,)), clips=True, num_envs=1)
    pendulum = saved(tmp_path / "results" / "other", group.behavior_specs["Test"])
    Acting(pendulum, group).step(result)
    models = ("results/first", "old=results/first@100", "results/other")
    arguments = (*models, "--listen", "127.0.0.1:0", "--deterministic")
    with served(tmp_path, *arguments) as (process, said):
        assert "Ball: results/first/Ball/Ball-500.pt, step 500\nold: " in said
        assert "token" not in said
        url = re.search(r"HTTP: (http://127\.0\.0\.1:\d+/)", said)[1]
        for name, decision in wanted.items():
            status, answer = post(f"{url}api/models/{name}/act", {"observations": [[[1, 2, 3]]]})
            assert status == 200
            assert answer["continuous"][0] == pytest.approx(decision.actions.continuous[0].tolist(), rel=1e-5)
        answer = post(f"{url}api/models/Test/act", {"observations": [[envs[0].seen[-2].tolist()]]})[1]
        assert answer["continuous"][0] == pytest.approx(envs[0].given[-1].tolist(), rel=1e-5), "in its units"
        port = re.search(r"gRPC: port (\d+)", said)[1]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            tensor = {"name": "vector", "datatype": "FP32", "shape": [1, 3], "contents": {"fp32_contents": [1, 2, 3]}}
            asked = message("ModelInferRequest")(model_name="Ball", inputs=[tensor])
            answer = message("ModelInferResponse").FromString(call(asked.SerializeToString(), timeout=60))
            assert list(answer.outputs[0].contents.fp32_contents) == pytest.approx(
                wanted["Ball"].actions.continuous[0].tolist(), rel=1e-5
            )
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "--serve none: there is no file or folder none"),
        (["model", "--listen", "here:1"], "--listen=here:1: 'here' is not valid; expected localhost"),
        (["model", "--allow-origin", "game.example"], "--allow-origin game.example: expected scheme://host"),
    ],
)
def test_a_mistake_in_the_command_is_named(tmp_path, monkeypatch, in_this_process, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in in_this_process(main, "--serve", *arguments, status=2)
