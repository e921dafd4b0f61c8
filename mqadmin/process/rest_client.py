"""A small REST client for commands and jobs: the running broker's Unix socket, where the same user needs no
token.

    with RestClient.of_data_directory(path) as broker:
        broker.get("/topics", limit=100)["items"]

One connection, JSON both ways. A problem document is raised as RestError with its code and hint; a socket
without a listener as NotRunningError, which says how to start the broker.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from broker_store import processes
from broker_store.units import fact_of
from mqadmin.process import run_file

BASE = "/api/v1"
TIMEOUT_SECONDS = 40.0  # above the longest wait_ms


class RestError(Exception):
    """The broker refused; `code`, `status` and `hint` are the problem document's."""

    def __init__(self, document: dict[str, Any], status: int):
        self.code = str(document.get("code", "internal"))
        self.hint = str(document.get("hint", ""))
        self.detail = str(document.get("detail") or document.get("title") or f"HTTP status {status}")
        self.status = status
        super().__init__(self.detail)


class NotRunningError(Exception):
    """No broker listens on the socket."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            # A socket's address has at most 107 bytes, a path may have more: use the directory's descriptor.
            directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
            finally:
                os.close(directory)
        except OSError as error:
            self.sock.close()
            self.sock = None
            raise _not_running(self._path, error) from None


def _not_running(socket_path: Path, error: OSError) -> NotRunningError:
    """Return the error for a socket on which no broker answers. Where one runs, it says why."""
    run = run_file.read(socket_path.parent.parent)
    if run is not None and processes.exists(run.pid) and not socket_path.exists():
        if run.web is None:
            return NotRunningError(
                f"the broker runs (process {run.pid}) with --no-web, so without the REST "
                f"interface that commands use: start it without --no-web"
            )
        return NotRunningError(
            f"the broker runs (process {run.pid}), but its socket {socket_path} was removed: stop "
            f"the broker and start it again"
        )
    return NotRunningError(
        f"no broker answers on {socket_path} ({error.strerror}); start one with: manage.py runbroker"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A piece of a list."""

    items: list[Any]
    next: str | None  # cursor of the rest; None: there is none


class RestClient:
    """One connection to a broker's REST interface; not to be shared by threads."""

    def __init__(self, connection: http.client.HTTPConnection):
        self._connection = connection

    @classmethod
    def of_data_directory(cls, directory: Path | str, timeout: float = TIMEOUT_SECONDS) -> RestClient:
        """Return a client of the broker that runs on this data directory."""
        return cls(_UnixConnection(Path(directory).absolute() / "run" / "web.sock", timeout))

    def __enter__(self) -> RestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str, **query: Any) -> Any:
        """Return the answer: JSON as values, else text. Raises RestError and NotRunningError, as all do."""
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.request("POST", path, {} if body is None else body, query)

    def patch(self, path: str, body: Any) -> Any:
        return self.request("PATCH", path, body)

    def delete(self, path: str, **query: Any) -> Any:
        return self.request("DELETE", path, query=query)

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """Yield the items of a list, page after page."""
        while True:
            page = fact_of(_Page, self.get(path, **query))
            yield from page.items
            if page.next is None:
                return
            query["cursor"] = page.next

    def post_for_items(self, path: str, body: Any) -> list[Any]:
        """Return the items of the list that answers a POST."""
        return fact_of(_Page, self.post(path, body)).items

    def request(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """Send one request and return its answer. A connection that the broker closed while idle is opened
        again, but only when nothing is sent twice by that."""
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        target = BASE + path + ("?" + urlencode(asked) if asked else "")
        headers = {"Accept": "application/json"}
        if body is not None:
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        for attempt in (1, 2):
            try:
                self._connection.request(method, target, body, headers)
                response = self._connection.getresponse()
                return _value(response.status, response.getheader("Content-Type", ""), response.read())
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._connection.close()
                if attempt == 2 or method not in ("GET", "DELETE"):
                    raise NotRunningError("the broker closed the connection; is it stopping?") from None
        raise AssertionError("unreachable")


def _value(status: int, media_type: str, body: bytes) -> Any:
    is_json = "json" in media_type
    value = json.loads(body) if is_json and body else None
    if status >= 400:
        raise RestError(value if isinstance(value, dict) else {}, status)
    return value if is_json or not body else body.decode("utf-8", "replace")


def segment(name: str) -> str:
    """Return a name as one piece of a path."""
    return quote(name, safe="")
