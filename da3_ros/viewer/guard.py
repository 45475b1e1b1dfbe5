"""What may come in from a browser: only from the viewer's own page, and only what that sends.

viser trusts all that reaches it: any page on the internet may open a web socket to this machine,
and messages may change whatever a control has, or upload files into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

LOCAL = ("localhost", "127.0.0.1", "::1")
MAX_BYTES = 1 << 16  # of a message from a page


def guarded(serve: Callable[..., Any], *, local: bool) -> Callable[..., Any]:
    """Returns ``websockets.serve`` that refuses foreign pages, and messages that no page sends.

    local: whether the server is for this machine only.
    """
    from websockets.asyncio.server import ServerConnection

    class GuardedConnection(ServerConnection):
        async def recv(self, decode: bool | None = None) -> Any:
            while not is_of_page(data := await super().recv(decode)):
                pass
            return data

    def guarded_serve(*arguments: Any, process_request: Any = None, **options: Any) -> Any:
        def check(connection: Any, request: Any) -> Any:
            if not is_own_page(request.headers, local=local):
                return connection.respond(HTTPStatus.FORBIDDEN, "another site's page\n")
            return None if process_request is None else process_request(connection, request)

        options |= {"create_connection": GuardedConnection, "max_size": MAX_BYTES}
        return serve(*arguments, process_request=check, **options)

    return guarded_serve


def is_own_page(headers: Mapping[str, str], *, local: bool) -> bool:
    """Returns whether a request comes from this server's own page, or from no page at all.

    Only the browser's header ``Origin`` tells. A server for this machine only (local) must be
    called by a name of this machine too, so that no foreign name that points here counts (DNS
    rebinding).
    """
    host, origin = headers.get("Host", ""), headers.get("Origin")
    try:
        if local and urlsplit(f"//{host}").hostname not in LOCAL:
            return False
        return origin is None or urlsplit(origin).netloc == host
    except ValueError:  # no address
        return False


def is_of_page(data: Any) -> bool:
    """Returns whether a message is one that the page sends: where a viewer looks from, in finite
    numbers, or the new value of a control."""
    import msgspec

    if not isinstance(data, bytes):
        return False
    try:
        message = msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        return False
    kind = message.get("type") if isinstance(message, dict) else None
    if kind == "ViewerCameraMessage":
        return all(map(_is_finite, message.values()))
    if kind == "GuiUpdateMessage":
        updates = message.get("updates")
        return (
            isinstance(updates, dict)
            and set(updates) == {"value"}
            and _is_finite(updates["value"])
        )
    return False


def _is_finite(value: Any) -> bool:
    """Whether a number, or each of a list, is finite; other values are none."""
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
