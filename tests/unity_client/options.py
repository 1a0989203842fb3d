"""The stand-in Unity's arguments: those of every Unity build, then its own."""

from __future__ import annotations

import argparse
from pathlib import Path

SCENES = ("simple", "visual", "duel", "crowd", "given", "many", "balance")
MISBEHAVIORS = (
    "die-mid-step",
    "exit-mid-step",
    "quit-in-step",
    "quit-at-start",
    "hang",
    "stop",
    "garbage",
    "empty-message",
    "nan-reward",
    "wrong-observation",
    "duplicate-ids",
    "unknown-behavior",
    "huge-message",
    "never-asks",
    "never-connects",
    "never-ends",
    "refuses-us",
    "wrong-version",
)


def parser() -> argparse.ArgumentParser:
    """What a test may ask of the stand-in."""
    unity = argparse.ArgumentParser(prog="unity_build", description=__doc__, allow_abbrev=False)
    unity.add_argument("-nographics", action="store_true")
    unity.add_argument("-batchmode", action="store_true")
    unity.add_argument("--mlagents-port", type=int)
    unity.add_argument("-logFile", dest="log_file", type=Path)

    unity.add_argument("--scene", choices=SCENES, default="simple")
    unity.add_argument("--report", type=Path, help="folder for <port>-<pid>.json, written at the end")
    unity.add_argument("--quits", type=Path, help="ask before each step whether this file is there, and quit if it is")
    unity.add_argument("--companions", type=int, default=1, help="play only once so many of a run are connected")
    unity.add_argument("--communication-version", help="1.5.0, or one that nobody speaks if it is to be wrong")
    unity.add_argument("--package-version", default="3.0.0")
    unity.add_argument("--step-ms", type=float, default=0.0, help="what a step costs at least")
    unity.add_argument("--stats", action="store_true", help="send statistics of all aggregations at each episode's end")
    unity.add_argument("--echo", action="store_true", help="take only actions that repeat what the agent has seen")

    agents = unity.add_argument_group("agents")
    agents.add_argument("--agents", type=int, help="how many of each behaviour, matches for `duel`")
    agents.add_argument("--behaviors", nargs="+", help="names, of scenes `simple` and `visual`")
    agents.add_argument("--second-at", type=int, default=0, help="the step at which later behaviours appear")
    agents.add_argument("--continuous", type=int, default=0)
    agents.add_argument("--branches", type=int, nargs="*", default=[], help="sizes")
    agents.add_argument("--mask", action="store_true", help="forbid choices from the third on at random")
    agents.add_argument("--vectors", type=int, help="how many vector observations")
    agents.add_argument("--shapes", nargs="*", help="of the sensors of `given`: 8, 20x23, 3x84x84")
    agents.add_argument("--visuals", type=int, help="how many visual ones")
    agents.add_argument("--picture", choices=("rgb", "gray", "stack", "mapped", "uncompressed"), default="rgb")
    agents.add_argument("--goal-signal", action="store_true")
    agents.add_argument("--groups", action="store_true", help="agents of `crowd` are rewarded as groups")
    agents.add_argument("--new-ids", action="store_true", help="agents get a new id with each episode")
    agents.add_argument("--max-steps", type=int, default=0, help="decisions after which an episode is interrupted")
    agents.add_argument("--decision-period", type=int, default=5, help="of scene `crowd`")

    wrong = unity.add_argument_group("misbehaviour")
    wrong.add_argument("--misbehave", choices=MISBEHAVIORS)
    wrong.add_argument("--at-step", type=int, default=3, help="the exchange at which it does")
    wrong.add_argument("--once", type=Path, help="only whoever creates this file misbehaves")
    wrong.add_argument("--huge-mib", type=float, default=8.0)
    return unity


def options_of(arguments: list[str]) -> argparse.Namespace:
    """The arguments, with what follows from them."""
    options = parser().parse_args(arguments)
    if options.communication_version is None:
        options.communication_version = "2.0.0" if options.misbehave == "wrong-version" else "1.5.0"
    return options
