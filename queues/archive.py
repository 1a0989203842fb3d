"""Zip archives, which may come from strangers: what an archive declares is checked before anything in it is read.

Headrace and torch store the entries uncompressed, so an archive never contains more bytes than its file. This limit
also covers entries that overlap.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.queues.files import File

MAX_LISTING_BYTES = 1 << 20
"""Maximum size of an archive's list of entries in bytes. As Python objects, the list takes up to 13 times as much."""
_OF_FILES = (OSError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError)
UNREADABLE = (*_OF_FILES, ValueError, OverflowError, LookupError, TypeError, AttributeError)
"""Errors raised for damaged archives or content, and `ArchiveError`."""


class ArchiveError(ValueError):
    """An archive declares more than Headrace reads; the message begins with `its`."""


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading.

    Raises:
        ArchiveError: if the archive declares more bytes than its file has, a compressed entry, or a long list.
        OSError: if the file can't be read.
        zipfile.BadZipFile: if the file is damaged or is not an archive.
    """
    with io.BufferedReader(File(path)) as file:
        try:
            size = file.seek(0, os.SEEK_END)
            end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # `ZipFile` reads the list at once
            if end and end[zipfile._ECD_SIZE] > MAX_LISTING_BYTES:  # type: ignore[attr-defined]
                raise ArchiveError(f"its list of entries has more than {MAX_LISTING_BYTES:,} bytes")
            with zipfile.ZipFile(file) as archive:
                declared = sum(entry.file_size for entry in archive.infolist())
                if declared > size:
                    raise ArchiveError(f"its content declares {declared:,} bytes, but the file has {size:,}")
                if start := min((entry.header_offset for entry in archive.infolist()), default=0):
                    raise ArchiveError(f"its first {start:,} bytes belong to no entry, so a part of it is missing")
                for entry in archive.infolist():
                    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                        raise ArchiveError(f"its entry {entry.filename[:100]} is compressed or encrypted")
                yield archive
        except OSError as error:
            if error.errno == errno.EINVAL:  # a damaged offset
                raise zipfile.BadZipFile(f"its offsets are damaged: {error}") from error
            raise
