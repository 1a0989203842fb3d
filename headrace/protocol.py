"""`python -m headrace.protocol`: tests a game that speaks the open protocol, or plays it with random actions.

        python -m headrace.protocol check builds/game --speed=2      starts the program, and reports
        python -m headrace.protocol check --transport=websocket      waits for a game, such as a web page
        python -m headrace.protocol play builds/game                 plays until Ctrl-C, or the game's end

`check` exits with status 1 if anything fails.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

from headrace.pipeline.common.output import speaking
from headrace.pipeline.hosts.process_cleanup import watch_this_process
from headrace.stages.environments.engines.errors import GameEnded
from headrace.stages.environments.engines.game import GameSettings
from headrace.stages.environments.engines.open_protocol.conformance import RandomTrainer, check_game
from headrace.stages.environments.engines.open_protocol.game import OpenBuild, OpenGame
from headrace.stages.errors import StageError

_PORT = 12008
_STEPS_OF_A_LINE = 1_000


@speaking
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace.protocol",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="what", required=True)
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--transport", choices=("tcp", "websocket"), default="tcp")
    options.add_argument(
        "--port",
        type=int,
        default=None,
        help=f"port to listen on (default: {_PORT}, or any free port if a program is given)",
    )
    options.add_argument("--steps", type=int, default=_STEPS_OF_A_LINE, help="steps that check plays (1,000)")
    options.add_argument(
        "--timeout-wait", "--timeout", type=float, default=60.0, help="time limit for each answer, in seconds (60)"
    )
    options.add_argument("--seed", type=int, default=1, help="seed for the program (1)")
    options.add_argument(
        "program", nargs=argparse.REMAINDER, help="program to start, and its arguments; put options before the program"
    )
    commands.add_parser("check", parents=[options], allow_abbrev=False, help="test a game, and report")
    commands.add_parser("play", parents=[options], allow_abbrev=False, help="play with random actions")
    args = parser.parse_args(arguments)
    watch_this_process()  # so that the program ends with this process, however that ends
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    build = OpenBuild(args.program[0], args.program[1:], show_output=True) if args.program else None
    port = args.port if args.port is not None else 0 if build else _PORT
    try:
        return asyncio.run(_follow(args, build, port))
    except KeyboardInterrupt:
        return 130


async def _follow(args: argparse.Namespace, build: OpenBuild | None, port: int) -> int:
    game = OpenGame(GameSettings(0, port, args.seed, args.timeout_wait), args.transport, build)
    if args.what == "play":
        return await _play(game)
    failed = False
    async for line in check_game(game, args.steps):
        failed |= line.kind == "FAIL"
        sys.stdout.write(f"{line.kind:5}{line.text}\n")
    return int(failed)


async def _play(game: OpenGame) -> int:
    """Play until the game ends."""
    trainer = RandomTrainer(game)
    try:
        await trainer.start()
        await trainer.reset({})
        while True:
            for _ in range(_STEPS_OF_A_LINE):
                await trainer.step()
            for seen in trainer.seen.values():
                sys.stdout.write(f"{seen.words()}\n")
            sys.stdout.flush()
    except GameEnded as end:
        sys.stdout.write(f"{end}\n")
        return 0
    except StageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        await game.close(5)


if __name__ == "__main__":
    sys.exit(main())
