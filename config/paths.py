"""Paths that users specify in a file or on the command line, and file names made from the names that users choose.

A file name is valid, and the same, on every system. Characters that Windows does not allow are escaped as in URLs:
`a:b` becomes `a%3Ab`, and `a%3Ab` becomes `a%253Ab`. `name_of_file` reverses the escaping. Ordinary names, with spaces
and letters of any language, stay unchanged.
"""

from __future__ import annotations

import argparse
import ntpath
import os
import re
import sys
from urllib.parse import quote, unquote

_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)


class PathError(argparse.ArgumentTypeError, ValueError):
    """A path names something that is not known."""


def user_path(text: str, platform: str = sys.platform) -> str:
    r"""Convert a path to this system's form; the path may have a suffix, as in `runs/first@best`.

    `~` and variables (`$HOME`, and on Windows `%USERPROFILE%`) are expanded. On Windows, `C:runs`, which is relative to
    the drive's current folder, becomes absolute. On other systems, a relative Windows path (`builds\ball`) has its
    backslashes converted to slashes, unless a file with this name exists.

    Raises:
        PathError: if a variable is not set, or `~` has no folder, and no file or folder has this name.
    """
    path = os.path.expandvars(os.path.expanduser(text))
    for variable in _VARIABLE.finditer(text):
        if variable[1].strip("{}") not in os.environ and not _exists_with(text, variable.end()):
            raise PathError(f"'{text}': the variable {variable[0]} is not set; set it, or write the path without it")
    if path.startswith("~") and not _exists_with(text, 0):
        home = text.partition("/")[0]
        raise PathError(f"'{text}': {home} is not a known home folder (is HOME set?); write the path without {home}")
    if platform == "win32":
        drive, rest = ntpath.splitdrive(path)
        return ntpath.abspath(path) if drive and rest and rest[0] not in "\\/" else path
    is_relative = "\\" in path and not is_of_windows(path)
    return path.replace("\\", "/") if is_relative and not os.path.exists(path) else path


def _exists_with(text: str, at: int) -> bool:
    """Return True if a path exists up to the end of the name at an index."""
    return os.path.lexists(text[:at] + text[at:].partition("/")[0])


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
    if not value.isprintable() and (control := re.search(r"[\x00-\x1f]", value)):
        raise ValueError(
            f"{value!r} contains {control[0]!r}, because a backslash in double quotes starts an escape sequence; write "
            "the path in single quotes, or with /"
        )
    return user_path(value)


_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\ud800-\udfff]')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(?= *(\.|$))", re.IGNORECASE)
"""Device names, which Windows reserves even with a suffix."""
_AT_END = re.compile(r"[. ]$")
"""Characters that Windows drops at the end of a name."""
_LIKE_AN_ESCAPE = re.compile(r"%(?=[0-9a-f]{2})|\A%\Z", re.IGNORECASE)


def file_name(name: str) -> str:
    """Return a unique file name for a name that a user chose.

    A name that ends in `.onnx` is escaped too, because `x.onnx` is the model of behaviour `x`.
    """
    return portable(_LIKE_AN_ESCAPE.sub("%25", name))


def portable(name: str) -> str:
    """Return a form of a name that is valid on every system, with `%` only in escapes; valid names stay unchanged."""
    name = _NOT_IN_NAMES.sub(lambda match: quote(match[0], safe="", errors="surrogatepass"), name)
    if _DEVICE.match(name) or name.lower().endswith(".onnx"):
        at = 0 if _DEVICE.match(name) else len(name) - 1
        name = f"{name[:at]}%{ord(name[at]):02X}{name[at + 1 :]}"
    return _AT_END.sub(lambda match: f"%{ord(match[0]):02X}", name) or "%"


def name_of_file(file: str) -> str:
    """Return the original name of a file or folder named by `file_name`."""
    return "" if file == "%" else unquote(file, errors="surrogatepass")


def why_not_on_windows(name: str) -> str:
    """Return the reason why Windows does not allow a file with this name; empty if it allows the name."""
    if sign := _NOT_IN_NAMES.search(name):
        return f"Windows does not allow {sign[0]!r} in file names"
    if _DEVICE.match(name):
        return "Windows reserves this name for a device"
    return "Windows drops a dot or space at the end of a name" if _AT_END.search(name) else ""
