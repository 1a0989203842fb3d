"""W&B and MLflow: what a run tells them arrives, as their own readers find it, without a network."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.reporting.statistics import StatisticsWriter, Summary
from headrace.pipeline.reporting.writers import check_writers, make_writers

SUMMARIES = {
    "Environment/Cumulative Reward": Summary("mean", mean=2.5, sum=5.0, std=0.5, count=2, last=3.0),
    "Losses/Value": Summary("histogram", mean=2.0, sum=6.0, std=1.0, count=3, last=3.0, values=(1.0, 2.0, 3.0)),
    "Is Training": Summary("last", mean=1.0, sum=1.0, std=0.0, count=1, last=1.0),
}


def config(*writers: str | Mapping[str, Any]) -> RunConfig:
    return RunConfig.from_plain({"behaviors": {"B": {}}, "pipeline": {"statistics_writers": list(writers)}})


def run_with(folder: Path, writer: str | Mapping[str, Any], *steps: int, resume: bool = False) -> None:
    """What main does with a writer in a run."""
    folder.mkdir(parents=True, exist_ok=True)
    made: StatisticsWriter
    (made,) = make_writers(config(writer), folder, resume)
    made.add_property("B", "hyperparameters", {"batch_size": 64, "network_settings": {"hidden_units": 32}})
    for step in steps:
        made.write("B", SUMMARIES, step)
    made.close()
    made.close()


# Weights & Biases. ----------------------------------------------------------------------------------------------------


def records(file: Path) -> Iterator[bytes]:
    """The records of a file in the format of LevelDB's logs, which wandb's offline files have behind seven bytes."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if length:
            whole += data[at + 7 : at + 7 + length]
            if kind in (1, 4):  # whole, or the last part
                yield whole
                whole = b""
        at += 7 + length
        at += 32768 - at % 32768 if 32768 - at % 32768 < 7 else 0


def wandb_history(run_folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], set[str]]:
    """Metrics, config and run ids in wandb's offline files, by wandb's own messages."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    ids = set()
    for file in (*run_folder.glob("wandb/earlier-part/*.wandb"), *run_folder.glob("wandb/offline-run-*/*.wandb")):
        for data in records(file):
            record = messages.Record.FromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
            if record.HasField("config"):
                settings |= {item.key: json.loads(item.value_json) for item in record.config.update}
    return rows, settings, ids


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")
    yield
    import wandb

    wandb.teardown()  # ends the process that it starts beside this one


@pytest.mark.slow
@pytest.mark.lengthy
@pytest.mark.usefixtures("offline")
def test_wandb_gets_each_statistic_over_the_behaviours_step_and_a_resumed_run_continues_there(tmp_path: Path):
    folder = tmp_path / "first"
    run_with(folder, {"use": "wandb", "with": {"mode": "offline"}}, 1000, 2000)
    (part,) = folder.glob("wandb/offline-run-*")
    part.rename(folder / "wandb/earlier-part")  # wandb names a folder by the second: both parts may be of the same one
    run_with(folder, {"use": "wandb", "with": {"mode": "offline"}}, 3000, resume=True)
    rows, settings, ids = wandb_history(folder)
    assert [row["B/step"] for row in rows] == [1000, 2000, 3000]
    assert {row["B/Environment/Cumulative Reward"] for row in rows} == {2.5}
    assert rows[0]["B/Losses/Value_hist/_type"] == "histogram"
    assert "B/Is Training" not in rows[0]
    assert settings["B"]["hyperparameters"]["network_settings"] == {"hidden_units": 32}
    assert len(ids) == 1


@pytest.mark.lengthy
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("given", [{"mode": "online"}, {}])
def test_wandb_without_a_login_is_refused_with_the_ways_out(given, tmp_path: Path):
    with pytest.raises(RunError, match=r"statistics_writers\.0: not logged in to W&B.*mode: offline"):
        make_writers(config({"use": "wandb", "with": given}), tmp_path)


# MLflow. -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_gets_each_statistic_and_a_resumed_run_continues_there(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    folder = tmp_path / "first"
    run_with(folder, "mlflow", 1000, 2000)
    run_with(folder, "mlflow", 3000, resume=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("headrace").experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params["B/hyperparameters/network_settings/hidden_units"] == "32"
    assert set(run.data.metrics) == {"B/Environment/Cumulative Reward", "B/Losses/Value"}
    points = client.get_metric_history(run.info.run_id, "B/Environment/Cumulative Reward")
    assert [(point.step, point.value) for point in points] == [(1000, 2.5), (2000, 2.5), (3000, 2.5)]


@pytest.mark.lengthy
@pytest.mark.filterwarnings("ignore")
def test_a_missing_mlflow_is_named_before_anything_starts(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with pytest.raises(RunError, match=r"statistics_writers\.0: creating mlflow raised .*refused"):
        make_writers(config({"use": "mlflow", "with": {"tracking_uri": "http://127.0.0.1:9"}}), tmp_path)


# Both. ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    (mistake,) = check_writers(config(name))
    assert str(mistake).endswith(f'{name!r} needs packages that are missing: `pip install "headrace[{name}]"`')


@pytest.mark.parametrize("name", ["csv", "wandb", "mlflow"])
def test_an_argument_that_a_writer_does_not_take_is_named_with_those_that_it_takes(name):
    (mistake,) = check_writers(config({"use": name, "with": {"colour": "red"}}))
    assert f"{name} does not accept {{'colour': 'red'}}" in str(mistake)
    assert "run_folder" in str(mistake)
