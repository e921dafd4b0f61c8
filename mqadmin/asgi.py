"""The application that uvicorn serves: the hot routes in front, then Django for HTTP and Channels for the websocket."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from asgiref.sync import ThreadSensitiveContext
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mqadmin.settings")
django_application = get_asgi_application()

# These need the applications that the line above has loaded.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.urls import path  # noqa: E402

from broker_store.server.http import HotRoutes  # noqa: E402
from broker_store.slices import ask_for_long_slices  # noqa: E402
from mqadmin import clusters, tokens  # noqa: E402
from mqadmin.api.auth import local_caller  # noqa: E402
from mqadmin.gateway import REPEATS, ClusterGateway  # noqa: E402
from mqadmin.live import LiveConsumer  # noqa: E402

# A page of another site may open a socket to us with the user's cookie; its Origin gives it away.
websockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter([path("ws/v1/", LiveConsumer.as_asgi())])))


def _gateway() -> ClusterGateway | None:
    cluster = clusters.current()
    return ClusterGateway(cluster) if cluster.state()["state"] in ("running", "read_only") else None



class KeptThreads:
    """Gives each request a thread for what Django does in one, and keeps it, with its connection to the database, for a later one.
    Django by itself starts two threads for each request."""

    MOST_IDLE = 8

    def __init__(self, application):
        self._application = application
        self._idle: list[ThreadPoolExecutor] = []

    async def __call__(self, scope, receive, send) -> None:
        executor = self._idle.pop() if self._idle else ThreadPoolExecutor(1, thread_name_prefix="request", initializer=ask_for_long_slices)
        try:
            async with ThreadSensitiveContext(executor=executor):
                await self._application(scope, receive, send)
        finally:
            if len(self._idle) < self.MOST_IDLE:
                self._idle.append(executor)
            else:
                executor.shutdown(wait=False)


application = HotRoutes(
    ProtocolTypeRouter({"http": KeptThreads(django_application), "websocket": websockets}),
    gateway=_gateway,
    tokens=tokens.TABLE,
    local_caller=local_caller,
    repeats=REPEATS,
)
