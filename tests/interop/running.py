"""A program of a test as a child process, which prints JSON objects, one a line."""

import json
import subprocess
import threading
import time

# A client that gets no answer gives up after seconds; these are for a machine that does ten other things.
RUN_LIMIT_S = 180
STOP_LIMIT_S = 20


class Running:
    """A started program: its lines arrive as they are printed; it is ended by closing its input."""

    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines: list[dict] = []
        self._changed = threading.Condition()
        self._errors = b""
        self._readers = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_errors),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        for line in self._process.stdout:
            if line.startswith(b"{"):
                value = json.loads(line)
                with self._changed:
                    self._take(value)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _take(self, line: dict) -> None:
        self.lines.append(line)

    def _has_ended(self) -> bool:
        """Return whether no more lines come."""
        return self._process.poll() is not None and not self._readers[0].is_alive()

    def _read_errors(self) -> None:
        self._errors = self._process.stderr.read()

    def until(self, enough, limit_s: float = RUN_LIMIT_S) -> list[dict]:
        """Waits until `enough(lines)` holds; raises with what was printed when the time is over or the
        program ended before."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not enough(self.lines):
                left = deadline - time.monotonic()
                if left <= 0 or self._has_ended():
                    raise AssertionError(
                        f"not seen within {limit_s:.0f} s; {len(self.lines)} lines, last "
                        f"{self.lines[-3:]}, errors {self._errors[-2000:]!r}"
                    )
                self._changed.wait(min(left, 0.5))
            return list(self.lines)

    def seen(self) -> list[dict]:
        with self._changed:
            return list(self.lines)

    def wait_for_change(self, limit_s: float) -> None:
        with self._changed:
            self._changed.wait(limit_s)

    def until_ready(self, limit_s: float = RUN_LIMIT_S) -> None:
        self.until(lambda lines: any("ready" in line for line in lines), limit_s)

    def say(self, text: str) -> None:
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def wait(self, limit_s: float = RUN_LIMIT_S) -> list[dict]:
        """Waits for the program's own end (its input stays open meanwhile) and gives its lines."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still running after {limit_s:.0f} s; last lines {self.lines[-3:]}"
            ) from None
        self._close()
        assert code == 0, f"ended with {code}: {self._errors[-2000:]!r}"
        return self.lines

    def finish(self, limit_s: float = STOP_LIMIT_S) -> list[dict]:
        """Closes the input, upon which every program stops by itself, and gives its lines."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        return self.wait(limit_s)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe and not pipe.closed:
                pipe.close()


def until_together(programs: list[Running], enough, limit_s: float = RUN_LIMIT_S) -> list[dict]:
    """Waits until `enough(lines of all programs)` holds."""
    deadline = time.monotonic() + limit_s
    while True:
        lines = [line for program in programs for line in program.seen()]
        if enough(lines):
            return lines
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not seen within {limit_s:.0f} s; {[len(program.lines) for program in programs]} lines"
            )
        programs[0].wait_for_change(0.2)
