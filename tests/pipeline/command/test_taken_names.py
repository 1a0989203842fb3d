"""Modules of the user's that have the names of Headrace's packages."""

from __future__ import annotations

from pathlib import Path

from pipeline.command import taken_names

ROOT = Path(__file__).resolve().parents[3]


def package(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    return folder / name / "__init__.py"


def test_they_are_named_in_one_sentence_wherever_they_lie(tmp_path, monkeypatch):
    beside = package(tmp_path / "configs", "stages")
    here = package(tmp_path, "pipeline")
    module = tmp_path / "queues.py"
    module.touch()
    monkeypatch.chdir(tmp_path)

    (sentence,) = taken_names(tmp_path / "configs")

    assert sentence.startswith(f"{beside}, {here}, {module}: Headrace has packages of its own by the names config, ")


def test_folders_of_data_and_other_modules_are_not_named(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my.yaml").touch()
    package(tmp_path, "environments")
    monkeypatch.chdir(tmp_path)

    assert taken_names(None) == []
    assert taken_names(tmp_path) == []


def test_headraces_own_packages_are_not_named_in_its_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)

    assert taken_names(ROOT / "config" / "examples") == []
