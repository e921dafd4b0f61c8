"""The proxy of tests does to connections what it says."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.support.bad_links import BACK, FAULTS, THERE, Links, storm

LIMIT_S = 10
SHORT_S = 0.05  # in which nothing comes


@pytest.fixture
def links():
    with Links() as made:
        yield made


@pytest.fixture
def target():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        yield listening


def address_of(listening):
    return f"127.0.0.1:{listening.getsockname()[1]}"


def connected(link, listening):
    """Both ends of a connection through the link."""
    client = connect(link)
    server, _ = listening.accept()
    server.settimeout(LIMIT_S)
    return client, server


def connect(link):
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


def is_silent(connection):
    connection.settimeout(SHORT_S)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(LIMIT_S)


def is_reset(connection):
    try:
        return connection.recv(1) is None
    except ConnectionResetError:
        return True


def is_refused(link):
    """Return whether a new connection is reset, which can be before `connect` has returned."""
    try:
        new = connect(link)
    except ConnectionResetError:
        return True
    try:
        return is_reset(new)
    finally:
        new.close()


def close(*connections):
    for connection in connections:
        connection.close()


def test_bytes_and_ends_pass_in_both_directions(links, target):
    client, server = connected(links.add("a", address_of(target)), target)
    client.sendall(b"there")
    assert server.recv(100) == b"there"
    server.sendall(b"back")
    assert client.recv(100) == b"back"
    client.shutdown(socket.SHUT_WR)
    assert server.recv(100) == b""
    server.sendall(b"x" * 1_000_000)
    server.close()
    got = b""
    while data := client.recv(1 << 16):
        got += data
    assert len(got) == 1_000_000
    close(client)


@pytest.mark.parametrize("held", [THERE, BACK])
def test_a_direction_that_is_held_passes_later_and_the_other_at_once(held, links, target):
    link = links.add("a", address_of(target))
    client, server = connected(link, target)
    link.hold(held)
    ends = {THERE: (client, server), BACK: (server, client)}
    for sender, _ in ends.values():
        sender.sendall(b"later")
    (free,) = {THERE, BACK} - {held}
    assert ends[free][1].recv(100) == b"later" and is_silent(ends[held][1])
    link.heal()
    assert ends[held][1].recv(100) == b"later"
    close(client, server)


def test_an_end_and_a_new_connection_wait_while_a_link_is_held(links, target):
    link = links.add("a", address_of(target))
    client, server = connected(link, target)
    link.hold()
    client.close()
    new = connect(link)
    new.sendall(b"new")
    assert is_silent(server)
    link.heal()
    assert server.recv(1) == b""
    second, _ = target.accept()
    assert second.recv(100) == b"new"
    close(server, second, new)


def test_what_is_lost_never_comes_and_its_connection_is_cut_later(links, target):
    link = links.add("a", address_of(target))
    client, server = connected(link, target)
    untouched = connected(link, target)
    link.lose()
    client.sendall(b"lost")
    assert is_silent(server)
    link.heal()
    assert is_reset(server) and is_reset(client)
    untouched[0].sendall(b"passes")
    assert untouched[1].recv(100) == b"passes"
    close(client, server, *untouched)


def test_a_cut_resets_both_ends_and_a_refusal_each_new_connection(links, target):
    link = links.add("a", address_of(target))
    client, server = connected(link, target)
    link.cut()
    assert is_reset(client) and is_reset(server)
    close(client, server)
    client, server = connected(link, target)
    link.refuse()
    assert is_reset(client) and is_reset(server) and is_refused(link)
    link.heal()
    close(client, server)
    close(*connected(link, target))


def test_a_connection_that_is_forgotten_passes_nothing_more_and_new_ones_do(links, target):
    link = links.add("a", address_of(target))
    client, server = connected(link, target)
    link.forget()
    link.heal()
    client.sendall(b"nothing")
    client.close()
    assert is_silent(server)
    new = connected(link, target)
    new[0].sendall(b"passes")
    assert new[1].recv(100) == b"passes"
    close(server, *new)


def test_a_delay_holds_each_piece_for_its_time(links, target):
    link = links.add("a", address_of(target))
    client, server = connected(link, target)
    link.delay(10 * SHORT_S)
    client.sendall(b"slow")
    assert is_silent(server)
    assert server.recv(100) == b"slow"
    close(client, server)


def test_addresses_in_answers_are_replaced_wherever_a_piece_ends(links, target):
    link = links.add("a", address_of(target))
    link.rename({"127.0.0.1:15001": "127.0.0.1:16001"})
    client, server = connected(link, target)
    frame = b'{"masterAddr":"127.0.0.1:15001"}1'
    sent = len(frame).to_bytes(4) + frame
    for end in range(1, len(sent)):
        server.sendall(sent[:end])
        server.sendall(sent[end:])
        got = b""
        while len(got) < len(sent):
            got += client.recv(100)
        assert got == len(frame).to_bytes(4) + frame.replace(b"15001", b"16001")
    client.sendall(sent)
    assert server.recv(100) == sent
    close(client, server)


def test_a_storm_does_the_same_for_the_same_seed_and_heals(links, target, capsys, monkeypatch):
    link = links.add("a", address_of(target))
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: True)
    logged = []
    for _ in range(2):
        healed = iter(range(20))

        def stop_after_some(healed=healed):
            if next(healed) == 18:
                raise StopIteration

        with pytest.raises(StopIteration):
            storm(links, {"one": [link], "none": []}, 5, 60, stop_after_some)
        lines = capsys.readouterr().out.splitlines()
        logged.append([line.partition(" s  ")[2] for line in lines])
    assert logged[0] == logged[1] and len(logged[0]) > 30
    assert {line.partition(": ")[2] for line in logged[0]} >= set(FAULTS)
    close(*connected(link, target))
