"""The rooms of the project import one way: a room can be changed without regard to those above it."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import drop_trees, nodes_of  # noqa: F401  (drop_trees is a fixture)

PROJECT = Path(__file__).resolve().parent.parent
VALUES = {"errors", "excerpts", "messages", "config", "units", "__init__"}
# Room -> the rooms of broker_store that it may import from, beside itself and the values.
MAY_IMPORT = {
    "formats": set(),
    "kernels": {"formats"},
    "protocol": {"formats"},
    "sql92": {"formats"},
    "access": {"formats", "protocol"},
    "engine": {"formats", "kernels", "throttle", "processes", "memory_limit"},
    "check": {"formats", "kernels", "engine", "throttle"},
    "backup": {"formats", "engine"},
    "facts": {"formats", "kernels", "engine", "check", "throttle", "memory_limit"},
    "broker": {"access", "formats", "sql92", "kernels", "engine", "protocol", "throttle"},
    "nameserver": {"formats", "protocol"},
    "client": {"access", "formats", "protocol"},
    "tools": {"formats", "protocol", "client"},
    "pipeline": {"formats", "kernels", "engine", "check", "client", "processes"},
    "rest": {"formats", "broker", "repeated_log"},
    "server": {
        "access",
        "formats",
        "kernels",
        "engine",
        "protocol",
        "replication",
        "broker",
        "nameserver",
        "rest",
        "gc_policy",
        "throttle",
        "turns",
        "repeated_log",
    },
    "assembly": {
        "formats",
        "kernels",
        "engine",
        "facts",
        "protocol",
        "broker",
        "nameserver",
        "rest",
        "server",
        "turns",
        "memory_limit",
        "memory_parts",
    },
    "launch": {"formats", "engine", "backup", "memory_limit"},
    "replication": {"formats", "engine", "protocol"},
    "lab": {"formats", "engine", "check"},
    "gc_policy": set(),
    "memory_limit": set(),
    "memory_parts": {"engine", "facts", "broker", "server", "memory_limit"},
    "throttle": set(),
    "processes": set(),
    "repeated_log": set(),
    "scheduler": set(),
    "turns": set(),
}
# The same of the rooms of mqadmin: what each may import of the others.
MQADMIN_MAY_IMPORT = {
    "facts": set(),
    "process": {"facts", "models"},
    # Not jobs, which import it: what it needs of them, who starts the dashboard gives it
    "cluster": {"facts", "process", "templatetags", "web"},
    "web": {"audit", "cluster", "process", "views"},
    # Of the broker's process it asks the cluster; a schedule's run has a caller and leaves a record
    "jobs": {"process", "cluster", "facts", "audit", "web"},
    "metrics": {"cluster", "facts"},
}
# Package -> the only rooms that may import it.
KEPT_TO = {
    "django": {"mqadmin"},
    "cryptography": {"server"},
    "yaml": {"access"},
    "numba": {"kernels"},
    "pyspark": {"pipeline"},
    "pyarrow": {"pipeline"},
}
# Packages from which modules are imported by name, beside the package
FROM_PACKAGES = {"broker_store", "broker_store.formats", "mqadmin"}
WITHOUT_ASYNCIO = {
    "access",
    "formats",
    "sql92",
    "kernels",
    "engine",
    "check",
    "backup",
    "facts",
    "protocol",
    "broker",
}


def imports() -> Iterator[tuple[Path, str, str]]:
    """(file, its room, imported module) of every import in the program, also those inside functions."""
    for top in ("broker_store", "mqadmin"):
        for file in sorted((PROJECT / top).rglob("*.py")):
            inside = file.relative_to(PROJECT / top).with_suffix("").parts
            room = "mqadmin" if top == "mqadmin" else inside[0]
            for node in nodes_of(file):
                if isinstance(node, ast.Import):
                    for name in node.names:
                        yield file, room, name.name
                elif isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{file}: imports are by full names"
                    yield file, room, node.module
                    for name in node.names if node.module in FROM_PACKAGES else ():
                        yield file, room, f"{node.module}.{name.name}"


@pytest.fixture(scope="module")
def found() -> list[tuple[Path, str, str]]:
    return list(imports())


def test_no_room_imports_from_one_above_it(found):
    wrong = []
    for file, room, module in found:
        package, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if package == "mqadmin" and room != "mqadmin":
            wrong.append(f"{file.relative_to(PROJECT)} imports {module}")
        if (
            package == "broker_store"
            and rest
            and room != "mqadmin"
            and room not in VALUES
            and target not in VALUES | {room, "__version__"}
        ):
            if target not in MAY_IMPORT[room]:
                wrong.append(f"{file.relative_to(PROJECT)} imports {module}")
        if package == "broker_store" and rest and room in VALUES - {"config"} and target not in VALUES:
            wrong.append(f"{file.relative_to(PROJECT)} imports {module}")
    assert wrong == []


def test_no_room_of_the_dashboard_imports_from_one_above_it(found):
    wrong = []
    for file, _, module in found:
        room, _, rest = str(file.relative_to(PROJECT)).removeprefix("mqadmin/").partition("/")
        may = MQADMIN_MAY_IMPORT.get(room) if rest else None
        target = module.split(".")[1] if module.startswith("mqadmin.") else ""
        if may is not None and target not in may | {"", room}:
            wrong.append(f"{file.relative_to(PROJECT)} imports {module}")
    assert wrong == []


# What any module of mqadmin may import of broker_store. All else it reaches through mqadmin/cluster/.
VALUES_OF_MQADMIN = {
    # Made for it: documents and problems of REST, what is measured of a store, settings, errors and units
    "rest",
    "facts",
    "config",
    "errors",
    "excerpts",
    "units",
    # They know nothing of a broker
    "processes",
    "repeated_log",
    "scheduler",
    "sql92",
    "throttle",
    "turns",
    "__version__",
    # What a message is, and what names and times look like
    "formats.index_file",
    "formats.message_id",
    "formats.moment",
    "formats.names",
    "formats.properties",
    "formats.record",
    "formats.topics",
    "formats.traces",
    "messages",
    # Frozen values: what a store and a broker say of themselves, users and rules, what a run of the crash lab is asked to do,
    # and the results of checks and of the pipeline
    "access.policies",
    "access.users",
    "broker.group_reads",
    "check.results",
    "engine.status.store_state",
    "lab.experiment",
    "pipeline.results",
    # A library for programs that reach a broker by its port
    "client",
    # The first bytes of a connection, the same for each port
    "protocol.proxy_prologue",
    "server.listener",
    "server.opening",
    "server.tls_server",
    "server.tls_transport",
}
# It is the door, or starts a process or reads a store directly.
BEHIND_THE_DOOR = (
    "mqadmin/cluster/",
    "mqadmin/command_line.py",
    "mqadmin/management/commands/",
    "mqadmin/management/deploy/",
    "mqadmin/process/run_file.py",
    "mqadmin/process/saved_source.py",
    "mqadmin/process/stopped_access.py",
)


def test_the_dashboard_reaches_the_broker_through_its_cluster(found):
    past: dict[str, set[str]] = {}
    for file, room, module in found:
        name, (package, _, rest) = str(file.relative_to(PROJECT)), module.partition(".")
        if room != "mqadmin" or package != "broker_store" or not rest or name.startswith(BEHIND_THE_DOOR):
            continue
        # formats itself is named where its modules are imported from it: `from broker_store.formats import names`
        if rest != "formats" and not any(
            rest == one or rest.startswith(f"{one}.") for one in VALUES_OF_MQADMIN
        ):
            past.setdefault(name, set()).add(rest)
    assert past == {}


def test_what_runs_behind_the_cluster_is_imported_by_who_starts_it_alone(found):
    importing = {
        str(file.relative_to(PROJECT))
        for file, _, module in found
        if module.startswith("mqadmin.cluster.embedded")
    }
    outside = {name for name in importing if not name.startswith("mqadmin/cluster/")}
    assert outside == {"mqadmin/management/commands/runbroker.py"}


def test_heavy_packages_stay_in_their_rooms(found):
    wrong = [
        f"{file.relative_to(PROJECT)} imports {module}"
        for file, room, module in found
        if room not in KEPT_TO.get(module.partition(".")[0], {room})
    ]
    assert wrong == []


def test_what_decides_and_what_computes_knows_no_event_loop(found):
    wrong = [
        f"{file.relative_to(PROJECT)} imports {module}"
        for file, room, module in found
        if room in WITHOUT_ASYNCIO and module.partition(".")[0] == "asyncio"
    ]
    assert wrong == []


# The engine's only folder that calls the operating system for files (docs/durability.md section 3). Elsewhere
# in the engine `os` is asked for the machine and the process only.
OPENS_FILES = "broker_store/engine/disk/"
SEAM_ROOMS = {"engine", "backup"}
NO_FILES = {"os.fsencode", "os.getpid", "os.setpriority", "os.strerror", "os.sysconf"}
FILE_MODULES = {"fcntl", "mmap", "shutil", "tempfile", "io", "glob"}
PATH_CALLS = {
    "open",
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
    "mkdir",
    "touch",
    "stat",
    "lstat",
    "exists",
    "is_file",
    "is_dir",
    "iterdir",
    "glob",
    "rglob",
}


def test_only_the_disk_seam_calls_the_system_for_files(found):
    wrong = []
    for file, room, module in found:
        name = str(file.relative_to(PROJECT))
        if room in SEAM_ROOMS and not name.startswith(OPENS_FILES) and module in FILE_MODULES:
            wrong.append(f"{name} imports {module}")
    for file in {file for file, room, _ in found if room in SEAM_ROOMS}:
        name = str(file.relative_to(PROJECT))
        if name.startswith(OPENS_FILES):
            continue
        for node in nodes_of(file):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "open" or (called.startswith("os.") and called not in NO_FILES):
                    wrong.append(f"{name}:{node.lineno} calls {called}")
                is_path = isinstance(node.func, ast.Attribute) and node.func.attr in PATH_CALLS
                if is_path and re.search(
                    r"(^|\.)(\w*path|root|directory|Path\(.*\))$", ast.unparse(node.func.value)
                ):
                    wrong.append(f"{name}:{node.lineno} calls {called}")
    assert wrong == []


# Who can hand bytes or text to these runs code here: a queue, a file, a field of a form (docs/durability.md
# S1, S21, S30).
RUNS_WHAT_IT_READS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
# Of yaml only what makes nodes of text, and no objects
SAFE_OF_YAML = {"yaml.parse", "yaml.compose"}
CALLS_THAT_RUN = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
}


def test_nothing_that_was_read_is_run(found):
    wrong = [
        f"{file.relative_to(PROJECT)} imports {module}"
        for file, _, module in found
        if module.partition(".")[0] in RUNS_WHAT_IT_READS
    ]
    for file in {file for file, _, _ in found}:
        for node in nodes_of(file):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                is_yaml = called.startswith("yaml.") and called not in SAFE_OF_YAML
                if is_yaml:
                    wrong.append(f"{file.relative_to(PROJECT)}:{node.lineno} calls {called}")
                if called in CALLS_THAT_RUN or any(keyword.arg == "shell" for keyword in node.keywords):
                    wrong.append(f"{file.relative_to(PROJECT)}:{node.lineno} calls {called}")
            if isinstance(node, ast.ImportFrom) and node.module == "yaml":
                wrong.append(f"{file.relative_to(PROJECT)}:{node.lineno} imports from yaml")
    assert wrong == []


# Where the program opens a connection of its own, and to whom; only its owner names an address
# (docs/durability.md S20).
CONNECTS = {
    "broker_store/server/channel.py": "name servers that the settings name",
    "broker_store/replication/follower.py": "the HA port of the master",
    "broker_store/client/link.py": "a client's brokers and name servers",
    "broker_store/client/session.py": "the same, by links",
    "mqadmin/process/rest_client.py": "the local socket",
    "mqadmin/process/children.py": "the socket of our Redis",
    "mqadmin/web/failures.py": "the file of the dashboard's database",
    "mqadmin/process/saved_source.py": "the same, and the file that it is saved in",
}
CONNECTING = {
    "create_connection",
    "open_connection",
    "open_unix_connection",
    "create_unix_connection",
    "connect",
    "urlopen",
    "HTTPConnection",
    "HTTPSConnection",
}


def test_only_these_open_a_connection(found):
    connecting = set()
    for file in {file for file, _, _ in found}:
        for node in nodes_of(file):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in CONNECTING
            ):
                connecting.add(str(file.relative_to(PROJECT)))
    # By a library, the export of metrics to the address of metricsOtlpEndpoint alone
    modules = {module for file, _, module in found if file != PROJECT / "mqadmin" / "metrics" / "otlp.py"}
    assert connecting == CONNECTS.keys()
    assert not modules & {
        "requests",
        "httpx",
        "aiohttp",
        "urllib.request",
        "urllib3",
        "ftplib",
        "smtplib",
        "telnetlib",
    }


def test_the_store_is_a_facade():
    lines = (PROJECT / "broker_store" / "engine" / "store.py").read_text().count("\n")
    assert lines < 300, "what a part does belongs to the part"


MAX_LINES = 500


def test_no_module_is_too_long():
    long = {
        str(file.relative_to(PROJECT))
        for top in ("broker_store", "mqadmin")
        for file in (PROJECT / top).rglob("*.py")
        if len(file.read_text().splitlines()) > MAX_LINES
    }
    assert long == set()


# Packages within which no import leads in a circle, also not inside functions or for types alone.
WITHOUT_CIRCLES = ["broker_store.check", "mqadmin.jobs", "mqadmin.process", "mqadmin.web"]


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_no_import_leads_in_a_circle(package):
    modules = {
        ".".join(file.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PROJECT.joinpath(*package.split(".")).rglob("*.py")
    }
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, file in modules.items():
        for node in nodes_of(file):
            if isinstance(node, ast.Import):
                graph[name] |= {one.name for one in node.names} & modules.keys()
            elif isinstance(node, ast.ImportFrom):
                of_package = {f"{node.module}.{one.name}" for one in node.names} & modules.keys()
                graph[name] |= of_package or {node.module} & modules.keys()
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
