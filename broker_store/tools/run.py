"""The choice of a command by its name, the reading of its options, and its output."""

from __future__ import annotations

import argparse
import json
import os
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from broker_store.client import Admin, Credentials, read_credentials, tls_context
from broker_store.client.errors import AnswerError, NoRouteError
from broker_store.client.session import parse_nameservers
from broker_store.config.properties import read_properties
from broker_store.errors import BrokerStoreError, ConfigError, MisuseError
from broker_store.protocol.codes import ResponseCode
from broker_store.tools import (  # noqa: F401  (each registers its commands)
    access,
    brokers,
    clusters,
    cold_reads,
    connections,
    export,
    groups,
    messages,
    name_servers,
    offsets,
    progress,
    queues,
    reading,
    sends,
    static_topics,
    statistics,
    topics,
)
from broker_store.tools.command import COMMANDS, Command, Options
from broker_store.tools.servers import Servers

TIMEOUT_S = 10.0
NAMESERVER = "127.0.0.1:9876"
SUCCEEDED, FAILED, MISUSED = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """A parser that raises MisuseError where argparse ends the process."""

    def error(self, message: str) -> NoReturn:
        raise MisuseError(f"{self.prog}: {message}; {self.prog} -h shows its options")


def listing() -> str:
    """Return the names of all commands and what they do, as Apache's `mqadmin` prints them."""
    lines = (f"   {each.name:<35s} {each.about}" for each in COMMANDS.values())
    return "\n".join(
        (
            "The most commonly used mqadmin commands are:",
            *lines,
            "",
            "See 'mqadmin help <command>' for more information on a specific command.",
        )
    )


def parser_of(command: Command) -> argparse.ArgumentParser:
    """Return the parser of a command: its own options, and those of all."""
    parser = _Parser(prog=f"mqadmin {command.name}", description=command.about, allow_abbrev=False)
    common = parser.add_argument_group("options of all commands")
    common.add_argument(
        "-n",
        "--namesrvAddr",
        default=os.environ.get("NAMESRV_ADDR") or NAMESERVER,
        help="name servers, host:port;host:port (default: NAMESRV_ADDR, else %(default)s)",
    )
    common.add_argument("--json", action="store_true", help="print facts, a JSON value on each line")
    common.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for each request")
    common.add_argument(
        "--credentials", type=Path, metavar="FILE", help='{"accessKey": "..", "secretKey": ".."} to sign with'
    )
    common.add_argument("--tls", action="store_true", help="connect by TLS")
    common.add_argument("--tls-trust", metavar="FILE", help="authorities in PEM that must have signed")
    common.add_argument(
        "--tls-config", type=Path, metavar="FILE", help="a tls.properties of Apache's clients: tls.client.*"
    )
    command.add_to(parser)
    return parser


async def run(words: Sequence[str], write: Callable[[str], object], complain: Callable[[str], object]) -> int:
    """Run the command that the words name, as `mqadmin` does, and return the exit code.

    `write` gets each line of the output, `complain` a sentence for what failed. The code is 1 for a server
    that refused or cannot be reached, 2 for words that are no command; Apache's ends with 0 in both cases.
    """
    words = list(words)
    if words[:1] == ["help"]:
        words = [*words[1:2], "-h"] if words[1:] else []
    if not words:
        write(listing())
        return SUCCEEDED
    command = COMMANDS.get(words[0])
    if command is None:
        complain(f"The sub command {words[0]} not exist.")
        return MISUSED
    parser = parser_of(command)
    if {"-h", "--help"} & set(words[1:]):
        write(parser.format_help().rstrip())
        return SUCCEEDED
    try:
        given = vars(parser.parse_args(words[1:]))
        await _run(command, given, write)
    except MisuseError as error:
        complain(str(error))
        return MISUSED
    except BrokerStoreError as error:
        complain(f"mqadmin {command.name}: {sentence(error)}")
        return FAILED
    return SUCCEEDED


def sentence(error: BrokerStoreError) -> str:
    """Return what failed, with Apache's code where a server refused."""
    if isinstance(error, AnswerError):
        return f"CODE: {int(error.code)}  DESC: {error.remark} BROKER: {error.address}"
    if isinstance(error, NoRouteError):
        return f"CODE: {int(ResponseCode.TOPIC_NOT_EXIST)}  DESC: {error}"
    return str(error)


async def _run(command: Command, given: dict[str, Any], write: Callable[[str], object]) -> None:
    nameservers = parse_nameservers(given["namesrvAddr"])
    credentials, tls = _credentials(given["credentials"]), _tls(given)
    timeout = given["timeout"]
    async with Admin(nameservers, timeout=timeout, credentials=credentials, tls=tls) as admin:
        servers = Servers(admin, nameservers, timeout, credentials, tls)
        async for line in command.steps(servers, Options(given)):
            if not given["json"]:
                write(line.text)
            elif line.fact is not None:
                write(json.dumps(line.fact, ensure_ascii=False))


def _credentials(file: Path | None) -> Credentials | None:
    if file is None:
        return None
    try:
        found = read_credentials(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"--credentials {file}: {error}") from None
    if found is None:
        raise MisuseError(f'--credentials {file}: expected {{"accessKey": "..", "secretKey": ".."}} in JSON')
    return found


def _tls(given: dict[str, Any]) -> ssl.SSLContext | None:
    file, trusted = given["tls_config"], given["tls_trust"]
    if not (given["tls"] or trusted or file):
        return None
    try:
        of_client = {} if file is None else read_properties(file)
    except (OSError, ConfigError) as error:
        raise MisuseError(f"--tls-config {file}: {error}") from None
    certificate, key = of_client.get("tls.client.certPath"), of_client.get("tls.client.keyPath")
    if bool(certificate) != bool(key):
        raise MisuseError(f"--tls-config {file}: tls.client.certPath and tls.client.keyPath are set together")
    trusted = trusted or of_client.get("tls.client.trustCertPath") or None
    password = of_client.get("tls.client.keyPassword", "")
    try:
        return tls_context(trusted, certificate=certificate or None, key=key, key_password=password)
    except (OSError, ValueError) as error:
        option = f"--tls-trust {trusted}" if file is None else f"--tls-config {file}"
        raise MisuseError(f"{option}: {error}") from None
