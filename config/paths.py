"""Parses the paths that users specify in a file or on the command line."""

from __future__ import annotations

import ntpath
import os
import re
import sys

_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def user_path(text: str, platform: str = sys.platform) -> str:
    r"""Convert a path to this system's form; the path may have a suffix, as in `runs/first@best`.

    `~` and variables (`$HOME`, and on Windows `%USERPROFILE%`) are expanded. On Windows, `C:runs`, which is relative to
    the drive's current folder, becomes absolute. On other systems, a relative Windows path (`builds\ball`) has its
    backslashes converted to slashes, unless a file with this name exists.
    """
    path = os.path.expandvars(os.path.expanduser(text))
    if platform == "win32":
        drive, rest = ntpath.splitdrive(path)
        return ntpath.abspath(path) if drive and rest and rest[0] not in "\\/" else path
    is_relative = "\\" in path and not is_of_windows(path)
    return path.replace("\\", "/") if is_relative and not os.path.exists(path) else path


def is_of_windows(path: str) -> bool:
    """Return True for an absolute Windows path."""
    return _OF_WINDOWS.match(path) is not None


def checked_path(value: object) -> object:
    """Check and return a path in a configuration.

    Raises:
        ValueError: if YAML has read part of the path as something other than text.
    """
    if not isinstance(value, str):
        return value
    if not value.isprintable() and (found := re.search(r"[\x00-\x1f]", value)):
        raise ValueError(
            f"{value!r} contains {found[0]!r}, because a backslash in double quotes starts an escape sequence; write "
            "the path in single quotes, or with /"
        )
    return user_path(value)
