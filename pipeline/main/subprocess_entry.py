"""The process in which a function is called alone: what is request on standard input, its answer into a file."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

import msgpack

from headrace.config import RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.config.tables import import_plugins
from headrace.pipeline.common.output import prepare_output
from headrace.pipeline.common.process import follow_path_of_main, import_early
from headrace.stages.errors import describe_error


def main() -> None:
    """Call the function; ends the process at once, with whatever threads that has left."""
    prepare_output()  # for what the user's code prints
    request = msgpack.unpackb(sys.stdin.buffer.read(), raw=False)
    follow_path_of_main(request["path"])
    folder = Path(request["folder"])
    stacks = (folder / "stacks").open("w", encoding="utf-8")
    faulthandler.enable(stacks, all_threads=False)  # for a segmentation fault
    import_early(request["imports"])
    # Then it ends itself, also where nobody is left to end it.
    faulthandler.dump_traceback_later(request["timeout_s"], exit=True, file=stacks)
    path = Path(request["config_path"]) if request["config_path"] else None
    try:
        import_plugins(request["plugins"])
        answer = load_entry(request["function"])(RunConfig.from_plain(request["config"], path), *request["arguments"])
    except BaseException as error:  # also a request to exit: nobody here made one
        written = {"error": describe_error(error)}
    else:
        written = {"answer": answer}
    faulthandler.cancel_dump_traceback_later()
    part = folder / "answer.part"
    part.write_bytes(msgpack.packb(written))
    part.replace(folder / "answer")
    os._exit(0)


if __name__ == "__main__":
    main()
