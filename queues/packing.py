"""Packs plain data as msgpack for internal use. Non-UTF-8 paths and lone surrogates are preserved."""

from __future__ import annotations

from functools import partial

import msgpack

pack = partial(msgpack.packb, use_bin_type=True, unicode_errors="surrogatepass")
unpack = partial(msgpack.unpackb, raw=False, strict_map_key=False, unicode_errors="surrogatepass")
