"""Exits with 0 while the broker of the data directory is alive (GET /api/v1/health), else with 1 and a
sentence. With a port as argument: while a connection to it on this machine succeeds, for a name server alone.

It asks by the socket in the data directory, which needs no certificate and no host name.
"""

import http.client
import os
import socket
import sys

SECONDS = 4.0


class LocalConnection(http.client.HTTPConnection):
    """HTTP over the broker's Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(os.path.join(os.environ.get("BROKER_DATA_DIR", "data"), "run", "web.sock"))


def main() -> str | None:
    """Return what is wrong, None if nothing is."""
    try:
        if sys.argv[1:]:
            socket.create_connection(("127.0.0.1", int(sys.argv[1])), SECONDS).close()
            return None
        connection = LocalConnection("localhost")
        connection.request("GET", "/api/v1/health")
        status = connection.getresponse().status
        return None if status == 200 else f"the broker answers {status}"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error}"


if __name__ == "__main__":
    sys.exit(main())
