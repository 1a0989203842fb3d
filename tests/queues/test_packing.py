"""What goes from process to process as msgpack: texts that are no UTF-8 as well."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from headrace.queues.codec import pack, unpack


@pytest.mark.parametrize(
    "text", ["plain", "Bällchen 球", b"r\xe9sultats".decode(errors="surrogateescape"), "half \ud83d of a pair"]
)
def test_every_text_comes_back(text):
    assert unpack(pack({text: [text, Path(text).name]})) == {text: [text, text]}


def test_utf_8_is_packed_as_plain_msgpack():
    plain = {"a": ["é", 1, 2.5, None, True], "b": b"\xff"}
    assert pack(plain) == msgpack.packb(plain)


def test_invalid_utf_8_is_refused():
    with pytest.raises(ValueError, match="utf-8"):
        unpack(b"\xa1\xff")
