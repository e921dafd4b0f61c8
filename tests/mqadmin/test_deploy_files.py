"""The files of `deploy/` name commands, options, settings, ports, files and metrics that exist."""

from __future__ import annotations

import argparse
import configparser
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from broker_store import launch
from broker_store.config.broker import BrokerSettings
from broker_store.config.examine import examined
from broker_store.config.load import load_name_server_settings, load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.errors import (
    ConfigError,
    DamagedStoreError,
    DiskFullError,
    ForeignStoreError,
    StoreError,
    StoreLockedError,
)
from mqadmin.api.metrics import text_of
from mqadmin.metrics.measured import measure
from tests.support.fake_cluster import FakeCluster
from tests.support.ports import free_port
from tests.support.prometheus import of_prometheus

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = DEPLOY / "headpond.service"
CONTAINERFILE = [
    tuple(line.split(" ", 1))
    for line in (DEPLOY / "Containerfile").read_text().splitlines()
    if line and not line.startswith(("#", "ARG "))
]
OURS = [name for name, service in COMPOSE["services"].items() if service["image"] == "headpond"]


def with_defaults(text: str) -> str:
    """Return a text of the compose file as it is where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def command_of(service: str) -> list[str]:
    return [with_defaults(word) for word in COMPOSE["services"][service]["command"]]


def options_of(words: list[str]) -> argparse.Namespace:
    """Return the options of a command line, parsed as the command does; a wrong one ends the test."""
    name, *rest = words
    command = load_command_class(get_commands()[name], name)
    return command.create_parser("headpond", name).parse_args(rest)


def filled_in(folder: Path) -> Path:
    """Return a copy of the example with passwords of its own."""
    file = folder / "broker.conf"
    file.write_text((DEPLOY / "broker.conf.example").read_text().replace("REPLACE-ME", "a-secret"))
    file.chmod(0o600)
    return file


def test_the_services_are_those_that_are_documented():
    assert OURS == ["nameserver", "broker-a", "broker-b"]
    profiles = {
        name: service.get("profiles") for name, service in COMPOSE["services"].items() if name not in OURS
    }
    assert profiles == {"redis": ["redis"], "prometheus": ["metrics"], "grafana": ["metrics"]}


@pytest.mark.parametrize("service", OURS)
def test_a_service_has_a_real_command_whose_ports_are_published(service, tmp_path):
    words = command_of(service)
    options = options_of(words)
    published = {
        int(port.rsplit(":", 2)[1]): int(port.rsplit(":", 2)[2])
        for port in map(with_defaults, COMPOSE["services"][service]["ports"])
    }
    assert all(outside == inside for outside, inside in published.items())  # clients get the inner one
    if service == "nameserver":
        settings = load_name_server_settings(None, launch.pairs_of(options.set))
        launch.check_name_server_bind(options.bind, options.insecure, settings)
        brokers = [COMPOSE["services"][name]["networks"]["headpond"]["ipv4_address"] for name in OURS[1:]]
        assert settings.name_server_change_addresses.split(",") == brokers
        assert set(published) == {settings.listen_port}
        return
    options.config = str(filled_in(tmp_path))
    settings = launch.settings_of(options, tmp_path)
    launch.check_bind(options.bind, options.insecure, settings.broker)
    port = settings.broker.listen_port
    assert set(published) == {port, port - 2, settings.broker.grpc_server_port, options.web_port}
    assert settings.broker.broker_name == service and options.web_host == [service]
    nameserver = COMPOSE["services"]["nameserver"]["networks"]["headpond"]["ipv4_address"]
    assert settings.broker.namesrv_addr == f"{nameserver}:{NameServerSettings().listen_port}"
    (secret,) = COMPOSE["services"][service]["secrets"]
    assert (
        words[words.index("-c") + 1] == f"/run/secrets/{secret['target']}"
        and secret["source"] in COMPOSE["secrets"]
    )


def test_services_have_no_ports_volumes_or_addresses_in_common():
    ports = [
        with_defaults(port).rsplit(":", 1)[0]
        for service in COMPOSE["services"].values()
        for port in service.get("ports", ())
    ]
    assert len(ports) == len(set(ports))
    volumes = [
        volume.partition(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
    ]
    named = [volume for volume in volumes if not volume.startswith("./")]
    assert sorted(named) == sorted(COMPOSE["volumes"])
    assert all((DEPLOY / volume).exists() for volume in volumes if volume.startswith("./"))


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_each_service_runs_with_few_rights(service):
    found = COMPOSE["services"][service]
    assert found["cap_drop"] == ["ALL"] and found["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in found


def test_no_file_has_a_secret():
    example = (DEPLOY / "broker.conf.example").read_text()
    assert all(
        secret.startswith("REPLACE-ME")
        for secret in re.findall(r'"(?:password|secretKey)": "([^"]*)"', example)
    )
    for path in (path for path in DEPLOY.rglob("*") if path.is_file() and path.name != "broker.conf.example"):
        assert not re.search(r"(?i)(password|secretkey)[\"\']?[ ]*[=:][ ]*\S", path.read_text()), path
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/deploy/broker.conf", "/deploy/*.token"} <= set(ignored)
    assert not [name for name in dict(CONTAINERFILE).get("ENV", "").split() if "SECRET" in name]


def test_the_settings_of_the_example_act_and_turn_access_control_on(tmp_path):
    loaded = load_settings(filled_in(tmp_path))
    assert loaded.notes == ()
    launch.check_bind("0.0.0.0", False, loaded.broker)


def test_no_broker_starts_with_the_passwords_of_the_example():
    _, refused = examined(lambda without: load_settings(DEPLOY / "broker.conf.example", without=without))
    assert {error.key for error in refused} == {
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
    }
    assert all("write your own" in error.reason and error.value == "******" for error in refused)


def test_the_image_runs_as_another_user_with_a_health_check_and_a_volume():
    last = CONTAINERFILE[max(at for at, (word, _) in enumerate(CONTAINERFILE) if word == "FROM") :]
    said = {word: text for word, text in last}
    (uid,) = set(said["USER"].split(":"))
    assert int(uid) > 0
    assert f"--uid {uid} " in next(text for word, text in last if word == "RUN")
    environment = dict(pair.split("=", 1) for pair in said["ENV"].split())
    assert json.loads(said["VOLUME"]) == [environment["BROKER_DATA_DIR"]]
    check = json.loads(said["HEALTHCHECK"].partition("CMD ")[2])
    assert [check[0], Path(check[1]).name] == ["python", "health.py"]
    assert json.loads(said["ENTRYPOINT"]) == ["headpond"]
    options_of(json.loads(said["CMD"]))
    broker, port = BrokerSettings(), NameServerSettings().listen_port
    web = options_of(["runbroker"]).web_port
    exposed = {web, broker.grpc_server_port, port, broker.listen_port, broker.listen_port - 2}
    assert set(map(int, said["EXPOSE"].split())) == exposed


def test_the_image_is_built_of_files_that_exist_and_are_sent():
    """The file for the builder leaves everything out but what is copied."""
    sent = {
        line[1:]
        for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
        if line[0] == "!"
    }
    copied = set()
    for word, text in CONTAINERFILE:
        if word == "COPY" and not text.startswith("--from"):
            copied |= set(text.split()[:-1])
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
    built = next(text for word, text in CONTAINERFILE if word == "RUN" and "prepare" in text)
    options_of(shlex.split(built)[1:])
    assert {"prepare", "config", "runbroker", "runnamesrv"} <= get_commands().keys()


def unit() -> configparser.ConfigParser:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


def test_the_unit_starts_a_real_command_with_places_that_it_may_write():
    service = unit()["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        program, *words = shlex.split(service[key].removeprefix("-"))
        assert program == "/opt/headpond/bin/headpond"
        options = options_of(words)
        assert options.config == "/etc/headpond/broker.conf"
    assert shlex.split(service["ExecStart"])[1] == "runbroker"
    environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert {environment["BROKER_DATA_DIR"], environment["BROKER_KERNEL_CACHE"]} == set(
        service["ReadWritePaths"].split()
    )
    assert environment["BROKER_DATA_DIR"] == f"/var/lib/{service['StateDirectory']}"
    assert environment["BROKER_KERNEL_CACHE"] == f"/var/cache/{service['CacheDirectory']}"


def test_the_unit_has_few_rights_and_enough_descriptors():
    service = unit()["Service"]
    assert service["ProtectSystem"] == "strict" and service["NoNewPrivileges"] == "true"
    assert service["User"] != "root" and service["CapabilityBoundingSet"] == ""
    assert int(service["TimeoutStopSec"]) > 5  # the stop takes 5 s
    assert int(service["LimitNOFILE"]) > 4 * BrokerSettings().max_connections
    assert "MemoryDenyWriteExecute" not in service  # kernels are machine code that is made at a start


def test_the_unit_starts_again_what_another_start_can_change(tmp_path, monkeypatch):
    """systemd compares RestartPreventExitStatus with the code of ExecStart alone. A failed ExecStartPre without
    the "-" would be tried again for ever."""
    service = unit()["Service"]
    assert service["Restart"] == "on-failure" and service["ExecStartPre"].startswith("-")
    prevents = [int(code) for code in service["RestartPreventExitStatus"].split()]
    assert prevents == [2, launch.EXIT_REFUSED]
    damaged = DamagedStoreError("is damaged", file="commitlog/0")
    for error in (ConfigError("listenPort", "x", "is no number"), damaged, ForeignStoreError("a backup")):
        assert launch.exit_code_of(error) == launch.EXIT_REFUSED, error
    for passing in (
        OSError(errno.EADDRINUSE, "in use"),
        StoreLockedError("held"),
        DiskFullError("full"),
        StoreError("read-only"),
    ):
        assert launch.exit_code_of(passing) == 1, passing


def test_systemd_takes_the_unit(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # a machine without systemd; the tests above read the file all the same
    program = tmp_path / "headpond"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/headpond/bin/headpond", str(program)))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


async def _names_of_metrics() -> set[str]:
    text = text_of(await measure(FakeCluster())).decode()
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}


async def test_alerts_and_dashboard_name_metrics_that_exist():
    existing = await _names_of_metrics()
    rules = [
        rule
        for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "headpond.json").read_text())
    asked = [rule["expr"] for rule in rules] + [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    ]
    asked += [
        variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"
    ]
    named = {name for text in asked for name in re.findall(r"\bbroker_\w+", text)}
    assert len(named) > 15 and named <= existing, named - existing
    assert all(
        rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"]
        for rule in rules
    )
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_prometheus_asks_the_brokers_of_the_compose_file():
    found = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    targets = []
    for job in found["scrape_configs"]:
        ((target,),) = [config["targets"] for config in job["static_configs"]]
        service, port = target.split(":")
        assert options_of(command_of(service)).web_port == int(port)
        token = job["authorization"]["credentials_file"].removeprefix("/run/secrets/")
        assert token in COMPOSE["services"]["prometheus"]["secrets"] and token in COMPOSE["secrets"]
        targets.append(service)
    assert targets == OURS[1:]
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["prometheus"]["volumes"]]
    assert set(found["rule_files"]) <= set(mounted)


@pytest.mark.slow
def test_promtool_takes_the_configuration_and_the_alerts(tmp_path):
    tool = of_prometheus("promtool")
    if tool is None:
        return  # the tests above read the files all the same
    command = [tool, "check", "config", str(configuration_in(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.slow
def test_prometheus_loads_the_alerts_and_asks_the_brokers(tmp_path):
    program = of_prometheus("prometheus")
    if program is None:
        return  # the tests above read the files all the same
    port = free_port()
    command = [
        program, f"--config.file={configuration_in(tmp_path)}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    output = tmp_path / "output"
    with output.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            rules = answer_of(port, "rules", lambda data: data["groups"], process, output)
            names = [rule["name"] for group in rules["groups"] for rule in group["rules"]]
            assert sorted(names) == sorted(ALERTS)
            targets = answer_of(port, "targets", lambda data: data["activeTargets"], process, output)
            found = {target["labels"]["instance"] for target in targets["activeTargets"]}
            assert {place.split(":")[0] for place in found} == set(OURS[1:])
        finally:
            process.terminate()


ALERTS = re.findall(r"- alert: (\w+)", (DEPLOY / "alerts.yml").read_text())


def configuration_in(directory: Path) -> Path:
    """Write the configuration of Prometheus, with files of this directory in place of the container's."""
    shutil.copyfile(DEPLOY / "alerts.yml", directory / "alerts.yml")
    text = (DEPLOY / "prometheus.yml").read_text()
    for place in re.findall(r"/run/secrets/[\w.-]+|/etc/prometheus/[\w.-]+", text):
        copy = directory / Path(place).name
        copy.touch()
        text = text.replace(place, str(copy))
    path = directory / "prometheus.yml"
    path.write_text(text)
    return path


def answer_of(port, what, holds, process, output):
    """Ask a Prometheus that is starting until what it has loaded is there."""
    until_s = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < until_s, output.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=5) as answer:
                data = json.load(answer)["data"]
        except OSError:
            data = None
        if data is not None and holds(data):
            return data
        time.sleep(0.1)


@pytest.mark.parametrize("arguments", [[], ["1"]])
def test_the_health_check_fails_with_a_sentence_where_nothing_answers(tmp_path, arguments):
    environment = os.environ | {"BROKER_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "health.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1 and done.stderr.startswith("no answer: ")
