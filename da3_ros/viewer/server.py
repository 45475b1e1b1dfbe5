"""The viewer's process: a web server on this machine, fed with messages on standard input.

Started by ``process.ViewerProcess``. Writes a line of JSON to standard output for each event:
``listening`` with the port, ``failed`` with a reason, ``clients`` with the number of open pages,
``command`` with what a user of the page wants, ``error`` with what could not be shown. Ends with
its input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, BinaryIO

from da3_ros.viewer.guard import LOCAL, guarded
from da3_ros.viewer.wire import read_message

TRIES = 100  # ports that are tried, from the wanted one on
CHECK_S = 10.0  # longest wait for an answer of our own


class PortError(RuntimeError):
    """No port can be used; the text is one line."""


def main() -> int:
    """Serves until the input ends."""
    parser = argparse.ArgumentParser(description="The viewer's process; started by da3_ros.")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exact", action="store_true", help="fail if the port is in use")
    options = parser.parse_args()
    events, source = _own_output(), sys.stdin.buffer
    try:
        server = open_server(options.host, options.port, exact=options.exact)
        check_protected(options.host, server.get_port())
    except (PortError, OSError) as error:
        events("failed", {"text": str(error)})
        return 1
    events("listening", {"port": server.get_port()})
    report_clients(server, lambda count: events("clients", {"count": count}))
    serve(server, source, events)
    server.stop()
    return 0


def report_clients(server: Any, report: Callable[[int], None]) -> None:
    """Calls ``report`` with the number of open pages whenever it changes."""
    server.on_client_connect(lambda _: report(len(server.get_clients())))
    server.on_client_disconnect(lambda _: report(len(server.get_clients())))


def serve(server: Any, source: BinaryIO, events: Callable[[str, dict[str, Any]], None]) -> None:
    """Shows the messages from ``source`` until it ends. The first one begins the page."""
    from da3_ros.viewer.page import Page

    def command(name: str, values: dict[str, Any]) -> None:
        events("command", {"name": name, "values": values})

    begin = read_message(source)
    if begin is None:
        return
    page = Page(server, begin, command)
    while (message := read_message(source)) is not None:
        try:
            page.take(message)
        except Exception as error:  # one message, or what one page has sent: the others go on
            text = f"{message.kind} is not shown: {type(error).__name__}: {error}"
            events("error", {"text": text})


def open_server(host: str, port: int, *, exact: bool) -> Any:
    """Returns viser's server, listening. Raises PortError.

    exact: whether no other port is taken if this one is in use.
    """
    import websockets.asyncio.server as web

    free = _free_port(host, port, 1 if exact else TRIES)
    # viser has no option for it; ``check_protected`` finds out whether it is in force.
    checked = guarded(web.serve, local=host in LOCAL)
    setattr(web, "serve", checked)  # noqa: B010 - a class for mypy
    server = _quiet_server()(host=host, port=free, verbose=False)
    if exact and server.get_port() != port:  # another program was faster
        server.stop()
        raise PortError(_in_use(port))
    return server


def check_protected(host: str, port: int) -> None:
    """Raises PortError if a server on this machine answers to another site's page."""
    import http.client

    where = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(where, port, timeout=CHECK_S)
    try:
        connection.request("GET", "/", headers={"Origin": "http://another.invalid"})
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != HTTPStatus.FORBIDDEN:
        raise PortError("this version of viser answers to pages of other sites: install viser 1.1")


def _quiet_server() -> Any:
    """Returns viser's server without its tunnel to a host on the internet."""
    import viser

    class LocalServer(viser.ViserServer):
        def request_share_url(self, verbose: bool = True) -> str | None:
            return None

    return LocalServer


def _free_port(host: str, port: int, tries: int) -> int:
    """Returns the first port from ``port`` on that can be bound. Raises PortError."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + tries, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, candidate))
            except PermissionError as error:
                raise PortError(
                    f"port {candidate} needs more rights: choose one above 1023"
                ) from error
            except OSError as error:
                if tries == 1 or _is_bad_host(error):
                    text = (
                        _in_use(port) if not _is_bad_host(error) else f"{host}: {error.strerror}"
                    )
                    raise PortError(text) from error
                continue
            return candidate
    raise PortError(f"ports {port} to {min(port + tries, 65536) - 1} are in use by other programs")


def _is_bad_host(error: OSError) -> bool:
    import errno

    return error.errno != errno.EADDRINUSE


def _in_use(port: int) -> str:
    return f"port {port} is in use by another program"


def _own_output() -> Callable[[str, dict[str, Any]], None]:
    """Returns what writes events to standard output; what viser prints goes nowhere."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    lock = threading.Lock()

    def write(event: str, values: dict[str, Any]) -> None:
        with lock:
            output.write(json.dumps({"event": event, **values}) + "\n")
            output.flush()

    return write


if __name__ == "__main__":
    sys.exit(main())
