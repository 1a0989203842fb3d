"""The stand-in Unity from its start to its return code."""

from __future__ import annotations

import argparse
import random
import sys

from unity_client import faults
from unity_client.academy import Academy
from unity_client.channels import Channels
from unity_client.connection import Connection
from unity_client.handshake import greet
from unity_client.misbehavior import Misbehavior, hang
from unity_client.options import options_of
from unity_client.report import Report
from unity_client.scenes import make_scene


def main(arguments: list[str]) -> int:
    """Run a scene; the return code says how it ended."""
    options = options_of(arguments)
    report = Report(options.report, options.log_file, options.mlagents_port, arguments)
    report.log(f"The stand-in Unity plays the scene {options.scene}")
    if options.mlagents_port is None:
        report.log("There is no --mlagents-port, so nobody is called")
        return faults.NO_PORT
    trouble = Misbehavior(options)
    trouble.before_connecting()
    returncode, reason = _play(options, report, trouble)
    report.write(returncode, reason)
    if options.misbehave in ("wrong-version", "never-ends"):
        hang()  # a real build goes on without its trainer where it is refused; it may also hang as it ends
    return returncode


def _play(options: argparse.Namespace, report: Report, trouble: Misbehavior) -> tuple[int, str]:
    connection = Connection(options.mlagents_port)
    channels = Channels()
    report.facts |= {"engine": channels.engine, "parameters": channels.parameters}
    report.facts |= {"floats": channels.floats, "unknown_channels": channels.unknown}
    try:
        hello = greet(connection, options)
        report.facts |= {"seed": hello.seed, "num_areas": hello.num_areas}
        report.meet(options.companions)
        scene = make_scene(options, random.Random(hello.seed), channels, report)
        Academy(scene, connection, channels, report, trouble, options).run()
    except faults.Closed as closed:
        return faults.CLOSED, str(closed)
    except faults.Violation as violation:
        print(f"VIOLATION: {violation}", file=sys.stderr)
        return faults.VIOLATION, f"VIOLATION: {violation}"
    except faults.Lost as lost:
        return faults.LOST, f"the connection is lost: {lost}"
    finally:
        connection.close()
    raise AssertionError("an academy runs until something ends it")
