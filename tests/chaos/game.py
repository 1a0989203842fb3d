"""A game that an environment starts, and that may do what it should not: it answers each line with a reward."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    for line in sys.stdin:
        print(answer(line.strip()), flush=True)


def answer(fault: str) -> str:
    """A reward, unless the line names a fault."""
    match fault:
        case "raise":
            raise RuntimeError("the game is on fire")
        case "os._exit(0)" | "os._exit(3)":
            os._exit(int(fault[-2]))
        case "sys.exit(0)":
            sys.exit(0)
        case "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang in Python":
            while True:
                pass
        case "hang in C":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as some do
            time.sleep(10**6)
        case "slow":
            time.sleep(3.0)
        case "NaN output":
            return "nan"
        case "wrong output":
            return "???"
    return "1.0"


if __name__ == "__main__":
    main()
