"""JVMs that are kept for a test process, each of which runs one command of a Java client at a time.

A JVM's start, and the first use of each class, are nearly all of what a short command costs: 0.6 s of processor
time, 0.03 s in a JVM that is kept. A program that is killed ends its JVM, and one that fails does too.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.interop.running import RUN_LIMIT_S, STOP_LIMIT_S, Running
from tests.support import left_behind

Kind = tuple[object, ...]  # what two commands have in common that may follow one another in a JVM


class _Jvm(Running):
    def __init__(self, kind: Kind, command_in: Callable[[Path], list[str]]):
        self._kind = kind
        self._program: Program | None = None
        self._home = Path(tempfile.mkdtemp(prefix="java-"))
        super().__init__(command_in(self._home))
        left_behind.AT_END.callback(self._end)

    def begin(self, program: Program) -> None:
        self._program = program

    def _take(self, line: dict) -> None:
        if "ended" in line:
            self._program.is_over, self._program = True, None
            _waiting.setdefault(self._kind, []).append(self)
        else:
            self._program.lines.append(line)

    def _end(self) -> None:
        is_left = self._program is not None and self._process.poll() is None
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)
        assert not is_left, f"a program was left running; its last lines: {self._program.lines[-3:]}"


class Program(Running):
    """A command of a JVM that is kept, with the methods of a process."""

    def __init__(self, jvm: _Jvm, words: list[str]):
        self.lines, self.is_over = [], False
        self._jvm, self._process = jvm, jvm._process
        self._readers, self._changed = jvm._readers, jvm._changed
        jvm.begin(self)
        jvm.say("R" + "\x1f".join(words) + "\n")

    @property
    def _errors(self) -> bytes:
        return self._jvm._errors

    def _has_ended(self) -> bool:
        return self.is_over or super()._has_ended()

    def say(self, text: str) -> None:
        assert text.endswith("\n")
        self._jvm.say("".join(f"I{line}\n" for line in text.splitlines()))

    def wait(self, limit_s: float = RUN_LIMIT_S) -> list[dict]:
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not self._has_ended() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.5))
        if self.is_over:
            return self.lines
        if self._has_ended():
            super().wait(limit_s)  # raises with the JVM's errors
        self.kill()
        raise AssertionError(f"still running after {limit_s:.0f} s; last lines {self.lines[-3:]}")

    def finish(self, limit_s: float = STOP_LIMIT_S) -> list[dict]:
        """Give the end of input, upon which every program stops by itself, and return its lines."""
        if not self._has_ended():
            self._jvm.say("E\n")
        return self.wait(limit_s)

    def kill(self) -> None:
        """Kill the JVM, if the command still runs."""
        if not self.is_over:
            self._jvm.kill()


_waiting: dict[Kind, list[_Jvm]] = {}


def start(kind: Kind, command_in: Callable[[Path], list[str]], words: list[str]) -> Program:
    """Start a command in a JVM of this kind that runs none, or in a new one, which `command_in` its home gives."""
    waiting = _waiting.get(kind)
    return Program(waiting.pop() if waiting else _Jvm(kind, command_in), words)
