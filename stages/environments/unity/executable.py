"""A Unity executable: its command line and its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.stages.environments.programs.process import Launch, find_executable

ENGINE = "Unity"
_LOG_FLAG = "-logfile"


@dataclass(frozen=True, slots=True)
class Executable(Launch):
    """A Unity executable; without a `log_file`, Unity writes its log to the default location."""

    no_graphics: bool = False
    """True to run without rendering, and so without camera observations."""

    def command(self, port: int, seed: int) -> list[str]:
        """Return the program, ML-Agents' standard arguments, then the user's. Raises the same errors as `Launch`.

        The seed is not an argument, because it is sent in the handshake.
        """
        command = [str(find_executable(Path(self.path), ENGINE))]
        if self.no_graphics:
            command += ["-nographics", "-batchmode"]
        command += ["--mlagents-port", str(port)]
        if self.log_file is not None and not any(argument.lower() == _LOG_FLAG for argument in self.arguments):
            command += ["-logFile", str(self.log_file.absolute())]
        return [*command, *self.arguments]

    @property
    def log(self) -> Path | None:
        """The log file named on the command line; None if there is none, or if it is standard output."""
        after = iter(self.arguments)
        for argument in after:
            if argument.lower() == _LOG_FLAG:
                value = next(after, "-")
                return None if value == "-" else Path(value)
        return None if self.log_file is None else self.log_file.absolute()
