"""The process that tries a run's environments: a configuration on standard input, remarks into a file."""

from __future__ import annotations

import faulthandler
import os
import sys
from dataclasses import asdict
from pathlib import Path

import msgpack

from config import RunConfig
from config.environment_kinds import load_entry
from stages.environment.trial import Remark
from stages.error_text import describe_error


def main() -> None:
    """Try the environments; ends the process at once, with whatever threads they have left."""
    asked = msgpack.unpackb(sys.stdin.buffer.read(), raw=False)
    sys.path[:] = asked["path"]
    folder = Path(asked["folder"])
    stacks = (folder / "stacks").open("w", encoding="utf-8")
    faulthandler.enable(stacks, all_threads=False)  # for a segmentation fault
    # Then it ends itself, also where nobody is left to end it.
    faulthandler.dump_traceback_later(asked["timeout_s"], exit=True, file=stacks)
    config = RunConfig.from_plain(asked["config"], Path(asked["config_path"]) if asked["config_path"] else None)
    kind = config.environment_kind
    assert kind.trial is not None, "only kinds with a trial are tried"
    try:
        remarks = list(load_entry(kind.trial)(config))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        remarks = [Remark(f"the environment, while it was tried, raised {describe_error(error)}; expected it to go on")]
    faulthandler.cancel_dump_traceback_later()
    written = folder / "remarks.part"
    written.write_bytes(msgpack.packb([asdict(remark) for remark in remarks]))
    written.replace(folder / "remarks")
    os._exit(0)


if __name__ == "__main__":
    main()
