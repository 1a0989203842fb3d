"""Files of a page: a fixed table of paths, read once, so that no path leads anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources.abc import Traversable

from aiohttp import hdrs, web

TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "proto": "text/plain",
}
"""Types by the ending of a file's name."""


def file_routes(folder: Traversable, names: Mapping[str, str]) -> list[web.RouteDef]:
    """Return the routes of a page's files.

    Args:
        folder: where the files are.
        names: by path, the file's name in that folder.
    """
    return [_route(path, folder.joinpath(name).read_bytes(), name) for path, name in names.items()]


def _route(path: str, content: bytes, name: str) -> web.RouteDef:
    kind, tag = TYPES[name.rpartition(".")[2]], sha256(content).hexdigest()[:16]

    async def answer(request: web.Request) -> web.Response:
        headers = {hdrs.ETAG: f'"{tag}"', hdrs.CACHE_CONTROL: "no-cache"}
        if any(each.value == tag for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    return web.get(path, answer)
