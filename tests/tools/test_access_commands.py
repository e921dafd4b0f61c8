"""Commands about users and rights print what Apache's print (tests/golden/access/mqadmin.txt), but for
passwords."""

import json
from pathlib import Path

import pytest

from broker_store.tools.run import run
from tests.client.conftest import Cluster

GOLDEN = Path(__file__).parent.parent / "golden" / "access" / "mqadmin.txt"
ROOT = {"accessKey": "root", "secretKey": "the-secret-of-root-0001"}


@pytest.fixture
async def guarded(tmp_path):
    """A cluster with access control, and the options that name it and sign requests."""
    cluster = Cluster(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=json.dumps({"username": ROOT["accessKey"], "password": ROOT["secretKey"]}),
    )
    await cluster.start()
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(ROOT))
    yield cluster, ["-n", cluster.nameservers, "--credentials", str(file)]
    await cluster.stop()


def golden() -> list[tuple[str, list[str]]]:
    """Return the commands of the file that are of one broker, and the lines of each."""
    commands: list[tuple[str, list[str]]] = []
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("## mqadmin "):
            commands.append((line.removeprefix("## mqadmin "), []))
        elif line:
            commands[-1][1].append(line.rstrip())
    return [
        (command, lines)
        for command, lines in commands
        # All users and rights of that broker, and a copy, for which passwords are needed
        if " -c DefaultCluster" not in command
        and command != "listAcl -b 127.0.0.1:10911"
        and not command.startswith(("topicList", "copyUser", "updateUser"))
    ]


async def test_they_print_what_apaches_print(guarded):
    cluster, options = guarded
    for command, lines in golden():
        printed: list[str] = []
        words = command.replace("127.0.0.1:10911", cluster.address).split()
        code = await run([*words, *options], printed.append, printed.append)
        found = [line.replace(cluster.address, "127.0.0.1:10911").rstrip() for line in printed]
        if "SubCommandException" in "".join(lines[:1]):
            wanted = lines[1].partition("CODE: ")[2].rstrip()
            assert code == 1 and f"CODE: {wanted}" in found[0], command
        else:
            assert code == 0, (command, found)
            assert found == [line.replace("mapw", "null") for line in lines], command


async def test_a_user_without_a_password_is_not_copied_and_one_is_changed(guarded):
    cluster, options = guarded
    broker, printed = ["-b", cluster.address], []

    async def mqadmin(*words: str) -> int:
        printed.clear()
        return await run([*words, *options], printed.append, printed.append)

    assert await mqadmin("createUser", *broker, "-u", "ann", "-p", "the-secret-of-ann-0001") == 0
    assert await mqadmin("updateUser", *broker, "-u", "ann", "-s", "disable") == 0
    assert await mqadmin("getUser", *broker, "-u", "ann", "--json") == 0
    assert json.loads(printed[0])["userStatus"] == "disable"
    assert await mqadmin("copyUser", "-f", cluster.address, "-t", cluster.address, "-u", "ann") == 1
    assert "does not give the password of user ann" in printed[0]


async def test_progress_of_all_groups_says_that_it_may_not_be_seen(guarded):
    """An empty table would say that there are no groups."""
    cluster, options = guarded
    printed: list[str] = []
    made = ["updateSubGroup", "-b", cluster.address, "-g", "readers", *options]
    assert await run(made, printed.append, printed.append) == 0, printed
    retries = ["updateTopic", "-b", cluster.address, "-t", "%RETRY%readers", *options]
    assert await run(retries, printed.append, printed.append) == 0, printed
    errors: list[str] = []
    assert await run(["consumerProgress", *options[:2]], printed.append, errors.append) == 1
    assert "NO_PERMISSION" in errors[0] or "CODE: 16" in errors[0]
    assert await run(["consumerProgress", *options], printed.append, errors.append) == 0
