"""The application that uvicorn serves: allowed names only, then the hot routes, then Django for HTTP and
Channels for the websocket."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
from asgiref.sync import ThreadSensitiveContext
from django.apps import apps

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mqadmin.settings")
if not apps.ready:
    django.setup(set_prefix=False)

# These need the applications that the line above has loaded.
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.template.loader import get_template
from django.urls import reverse

from broker_store.rest.http import HotRoutes
from broker_store.rest.problems import Problem
from broker_store.scheduler import ask_for_long_slices
from mqadmin.cluster.current import current_cluster
from mqadmin.web import tokens
from mqadmin.web.gateway import REPEATS, ClusterGateway
from mqadmin.web.live import LiveConsumer
from mqadmin.web.local_socket import local_caller
from mqadmin.web.refusals import count_refusal
from mqadmin.web.refused_requests import AllowedHosts, Websockets, refuse
from mqadmin.web.trusted_proxies import LOOPBACK, connection_site

log = logging.getLogger(__name__)

# A page of another site may open a socket to us with the user's cookie; its Origin shows which site.
websockets = Websockets(AllowedHostsOriginValidator(AuthMiddlewareStack(LiveConsumer.as_asgi())), "/ws/v1/")


def _gateway() -> ClusterGateway | None:
    cluster = current_cluster()
    return ClusterGateway(cluster) if cluster.state().state in ("running", "read_only") else None


class KeptThreads:
    """Gives each request a thread for what Django does in one, and keeps it, with its connection to the
    database, for a later one. Django by itself starts two threads for each request.

    Requests without an answer are bounded, since each may have a thread. Those of the local socket do not
    count, nor does one whose answer is read slowly."""

    MAX_IDLE_THREADS = 8
    MAX_REQUESTS = 128  # that have no answer yet
    MAX_REQUESTS_OF_ADDRESS = MAX_REQUESTS // 2  # loopback and proxies may have all

    def __init__(self, application):
        self._application = application
        self._idle: list[ThreadPoolExecutor] = []
        self._under_way = 0
        self._of_site: Counter[str] = Counter()
        self._unbounded = (*LOOPBACK, *settings.TRUSTED_PROXIES)

    async def __call__(self, scope, receive, send) -> None:
        if self._under_way >= self.MAX_REQUESTS and local_caller(scope) is None:
            problem = Problem("busy", f"{self.MAX_REQUESTS} requests are under way")
            client = scope.get("client") or ("", 0)
            count_refusal(
                "HTTP requests under way",
                value=self._under_way + 1,
                limit=self.MAX_REQUESTS,
                who=f"{client[0]}:{client[1]}",
                said=problem.detail,
            )
            return await refuse(problem, scope, receive, send)
        client = scope.get("client")
        site = connection_site(client[0], self._unbounded) if client else None
        most = self.MAX_REQUESTS_OF_ADDRESS
        if site is not None and self._of_site[site] >= most:
            problem = Problem("busy", f"{most} requests of {site} are under way")
            count_refusal(
                "HTTP requests of one address",
                value=most + 1,
                limit=most,
                who=f"{client[0]}:{client[1]}",
                said=problem.detail,
            )
            return await refuse(problem, scope, receive, send)
        executor = (
            self._idle.pop()
            if self._idle
            else ThreadPoolExecutor(1, thread_name_prefix="request", initializer=ask_for_long_slices)
        )
        is_under_way = True
        self._under_way += 1
        if site is not None:
            self._of_site[site] += 1

        def answered() -> None:
            nonlocal is_under_way
            self._under_way -= is_under_way
            if is_under_way and site is not None:
                self._of_site[site] -= 1
                if not self._of_site[site]:
                    del self._of_site[site]
            is_under_way = False

        async def send_on(event) -> None:
            answered()
            await send(event)

        try:
            async with ThreadSensitiveContext(executor=executor):
                await self._application(scope, receive, send_on)
        finally:
            answered()
            if len(self._idle) < self.MAX_IDLE_THREADS:
                self._idle.append(executor)
            else:
                executor.shutdown(wait=False)


def load_pages() -> ASGIHandler:
    """Return Django's application, with what it otherwise loads at the first request that needs it: pages,
    REST, their addresses, and all templates. Its middleware reads the list of static files.
    """
    # A link to a name needs a table of all names: one for those without a prefix, one for each prefix.
    for name in ("overview", "admin:index", "api:openapi-view"):
        reverse(name)
    for directory in settings.TEMPLATES[0]["DIRS"]:
        for path in directory.rglob("*.html"):
            get_template(str(path.relative_to(directory)))
    return ASGIHandler()


class FirstLoad:
    """Calls `load`, which makes the application, in a thread when the first request comes; that request and
    those that come meanwhile wait for it.

    On the loop it takes more than 0.1 s, in which no send is answered. At the start it would take time and
    memory that a broker without viewers does not need. A load that fails is logged and fails these requests;
    the next request loads again, since the cause (memory, open files) may be gone.
    """

    def __init__(self, load: Callable[[], Any]):
        self._load = load
        self._loading: asyncio.Task | None = None

    async def __call__(self, scope, receive, send) -> None:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._loaded(), name="load pages")
        application = await asyncio.shield(self._loading)
        await application(scope, receive, send)

    async def _loaded(self) -> Any:
        try:
            return await asyncio.to_thread(self._load)
        except Exception:
            self._loading = None
            log.exception("the pages cannot be loaded; the next request loads them again")
            raise


application = AllowedHosts(
    HotRoutes(
        ProtocolTypeRouter({"http": KeptThreads(FirstLoad(load_pages)), "websocket": websockets}),
        gateway=_gateway,
        tokens=tokens.TABLE,
        local_caller=local_caller,
        repeats=REPEATS,
    )
)
