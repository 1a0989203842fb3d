"""Paths as users write them, in files and on the command line, on every system."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from headrace.config import ConfigError, load_config
from headrace.config.paths import user_path
from headrace.config.yaml_reader import read_file, read_text
from headrace.pipeline.command import parse, read_request


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("~/runs", "/home/me/runs"),
        ("$HOME/runs", "/home/me/runs"),
        ("${HOME}/runs@best", "/home/me/runs@best"),
        ("demos/*.demo", "demos/*.demo"),
        ("minari:pointmaze/umaze-v2", "minari:pointmaze/umaze-v2"),
    ],
)
def test_home_and_variables_are_replaced(text, path):
    assert user_path(text).replace("\\", "/") == path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("$unheard_of/runs", "$unheard_of"),
        ("$HOME/${unheard_of}.yaml", "${unheard_of}"),
        ("${HOME:-/tmp}/runs", "${HOME:-/tmp}"),
        ("runs/$unheard_of", "$unheard_of"),
    ],
)
def test_a_variable_that_is_not_set_is_refused_unless_a_file_has_this_name(tmp_path, text, named):
    with pytest.raises(ValueError, match=re.escape(f"'{text}': the variable {named} is not set")):
        user_path(text)
    (tmp_path / "$unheard_of").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path)
    if named == "$unheard_of":
        assert user_path(text) == text


def test_an_unset_variable_is_refused_with_its_line_or_option_and_an_unknown_home_too():
    text = "behaviors: {B: {}}\nenvironment: {kind: gymnasium, id: CartPole-v1}\ncheckpoint_settings:\n  results_dir: $NO/a\n"
    Path("my.yaml").write_text(text, encoding="ascii")
    with pytest.raises(ConfigError, match=r"my\.yaml:4: checkpoint_settings\.results_dir: .*\$NO is not set"):
        load_config("my.yaml")
    with pytest.raises(ConfigError, match=r"--set checkpoint_settings\.results_dir.*\$NO is not set"):
        load_config({"environment": {"kind": "gymnasium", "id": "a"}}, ["checkpoint_settings.results_dir=$NO/a"])
    with pytest.raises(ValueError, match="~nobody-here is not a known home folder"):
        user_path("~nobody-here/runs")


def test_an_unset_variable_in_an_option_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["my.yaml", "--results-dir", "$NO/a"])
    assert "argument --results-dir: '$NO/a': the variable $NO is not set" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="makes a file with a backslash in its name")
def test_relative_paths_of_windows_are_read_elsewhere_unless_that_file_exists(tmp_path):
    (tmp_path / "a\\b").touch()
    assert user_path("builds\\ball", "linux") == "builds/ball"
    assert user_path("a\\b", "linux") == "a\\b"
    assert user_path("C:\\builds\\ball", "linux") == "C:\\builds\\ball"
    assert user_path("\\\\server\\share\\ball", "linux") == "\\\\server\\share\\ball"


@pytest.mark.parametrize(
    "text", ["C:\\Users\\me\\ball", "C:/Users/me", "\\\\server\\share\\ball", "builds\\ball", "\\ball"]
)
def test_on_windows_its_paths_stay_as_they_are(text):
    assert user_path(text, "win32") == text


@pytest.mark.windows
def test_a_path_of_a_drive_s_own_folder_becomes_absolute_and_variables_of_windows_are_replaced(tmp_path):
    assert user_path("C:runs") == str(tmp_path / "runs")
    assert user_path("%USERPROFILE%\\runs") == "/home/me\\runs"


YAML = """\
environment: {{kind: gymnasium, id: CartPole-v1}}
checkpoint_settings: {{results_dir: {0}}}
inference: {{video: {0}}}
behaviors:
  Ball:
    init_path: {0}
    brain: {{use: {0}, weight: 0.5}}
    behavioral_cloning: {{demo_path: {0}}}
    reward_signals: {{gail: {{demo_path: {0}}}}}
"""


def test_every_path_of_a_file_has_its_home_replaced(tmp_path):
    (tmp_path / "a.yaml").write_text(YAML.format("~/a.pt"), encoding="utf-8")
    config = load_config(tmp_path / "a.yaml", ["env_settings.env_path=~/a.pt", "replay.streams=[~/a.pt]"])
    text = str(config.to_plain())
    assert "~" not in text
    assert text.count("/home/me") >= 8


OF_FILES = ("env", "results-dir", "view", "plot", "plot-file", "tournament", "export-onnx", "convert", "curriculum")


@pytest.mark.parametrize("name", OF_FILES)
def test_every_path_of_the_command_line_has_its_home_replaced(name):
    found = vars(parse([f"--{name}", "~/x"]))[name.replace("-", "_")]
    assert str(found[0] if isinstance(found, list) else found).replace("\\", "/") == "/home/me/x"
    assert str(read_request(parse(["~/x.yaml"])).config).replace("\\", "/") == "/home/me/x.yaml"


@pytest.mark.parametrize("text", ['"C:\\Users\\me"', '"C:\\stages"', '"\\q"'])
def test_the_error_for_backslashes_in_double_quotes_suggests_single_quotes(text):
    with pytest.raises(ConfigError, match="is not YAML.*single quotes, or with /"):
        read_text(f"a: {text}", "a.yaml")


def test_a_path_that_yaml_has_read_otherwise_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text('checkpoint_settings: {results_dir: "C:\\new\\table"}\n', encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"results_dir: .*double quotes starts an escape sequence; write the path in single"
    ):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_is_read_as_editors_and_powershell_write_it(tmp_path, encoding):
    (tmp_path / "a.yaml").write_text("a: Bällchen\r\n", encoding=encoding, newline="")
    assert read_file(tmp_path / "a.yaml").data == {"a": "Bällchen"}


@pytest.mark.parametrize("reference", ["C:\\stages\\my.py:Stage", "./my.py:Stage", "stages/my:Stage"])
def test_the_error_for_a_class_in_a_file_explains_how_modules_are_named(tmp_path, reference):
    (tmp_path / "a.yaml").write_text(f"pipeline: {{stages: [{{use: '{reference}'}}]}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape("name the module, not its file")):
        load_config(tmp_path / "a.yaml")
