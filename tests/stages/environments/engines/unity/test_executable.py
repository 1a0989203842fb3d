"""Where a Unity executable is looked for, and what it is started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.process import find_executable, tail
from headrace.stages.environments.engines.unity.game import UnityBuild

GAME = "Game.exe" if sys.platform == "win32" else "Game"


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.mark.parametrize("given", ["Game", "Game.x86_64", "Game.exe", "Game.app", "Game.x86"])
def test_linux_replaces_the_extension_of_another_system(tmp_path, given):
    make(tmp_path, "Game.x86_64")
    assert find_executable(tmp_path / given, "linux") == tmp_path / "Game.x86_64"


def test_linux_prefers_a_64_bit_build(tmp_path):
    make(tmp_path, "Both.x86", "Both.x86_64", "Bare")
    assert find_executable(tmp_path / "Both.exe", "linux") == tmp_path / "Both.x86_64"
    assert find_executable(tmp_path / "Bare.app", "linux") == tmp_path / "Bare"


def test_an_exact_path_is_used(tmp_path):
    make(tmp_path, "Game", "Game.x86", "Game.x86_64", "start.sh")
    assert find_executable(tmp_path / "Game.x86", "linux") == tmp_path / "Game.x86"
    assert find_executable(tmp_path / "Game", "linux") == tmp_path / "Game"
    assert find_executable(tmp_path / "start.sh", "linux") == tmp_path / "start.sh"


def test_macos_finds_the_program_inside_the_bundle(tmp_path):
    make(tmp_path, "Game.app/Contents/MacOS/Game", "Renamed.app/Contents/MacOS/Original")
    assert find_executable(tmp_path / "Game", "darwin") == tmp_path / "Game.app/Contents/MacOS/Game"
    assert find_executable(tmp_path / "Renamed.app", "darwin") == tmp_path / "Renamed.app/Contents/MacOS/Original"


def test_windows_finds_the_exe_or_the_program_in_a_folder(tmp_path):
    make(tmp_path, "Game.exe", "Folder/UnityCrashHandler64.exe", "Folder/Zebra.exe")
    assert find_executable(tmp_path / "Game", "win32") == tmp_path / "Game.exe"
    assert find_executable(tmp_path / "Folder", "win32") == tmp_path / "Folder" / "Zebra.exe"


@pytest.mark.parametrize("given", ["Game.EXE", "Game", "Game.x86_64"])
def test_windows_ignores_letter_case(tmp_path, given):
    make(tmp_path, "Game.exe" if given != "Game.EXE" else given, "Game.x86_64")
    assert find_executable(tmp_path / given, "win32").name.lower() == "game.exe"


def test_windows_starts_a_script_that_is_given_by_its_full_name(tmp_path):
    make(tmp_path, "start.bat", "Linux")
    assert find_executable(tmp_path / "start.bat", "win32") == tmp_path / "start.bat"
    with pytest.raises(GameRefused, match=r"none of .*Linux\.exe is a file"):
        find_executable(tmp_path / "Linux", "win32")


def test_windows_chooses_the_program_with_the_folder_s_name_or_the_only_one(tmp_path):
    make(tmp_path, "Ball/ball.exe", "Ball/Tool.exe", "Two/A.exe", "Two/B.exe")
    make(tmp_path, "Godot/Soccer.exe", "Godot/Soccer.console.exe", "Godot/unitycrashhandler32.exe")
    assert find_executable(tmp_path / "Ball", "win32") == tmp_path / "Ball" / "ball.exe"
    assert find_executable(tmp_path / "Godot", "win32") == tmp_path / "Godot" / "Soccer.exe"
    with pytest.raises(GameRefused, match=r"give one of the programs in it: .*A\.exe, .*B\.exe\. Set it"):
        find_executable(tmp_path / "Two", "win32")


def test_a_missing_executable_is_refused_with_the_paths_tried(tmp_path):
    with pytest.raises(GameRefused, match=r"no executable at .*Game: none of .*Game\.x86_64, .* is a file\. Set it"):
        find_executable(tmp_path / "Game", "linux")
    with pytest.raises(
        GameRefused, match=r"none of no/Game, .* is a file\. The path is relative to /.*\. Set it with --env"
    ):
        find_executable(Path("no/Game"), "linux")


def test_a_build_for_another_system_is_named(tmp_path):
    make(tmp_path, "Game.exe")
    with pytest.raises(
        GameRefused, match=r"Game\.exe is a build for a different system; build the game for this one \(linux\)"
    ):
        find_executable(tmp_path / "Game", "linux")


def test_a_folder_is_refused_with_the_program_in_it(tmp_path):
    (tmp_path / "Game").mkdir()
    with pytest.raises(GameRefused, match=r"no executable .*It is a folder; give the program in it\. Set it"):
        find_executable(tmp_path / "Game", "linux")
    make(tmp_path, "Game/Ball.x86_64")
    with pytest.raises(GameRefused, match=r"give the program in it: .*Game[/\\]Ball\.x86_64\. Set it"):
        find_executable(tmp_path / "Game", "linux")


def test_standard_arguments_come_first_in_their_order_and_the_users_last(tmp_path):
    make(tmp_path, GAME)
    game = UnityBuild(
        tmp_path / "Game", ("--level", "3"), no_graphics=True, log_file=tmp_path / "run_logs" / "Player-2.log"
    )
    assert game.command(5007, 0) == [
        str(tmp_path / GAME),
        "-nographics",
        "-batchmode",
        "--mlagents-port",
        "5007",
        "-logFile",
        str(tmp_path / "run_logs" / "Player-2.log"),
        "--level",
        "3",
    ]


def test_the_default_keeps_graphics_and_unity_s_log(tmp_path):
    make(tmp_path, GAME)
    assert UnityBuild(tmp_path / "Game").command(5005, 0)[1:] == ["--mlagents-port", "5005"]


def test_a_users_own_log_file_is_respected_however_it_is_spelled(tmp_path):
    make(tmp_path, GAME)
    game = UnityBuild(tmp_path / "Game", ("-logfile", "mine.log"), log_file=tmp_path / "Player-0.log")
    assert game.command(5005, 0)[3:] == ["-logfile", "mine.log"]
    assert game.log == Path("mine.log")


def test_a_log_on_standard_output_makes_no_file(tmp_path):
    assert UnityBuild(tmp_path / "Game", ("-logFile", "-"), log_file=tmp_path / "Player-0.log").log is None


def test_the_log_is_made_absolute_because_unity_may_change_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert UnityBuild("Game", log_file=Path("logs/Player-1.log")).log == tmp_path / "logs" / "Player-1.log"


def test_the_tail_of_a_log_has_the_file_s_name(tmp_path):
    log = tmp_path / "Player-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(5_000)))
    assert tail(log, lines=2) == f"\nThe end of {log}:\n    line 4998\n    line 4999"
