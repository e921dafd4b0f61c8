"""The processes that run jobs, forked from one that has imported what all of them need.

The imports are most of such a process's memory, and forked processes share it: three of them hold 80 MB where
three started programs held 143 (decision 80). The parent opens no connection and starts no thread, so nothing
of it can be broken by a fork. It starts again what ends, and ends its children when it is asked to end.

Each child leads a session of its own, and its name in /proc is that of its queue: runbroker finds it by both.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Iterable

import django_rq
from redis.exceptions import ConnectionError

from mqadmin.jobs.cron import Scheduler
from mqadmin.jobs.worker import end_with_parent
from mqadmin.process.children import (
    RESTART_SECONDS,
    SCHEDULES,
    STARTED,
    WORKER_TERM_SECONDS,
    kill_sessions,
    process_name,
)

log = logging.getLogger(__name__)

LOG_LEVEL = "INFO"
PR_SET_NAME = 15
ASKED = {signal.SIGTERM, signal.SIGINT}
AWAITED = {*ASKED, signal.SIGCHLD}


def run(names: Iterable[str]) -> None:
    """Run a process for each of `names` (queues, and SCHEDULES) until SIGTERM or SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    gc.collect()
    gc.freeze()  # a collection in a child would write to each object, and so copy its page
    running: dict[int, str] = {}
    missing = dict.fromkeys(names, 0.0)  # with the time from which on it may be started
    while True:
        now = time.monotonic()
        for name in [name for name, at in missing.items() if at <= now]:
            del missing[name]
            running[_forked(name)] = name
        _set_name(STARTED)
        wait = min(missing.values(), default=now + 3600) - now
        asked = signal.sigtimedwait(AWAITED, max(0.0, wait))
        if asked is not None and asked.si_signo in ASKED:
            break
        for pid, name, code in _ended(running):
            log.error("%s ended with %d; starting it again", process_name(name), code)
            kill_sessions([pid])
            missing[name] = time.monotonic() + RESTART_SECONDS
    _end(running)


def _forked(name: str) -> int:
    """Fork the process of a queue or of the schedules; return its pid."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.setsid()
        end_with_parent()
        if os.getppid() == parent:
            _set_name(process_name(name))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
            _work(name)
            code = 0
    except ConnectionError as error:
        log.error("Redis does not answer: %s", error)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(name: str) -> None:
    """Run the jobs of a queue, one at a time, or start scheduled runs.

    It is rq's worker without its scheduler: no job of this program waits in Redis for a time (schedules are
    in the database), and the scheduler would be one more process for each worker.
    """
    if name == SCHEDULES:
        Scheduler().start()
        return
    unique = f"{name}-{os.getpid()}-{secrets.token_hex(3)}"
    django_rq.get_worker(name, name=unique).work(logging_level=LOG_LEVEL)


def _ended(running: dict[int, str]) -> list[tuple[int, str, int]]:
    """Remove the children that ended; return (pid, name, exit code, or the negative signal) of each."""
    found = []
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            found.append((pid, running.pop(pid), os.waitstatus_to_exitcode(status)))
    return found


def _end(running: dict[int, str]) -> None:
    """Ask the children to end, and kill after WORKER_TERM_SECONDS what has not, with all that it started."""
    sessions = list(running)
    for pid in sessions:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + WORKER_TERM_SECONDS
    _ended(running)
    while running and (left := deadline - time.monotonic()) > 0:
        signal.sigtimedwait({signal.SIGCHLD}, left)
        _ended(running)
    for name in running.values():
        log.warning("%s did not end in time and is killed", process_name(name))
    kill_sessions(sessions)  # also processes of one that ended by itself
    _ended(running)


def _set_name(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
