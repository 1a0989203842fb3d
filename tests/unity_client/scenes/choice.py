"""Which scene the arguments ask for."""

from __future__ import annotations

import argparse
import random

from unity_client.academy import Scene
from unity_client.channels import Channels
from unity_client.report import Report
from unity_client.scenes.balance import Balance
from unity_client.scenes.crowd import Crowd
from unity_client.scenes.duel import Duel
from unity_client.scenes.given import Given
from unity_client.scenes.many import Many
from unity_client.scenes.simple import Simple


def make_scene(options: argparse.Namespace, dice: random.Random, channels: Channels, report: Report) -> Scene:
    match options.scene:
        case "balance":
            return Balance(options, dice, report)
        case "crowd":
            return Crowd(options, dice, channels, report)
        case "duel":
            return Duel(options, dice, channels, report)
        case "given":
            return Given(options, dice, report)
        case "many":
            return Many(options, dice)
        case _:
            return Simple(options, dice, channels, report)
