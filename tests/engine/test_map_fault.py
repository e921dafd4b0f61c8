"""A mapped file of the store that becomes unusable stops the process with one sentence and exit code 70; the
live page never does."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker_store.engine.disk.disk import Disk
from broker_store.engine.disk.map_table import MAPS
from broker_store.errors import DamagedStoreError
from broker_store.kernels import map_fault
from broker_store.messages import GetRequest, GetStatus
from tests.support.hand_store import HandStore
from tests.support.write_until_stopped import MESSAGES, MORE_MESSAGES, settings

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
EXIT_CODE = 70
SENTENCE = re.compile(
    r"store failed: (\S+), byte (\d+): this mapped page can no longer be read or written\. .* The process stops with exit code 70\.\n"
)
QUEUE, LOG = "consumequeue/topic/0/" + "0" * 20, "commitlog/" + "0" * 20


class Child:
    """A writer that waits for a signal between its steps."""

    def __init__(self, root: Path, what: str):
        command = [sys.executable, "-m", "tests.support.write_until_stopped", str(root), what]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        self.said = []
        for line in self._process.stdout:
            if line == "ready\n":
                break
            self.said.append(line.split())

    def go_on(self) -> tuple[int, str]:
        """(exit code, stderr) when it has ended."""
        out, error = self._process.communicate("go on\n", timeout=60)
        self.said += [line.split() for line in out.splitlines()]
        return self._process.returncode, error

    def stored(self) -> list[tuple[int, int]]:
        """(log offset, log end) of each message that was acknowledged."""
        return [(int(line[2]), int(line[3])) for line in self.said if line[0] == "stored"]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def stopped(child: Child, path: Path) -> int:
    """The byte that the sentence names; the child has ended as it must."""
    code, error = child.go_on()
    assert code == EXIT_CODE, error
    found = SENTENCE.fullmatch(error)
    assert found, error
    assert found[1] == str(path)
    return int(found[2])


@pytest.mark.parametrize("length", [0, 8192, 20_000])
def test_a_log_file_cut_under_a_writer_stops_it_with_a_sentence(root, length):
    child = Child(root, "put")
    os.truncate(root / LOG, length)
    first_lost = -(-length // 4096) * 4096
    assert stopped(child, root / LOG) >= first_lost
    try:
        with HandStore(settings(root)).begin() as store:
            readable = {at for at, end in child.stored() if end <= length}
            for number, (at, end) in enumerate(child.stored()[:MESSAGES]):
                read = store.reads.get(GetRequest("topic", 0, number, 1))
                assert (read.status is GetStatus.FOUND) == (at in readable), (number, at, end)
    except DamagedStoreError as error:
        assert LOG in error.file or "commitlog" in error.file  # refused, by the file's name


@pytest.mark.parametrize("name", [QUEUE, "index"])
def test_a_queue_or_index_file_cut_under_a_writer_stops_it_and_no_message_is_lost(root, name):
    child = Child(root, "put")
    path = root / name if name == QUEUE else next((root / "index").iterdir())
    size = path.stat().st_size
    os.truncate(path, 0)
    stopped(child, path)
    os.truncate(path, size)  # zeros now, as an operator may make it: the start would refuse the length
    store = HandStore(settings(root)).begin()
    try:
        for number in range(MESSAGES):
            assert store.reads.get(GetRequest("topic", 0, number, 1)).status is GetStatus.FOUND, number
    finally:
        store.close()


def test_a_reader_through_a_map_that_was_cut_stops_too(root):
    child = Child(root, "read")
    os.truncate(root / LOG, 0)
    stopped(child, root / LOG)


def test_blocks_are_not_given_to_a_file_that_was_cut(root, tmp_path):
    """They would make it long again, with zeros in the place of what was written."""
    code = (
        "import os, sys; from pathlib import Path; from broker_store.engine.disk.disk import Disk; path = "
        "Path(sys.argv[1]);"
        "region = Disk().create_region(path, 1 << 20); os.truncate(path, 4096); region.allocate(0, 8192)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "file"], capture_output=True, text=True, cwd=PROJECT
    )
    assert (ended.returncode, SENTENCE.fullmatch(ended.stderr)[2]) == (EXIT_CODE, str((1 << 20) - 1))
    assert (tmp_path / "file").stat().st_size == 4096


def test_a_full_tmpfs_under_a_hole_stops_the_process(tmp_path):
    """In a mount namespace of its own: a file of full length without blocks."""
    code = (
        "import sys; from pathlib import Path; from broker_store.engine.disk.disk import Disk;"
        "region = Disk().create_region(Path(sys.argv[1]) / 'file', 4 << 20); region.write(0, bytes(4 << 20))"
    )
    (tmp_path / "small").mkdir()
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" || exit 99; exec "$2" -c "$3" "$1"'
    if shutil.which("unshare") is None:
        pytest.skip("unshare (util-linux) is not here")
    command = [
        "unshare",
        "--user",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        script,
        "sh",
        tmp_path / "small",
        sys.executable,
        code,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT)
    if ended.returncode == 99 or "unshare" in ended.stderr:
        pytest.skip(f"a tmpfs cannot be mounted here: {ended.stderr.strip()}")
    assert ended.returncode == EXIT_CODE, ended.stderr
    assert SENTENCE.fullmatch(ended.stderr)[2] in {str(at) for at in range(0, (1 << 20) + 1, 4096)}


def test_a_live_page_that_was_cut_is_written_again_and_stops_nothing(root):
    child = Child(root, "put")
    live = root.parent / "run" / "live"
    os.truncate(live, 0)
    code, error = child.go_on()
    assert (code, error) == (0, "")
    assert child.said[-2:] == [["flags"], ["closed"]] and len(child.stored()) == MESSAGES + MORE_MESSAGES


def test_a_live_page_that_cannot_be_written_is_a_flag_and_no_more(root, tmp_path, monkeypatch):
    (tmp_path / "run").write_bytes(b"a file where the directory should be")
    store = HandStore(settings(root), live_page_path=tmp_path / "run" / "live").begin()
    try:
        store.tick()
        (flag,) = store.status.snapshot().flags
        assert flag.name == "live_page_failed" and "jobs and commands" in flag.cause
        assert store.is_writable
        (tmp_path / "run").unlink()
        store.tick()
        assert store.status.snapshot().flags == []
    finally:
        store.close()


def run_with_fault(tmp_path: Path, fault: str, *options: str) -> subprocess.CompletedProcess:
    code = (
        "import mmap, os, signal, sys; from pathlib import Path; from broker_store.engine.disk.disk import Disk;"
        "path = Path(sys.argv[1]) / 'file'; path.unlink(missing_ok=True); region = "
        "Disk().create_region(path, 4096);"
        "foreign = open(Path(sys.argv[1]) / 'foreign', 'w+b'); foreign.truncate(4096);"
        f"other = mmap.mmap(foreign.fileno(), 4096); foreign.truncate(0); {fault}"
    )
    return subprocess.run(
        [sys.executable, *options, "-c", code, tmp_path], capture_output=True, text=True, cwd=PROJECT
    )


@pytest.mark.parametrize("fault", ["other[0]", "os.kill(os.getpid(), signal.SIGBUS)"])
def test_a_fault_that_is_not_the_stores_ends_the_process_as_before(tmp_path, fault):
    plain = run_with_fault(tmp_path, fault)
    assert (plain.returncode, plain.stderr) == (-signal.SIGBUS, "")
    beside = run_with_fault(tmp_path, fault, "-X", "faulthandler")
    assert beside.returncode == -signal.SIGBUS and "Fatal Python error: Bus error" in beside.stderr


def test_the_table_holds_the_maps_there_are_and_uses_rows_again(tmp_path):
    disk, before = Disk(), len(MAPS)
    words = map_fault.TABLE.view("int64")
    used = int(words[0])
    for round_number in range(3):
        regions = [disk.create_region(tmp_path / f"{round_number}-{number}", 4096) for number in range(5)]
        assert len(MAPS) == before + 5
        for region in regions:
            region.close()
        assert len(MAPS) == before
    assert int(words[0]) <= max(used, before + 5)


def test_the_sentence_has_room_for_the_longest_path(tmp_path):
    deep = tmp_path
    while len(str(deep)) < 600:
        deep /= "d" * 100
    deep.mkdir(parents=True)
    code = (
        "import os, sys; from pathlib import Path; from broker_store.engine.disk.disk import Disk; path = "
        "Path(sys.argv[1]) / 'file';"
        "region = Disk().create_region(path, 1 << 40); os.truncate(path, 0); region.read((1 << 40) - 1, 1)"
    )
    ended = subprocess.run([sys.executable, "-c", code, deep], capture_output=True, text=True, cwd=PROJECT)
    found = SENTENCE.fullmatch(ended.stderr)
    assert ended.returncode == EXIT_CODE and found and (found[2]) == str((1 << 40) - 1)
    assert str(deep / "file").endswith(found[1]) and len(found[1]) > 200
