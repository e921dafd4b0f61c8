"""The wheel has all that an installed copy needs, and such a copy runs outside of the checkout."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from broker_store import __version__, kernels
from tests.support.ports import free_port, server_ports
from tests.test_requirements import pins

ROOT = Path(__file__).resolve().parent.parent
PACKAGES, FOLDERS = ("broker_store", "mqadmin"), ("templates", "static")
FILES = (
    "pyproject.toml",
    "setup.py",
    "manage.py",
    "LICENSE",
    "requirements-core.txt",
    "requirements-otlp.txt",
    "requirements.txt",
)
NOT_SHIPPED = {"access.txt"}  # tests alone read these
PATIENCE_SECONDS = 60.0


def sources_of(folder: str) -> set[str]:
    """Return the files of a folder of the checkout, without what runs leave there."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a copy of the checkout: a build writes beside its sources."""
    top = tmp_path_factory.mktemp("wheel")
    source = top / "source"
    (source / "docs").mkdir(parents=True)
    for name in (*FILES, "docs/GLOSSARY.md"):
        shutil.copyfile(ROOT / name, source / name)
    for name in (*PACKAGES, *FOLDERS):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-index", "--no-deps"]
    built = subprocess.run(
        [*command, "--no-build-isolation", "-w", str(top), str(source)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    shutil.rmtree(source)
    (found,) = top.glob("*.whl")
    return found


@pytest.mark.slow
def test_it_has_each_file_of_the_program_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    of_packages = {name for top in PACKAGES for name in sources_of(top) if Path(name).name not in NOT_SHIPPED}
    beside = {name for top in FOLDERS for name in sources_of(top)}
    beside |= {"manage.py", "docs/GLOSSARY.md", "requirements-core.txt", "requirements.txt"}
    assert names == of_packages | {f"mqadmin/files/{name}" for name in beside}


@pytest.mark.slow
def test_it_states_its_version_its_script_and_exact_packages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (place,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = message_from_string(archive.read(f"{place}/METADATA").decode())
        scripts = archive.read(f"{place}/entry_points.txt").decode()
    assert (metadata["Name"], metadata["Version"]) == ("headpond", __version__)
    assert "headpond = mqadmin.command_line:headpond" in scripts.splitlines()
    required = metadata.get_all("Requires-Dist")
    assert all("extra ==" in line for line in required)  # the client alone needs nothing
    for extra, name in (
        ("server", "requirements-core.txt"),
        ("otlp", "requirements-otlp.txt"),
        ("pipeline", "requirements.txt"),
    ):
        stated = {
            re.split("[=;]", line)[0]: re.split("[=;]+", line)[1].strip()
            for line in required
            if f'extra == "{extra}"' in line
        }
        assert {re.sub(r"[-_.]+", "-", one).lower(): version for one, version in stated.items()} == pins(ROOT / name)  # fmt: skip


@pytest.fixture(scope="module")
def script(wheel, tmp_path_factory) -> Path:
    """`headpond` of an environment of its own, outside of the checkout."""
    place = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # What it needs is that of this environment, after its own
    beside = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "beside.pth").write_text("\n".join(beside) + "\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(place / "bin" / "python"),
    ]
    installed = subprocess.run(
        [*command, "install", "-q", "--no-index", "--no-deps", "--no-compile", str(wheel)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert installed.returncode == 0, installed.stderr[-2000:]
    _copy_kernels(place, packages)
    return place / "bin" / "headpond"


def _copy_kernels(place: Path, packages: Path) -> None:
    """Give the installed copy the kernels that are compiled here, since to compile them takes minutes.

    Numba names their directory by where the source lies, and compares the content.
    """
    of_copy = place / "var" / "broker_store" / kernels.CACHE_DIRECTORY.name
    directory = packages.resolve() / "broker_store" / "kernels"
    hashed = hashlib.sha1(str(directory).encode()).hexdigest()
    here = hashlib.sha1(str(Path(kernels.__file__).parent).encode()).hexdigest()
    shutil.copytree(kernels.CACHE_DIRECTORY / f"kernels_{here}", of_copy / f"kernels_{hashed}")
    (of_copy / "compiled").touch()


def run(script: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script, *arguments], cwd=home, env=environment_of(home), capture_output=True, text=True, timeout=60
    )


def environment_of(home: Path) -> dict[str, str]:
    without = ("BROKER_DATA_DIR", "DJANGO_SETTINGS_MODULE", "PYTHONPATH", "REDIS_URL", "BROKER_KERNEL_CACHE")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return kept | {"HOME": str(home), "XDG_DATA_HOME": str(home / "share"), "PYTHONDONTWRITEBYTECODE": "1"}


def answer_of(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    with connection.getresponse() as answer:
        found = answer.status, answer.read()
    connection.close()
    return found


@pytest.mark.slow
@pytest.mark.takes(20)
def test_an_installed_copy_starts_sends_reads_and_shows_pages(script, tmp_path):
    (nameserver, broker), web = server_ports(), free_port()
    command = [script, "runbroker", "--broker-port", str(broker), "--nameserver-port", str(nameserver)]
    command += ["--web-port", str(web), "--grpc-port", "0", "--set", "mappedFileSizeCommitLog=1048576"]
    said = tmp_path / "output"
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment_of(tmp_path), stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "\nREADY " not in said.read_text():
            assert time.monotonic() < deadline and process.poll() is None, said.read_text()[-3000:]
            time.sleep(0.02)
        # The data directory is that of the user, and the commands that are proposed are those of the script
        assert (tmp_path / "share" / "headpond" / "store" / "commitlog").is_dir()
        assert "  headpond message send Hello" in said.read_text()
        sent = run(script, tmp_path, "message", "send", "Hello", "first message", "--create")
        assert sent.returncode == 0, sent.stderr
        read = run(script, tmp_path, "message", "tail", "Hello", "--from-start", "--count", "1")
        assert "first message" in read.stdout, read.stderr
        status, page = answer_of(web, "/login/")
        assert status == 200
        css = re.search(rb'href="(/static/css/[^"]+)"', page)[1].decode()
        assert answer_of(web, css) == (200, (ROOT / "static" / "css" / "dashboard.css").read_bytes())
        assert answer_of(web, "/api/v1/openapi.json")[0] == 200
        missing = run(script, tmp_path, "topic", "show", "Nope")
        assert missing.returncode == 1
        assert "headpond topic create" in missing.stderr and "manage.py" not in missing.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(20) == 0, said.read_text()[-3000:]
        finally:
            process.kill()
    stopped = run(script, tmp_path, "topic", "list")
    assert stopped.returncode == 1 and "start one with: headpond runbroker" in stopped.stderr


@pytest.mark.slow
@pytest.mark.takes(15)
def test_all_users_may_read_what_prepare_makes_and_a_copy_runs_without_reading_it(script, tmp_path):
    """The administrator installs and prepares; a service runs as another user."""
    prepared = run(script, tmp_path, "prepare")
    assert prepared.returncode == 0, prepared.stderr
    made = script.parent.parent / "var" / "headpond"
    (manifest,) = made.glob("static-*/staticfiles.json")
    for path in (made, *made.rglob("*")):
        readable = 0o055 if path.is_dir() else 0o044
        assert path.stat().st_mode & readable == readable, path
    assert not list(tmp_path.rglob("secret_key"))
    manifest.parent.chmod(0)
    try:
        said = run(script, tmp_path, "config", "check")
        assert said.returncode == 0, said.stderr
        assert "(headpond store dry-run)" in said.stdout and "manage.py" not in said.stdout
    finally:
        manifest.parent.chmod(0o755)
