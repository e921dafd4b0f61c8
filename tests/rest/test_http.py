"""The hot routes: who gets in, what is bounded before it is held, and that everything else passes by
untouched."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading

import pytest

from broker_store.rest import callers, http, new_messages
from broker_store.rest.answers import Receipt
from broker_store.rest.callers import Caller, TokenTable
from broker_store.rest.http import HotRoutes
from broker_store.rest.problems import Problem

GOOD = "mq_good"
TOPIC = "/api/v1/topics/orders"


def receipt(topic: str, queue_offset: int) -> Receipt:
    return Receipt(
        status="PUT_OK",
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        log_offset=0,
        message_id="",
        offset_message_id="",
        store_time_ms=0,
    )


class Gateway:
    def __init__(self):
        self.sent, self.pulled, self.refused = [], [], []

    async def send_batch(self, topic, messages):
        if topic == "nowhere":
            raise Problem("topic_not_found")
        self.sent.append((topic, messages))
        return [receipt(topic, number) for number, _ in enumerate(messages)]

    async def pull(self, topic, queue_id, offset, limit, wait_ms):
        self.pulled.append((topic, queue_id, offset, limit, wait_ms))
        return [b'{"messages":', b"[]}"]

    def refuse(self, cause, **case):
        self.refused.append((cause, case))


class World:
    """HotRoutes with a gateway, a token of each role, and an application after it that reports that it was asked."""

    def __init__(self, **options):
        self.gateway = Gateway()
        self.tokens = TokenTable()
        self.now = 1_000.0
        self.tokens.replace(
            {_digest(f"{GOOD}_{role}"): (Caller(f"token:{role}", role), 0) for role in callers.ROLES}
        )
        self.behind = []
        self.up = True
        self.app = HotRoutes(
            self._behind,
            gateway=lambda: self.gateway if self.up else None,
            tokens=self.tokens,
            local_caller=lambda scope: Caller("local:me", "admin") if scope["server"][1] is None else None,
            clock=lambda: self.now,
            **options,
        )

    async def _behind(self, scope, receive, send):
        self.behind.append(scope["path"])

    async def ask(
        self,
        method,
        path,
        body=b"",
        token=f"{GOOD}_operator",
        headers=(),
        query=b"",
        local=False,
        chunks=None,
    ):
        all_headers = [*headers]
        if token:
            all_headers.append((b"authorization", b"Bearer " + token.encode()))
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": all_headers,
            "server": ("/run/web.sock", None) if local else ("127.0.0.1", 8080),
        }
        parts = iter(chunks if chunks is not None else [body])
        self.read = 0
        rest = list(parts)

        async def receive():
            self.read += 1
            part = rest.pop(0)
            if part is None:
                return {"type": "http.disconnect"}
            if part == "stall":
                await asyncio.Event().wait()
            return {"type": "http.request", "body": part, "more_body": bool(rest)}

        events = []

        async def send(event):
            events.append(event)

        await self.app(scope, receive, send)
        if not events:
            return None, None
        assert [event.get("more_body", False) for event in events[1:]] == [True] * (len(events) - 2) + [False]
        return events[0]["status"], json.loads(b"".join(event["body"] for event in events[1:]))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


async def test_one_message_and_a_list_reach_the_gateway_as_they_were_sent():
    world = World()
    status, answer = await world.ask(
        "POST",
        TOPIC + "/messages",
        b'{"body":"hi","tag":"T","keys":["a","b"],"properties":{"p":"q"},"queue_id":3,"flag":7}',
    )
    assert (status, answer) == (200, receipt("orders", 0).document())
    topic, (message,) = world.gateway.sent[0]
    assert topic == "orders"
    assert message == new_messages.NewMessage(b"hi", "T", ("a", "b"), {"p": "q"}, 3, 7)
    status, answer = await world.ask(
        "POST", TOPIC + "/messages", b'[{"body":"x"},{"body":"AAE=","body_encoding":"base64"}]'
    )
    assert (status, answer["stored"], answer["complete"]) == (200, 2, True)
    assert [message.body for message in world.gateway.sent[1][1]] == [b"x", b"\x00\x01"]


async def test_a_request_without_token_and_not_from_the_socket_goes_to_django_whatever_its_cookie():
    world = World()
    await world.ask(
        "POST", TOPIC + "/messages", b'{"body":"x"}', token=None, headers=[(b"cookie", b"sessionid=1")]
    )
    assert world.behind == [TOPIC + "/messages"]
    assert world.gateway.sent == []


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api/v1/topics",
        TOPIC,
        TOPIC + "/queues/x/messages",
        TOPIC + "/messages/1",
        "/api/v1/topics/a/b/messages",
    ],
)
async def test_every_other_address_passes_by(path):
    world = World()
    await world.ask("GET", path)
    assert world.behind == [path]


async def test_the_local_socket_needs_no_token():
    world = World()
    status, _ = await world.ask("POST", TOPIC + "/messages", b'{"body":"x"}', token=None, local=True)
    assert status == 200


async def test_a_wrong_an_expired_and_a_revoked_token_are_refused_here():
    world = World()
    assert (await world.ask("GET", TOPIC + "/queues/0/messages", token="mq_bad"))[1]["code"] == "unauthorized"
    world.tokens.replace({_digest(GOOD): (Caller("token:x", "operator"), 1_000_001)})
    assert (await world.ask("GET", TOPIC + "/queues/0/messages", token=GOOD))[0] == 200
    world.now = 1_001.0
    assert (await world.ask("GET", TOPIC + "/queues/0/messages", token=GOOD))[0] == 401
    world.now = 999.0
    world.tokens.replace({})
    assert (await world.ask("GET", TOPIC + "/queues/0/messages", token=GOOD))[0] == 401
    assert world.behind == []


@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("POST", "/api/v1/topics/orders/messages", "none"),
        ("GET", "/api/v1/topics/orders/queues/1/messages", "limit, offset, wait_ms"),
    ],
)
async def test_a_parameter_that_a_route_does_not_have_is_refused_by_its_name(method, path, takes):
    world = World()
    for query, code in (
        (b"queue=1", 400),
        (b"queue=", 400),
        (b"&".join(b"a%d=1" % n for n in range(11)), 400),
    ):
        status, document = await world.ask(method, path, b'{"body": "x"}', query=query)
        assert status == code and document["code"] == "invalid"
    status, document = await world.ask(method, path, b'{"body": "x"}', query=b"queue=1")
    assert document["detail"] == f"unknown query parameter 'queue'; this route takes {takes}"


async def test_a_parameter_is_given_once():
    world = World()
    status, document = await world.ask(
        "GET", TOPIC + "/queues/1/messages", query=b"offset=1&limit=2&offset=3"
    )
    assert (status, document["detail"]) == (
        400,
        "query parameter 'offset' is given more than once; give it one value",
    )
    assert world.read == 0


async def test_a_viewer_may_read_and_not_send():
    world = World()
    assert (await world.ask("GET", TOPIC + "/queues/0/messages", token=f"{GOOD}_viewer"))[0] == 200
    status, answer = await world.ask("POST", TOPIC + "/messages", b'{"body":"x"}', token=f"{GOOD}_viewer")
    assert (status, answer["code"]) == (403, "forbidden")
    assert world.read == 0


async def test_a_send_with_an_idempotency_key_is_stored_once():
    world = World()
    headers = [(b"idempotency-key", b"k-1")]
    for _ in range(2):
        status, document = await world.ask("POST", f"{TOPIC}/messages", b'{"body": "x"}', headers=headers)
        assert (status, document["queue_offset"]) == (200, "0")
    assert len(world.gateway.sent) == 1
    status, document = await world.ask("POST", f"{TOPIC}/messages", b'{"body": "y"}', headers=headers)
    assert (status, document["code"]) == (422, "key_reused")
    status, document = await world.ask(
        "POST", f"{TOPIC}/messages", b'{"body": "y"}', headers=[(b"idempotency-key", b"x" * 256)]
    )
    assert (status, document["code"]) == (400, "invalid")
    assert len(world.gateway.sent) == 1


async def test_a_body_that_announces_too_much_is_refused_before_it_is_read():
    world = World()
    status, answer = await world.ask(
        "POST", TOPIC + "/messages", b"x", headers=[(b"content-length", b"99999999")]
    )
    assert (status, answer["code"]) == (413, "too_large")
    assert world.read == 0


async def test_a_body_that_announces_nothing_is_cut_at_the_bound():
    world = World()
    chunk = b"x" * (http.MAX_BODY_BYTES // 4 + 1)
    status, answer = await world.ask("POST", TOPIC + "/messages", chunks=[chunk] * 100)
    assert (status, answer["code"]) == (413, "too_large")
    assert world.read == 4


async def test_all_bodies_together_are_bounded_and_the_bound_is_given_back(monkeypatch):
    monkeypatch.setattr(http, "MAX_BODIES_BYTES", 100)
    world = World()
    assert (
        await world.ask("POST", TOPIC + "/messages", b'{"body":"x"}', headers=[(b"content-length", b"101")])
    )[1]["code"] == "busy"
    told = {
        "value": 101,
        "limit": 100,
        "who": "token:operator",
        "said": "0 MiB of requests are under way",
        "is_send": True,
    }
    assert world.gateway.refused == [("REST bodies under way", told)]
    for _ in range(20):
        assert (await world.ask("POST", TOPIC + "/messages", b'{"body":"x"}'))[0] == 200
        assert (await world.ask("POST", TOPIC + "/messages", b"no json at all"))[0] == 400


async def test_a_body_that_does_not_come_ends_with_a_timeout():
    world = World(body_seconds=0.01)
    status, answer = await world.ask("POST", TOPIC + "/messages", chunks=[b"{", "stall", b""])
    assert (status, answer["code"]) == (504, "timeout")


async def test_who_goes_away_in_the_middle_gets_no_answer_and_stores_nothing():
    world = World()
    assert await world.ask("POST", TOPIC + "/messages", chunks=[b"{", None]) == (None, None)
    assert world.gateway.sent == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", None),
        (b"5", None),
        (b'{"body":1}', "body"),
        (b'{"tag":"x"}', "body"),
        (b'{"body":"x","tag":"a\\u0001"}', "tag"),
        (b'{"body":"x","keys":["a b"]}', "keys"),
        (b'{"body":"x","properties":{"a":1}}', "properties"),
        (b'{"body":"x","properties":{"a\\u0002":"b"}}', "properties"),
        (b'{"body":"x","queue_id":-1}', "queue_id"),
        (b'{"body":"x","queue_id":true}', "queue_id"),
        (b'{"body":"x","flag":99999999999}', "flag"),
        (b'{"body":"!","body_encoding":"base64"}', "body"),
        (b'{"body":"x","colour":"red"}', "colour"),
        (
            b'{"body":"x","properties":{'
            + b",".join(b'"%d":"v"' % number for number in range(new_messages.MAX_PROPERTIES + 1))
            + b"}}",
            "properties",
        ),
        (b'{"' + b'":1,"'.join(b"%d" % number for number in range(40_000)) + b'":1}', "0"),
        (b"[" * 5000, None),
        (b'{"body":NaN}', None),
        (b"\xff", None),
    ],
)
async def test_wrong_messages_are_refused_with_the_field_that_is_wrong(body, field):
    world = World()
    status, answer = await world.ask("POST", TOPIC + "/messages", body)
    assert status in (400, 422)
    if field:
        assert (
            answer["errors"][0]["field"] == field and len(answer["errors"]) <= new_messages.MAX_WRONG_FIELDS
        )
    assert world.gateway.sent == []


async def test_a_large_body_is_read_in_a_thread_and_a_short_one_is_not(monkeypatch):
    read, threads = new_messages.read_messages, []
    monkeypatch.setattr(
        http,
        "read_messages",
        lambda body: (threads.append(threading.current_thread()), read(body))[1],
    )
    world = World()
    for length in (10, http.MAX_BYTES_ON_LOOP):
        assert (await world.ask("POST", TOPIC + "/messages", b'{"body":"' + b"x" * length + b'"}'))[0] == 200
    assert (
        threads[0] is threading.current_thread() is not threads[1]
        and len(world.gateway.sent[1][1][0].body) == http.MAX_BYTES_ON_LOOP
    )


MIB = 1 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * (MIB // 3) + b"[]]",
        b"[" + b"{}," * (MIB // 3) + b"{}]",
        b"[" + b"1," * (MIB // 2) + b"1]",
        b"{" + b",".join(b'"%x":1' % number for number in range(MIB // 10)) + b"}",
        b'[{"body":"' + b"\\n" * 200_000 + b'"},' + b"[]," * 60_000 + b"1]",
    ],
    ids=["lists", "objects", "numbers", "names", "behind a long text"],
)
async def test_a_body_of_very_many_values_is_refused_before_they_are_read(body, monkeypatch):
    monkeypatch.setattr(new_messages.orjson, "loads", lambda body: pytest.fail("it was read"))
    world = World()
    status, answer = await world.ask("POST", TOPIC + "/messages", body)
    assert (status, answer["code"]) == (413, "too_large") and "50000 values" in answer["detail"]


@pytest.mark.parametrize(
    "text",
    [
        ",[{" * 100_000,
        '\\"' * 100_000 + ",[{" * 50_000,
        "\\" * 200_001 + ",[{" * 50_000,
        "x" * 300_000 + "," * 100_000,
    ],
)
def test_what_stands_in_texts_is_no_value(text):
    body = json.dumps([{"body": text, "tag": "a"}, {"body": ","}]).encode()
    assert [message.body.decode() for message in new_messages.read_messages(body)[0]] == [text, ","]


@pytest.mark.parametrize(
    "query",
    [
        b"offset=-1",
        b"offset=x",
        b"limit=0",
        b"limit=101",
        b"wait_ms=30001",
        b"offset=9223372036854775808",
        b"colour=red",
    ],
)
async def test_wrong_parameters_of_a_pull_are_refused(query):
    world = World()
    status, answer = await world.ask("GET", TOPIC + "/queues/0/messages", query=query)
    assert (status, answer["code"]) == (400, "invalid")


async def test_a_pull_reaches_the_gateway_with_its_parameters():
    world = World()
    await world.ask(
        "GET", TOPIC + "/queues/5/messages", query=b"offset=9223372036854775807&limit=7&wait_ms=30000"
    )
    await world.ask("GET", TOPIC + "/queues/0/messages")
    assert world.gateway.pulled == [("orders", 5, (1 << 63) - 1, 7, 30_000), ("orders", 0, None, 32, 0)]


async def test_before_the_broker_is_up_and_for_unknown_topics_the_answer_says_so():
    world = World()
    assert (await world.ask("POST", "/api/v1/topics/nowhere/messages", b'{"body":"x"}'))[0] == 404
    world.up = False
    assert (await world.ask("POST", TOPIC + "/messages", b'{"body":"x"}'))[1]["code"] == "starting"


async def test_an_error_inside_tells_nothing_about_the_inside(caplog):
    world = World()

    async def fail(*_):
        raise OSError(5, "/secret/path")

    world.gateway.pull = fail
    status, answer = await world.ask("GET", TOPIC + "/queues/0/messages")
    assert (status, answer["code"]) == (500, "internal")
    assert "secret" not in json.dumps(answer)
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keys", 0),
        ("keys", {}),
        ("keys", False),
        ("tag", []),
        ("tag", 0),
        ("tag", False),
        ("properties", 0),
        ("properties", []),
        ("properties", ""),
    ],
)
async def test_an_empty_value_of_another_type_is_refused_by_its_name(field, value):
    world = World()
    status, answer = await world.ask(
        "POST", TOPIC + "/messages", json.dumps({"body": "x", field: value}).encode()
    )
    assert (status, answer["code"]) == (422, "invalid_fields") and [
        wrong["field"] for wrong in answer["errors"]
    ] == [field]
    assert world.gateway.sent == []


async def test_null_is_as_a_field_that_is_left_out():
    world = World()
    status, _ = await world.ask(
        "POST",
        TOPIC + "/messages",
        b'[{"body":"x","tag":null,"keys":null,"properties":null,"queue_id":null},{"body":"x","keys":""}]',
    )
    assert status == 200 and world.gateway.sent[0][1] == [new_messages.NewMessage(b"x")] * 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"body":"x","body":"y"}',
        b'{"body":"x","bo\\u0064y":"y"}',
        b'{"body":"x","properties":{"a":"1","a":"2"}}',
        b'{"body":"x","tag":null,"tag":"t"}',
        b'[{"body":"a:b"},{"body":"x","flag":1,"flag":2}]',
        b'{"body":"' + b":" * 200_000 + b'\\"","tag":"a","tag":"b"}',
        b'{"body":":\\u003a:","tag":"a:","tag":"b","keys":["k:"],"properties":{"p:":"v:"}}',
        b'{"body":"\\u003a","keys":"a:","keys":"b"}',
    ],
)
async def test_a_message_that_gives_a_field_twice_is_refused(body):
    world = World()
    status, answer = await world.ask("POST", TOPIC + "/messages", body)
    assert (status, answer["code"]) == (422, "invalid_fields") and "more than once" in answer["detail"]
    assert world.gateway.sent == []


@pytest.mark.parametrize(
    "body",
    ['{"body": "a:b"}', '{"a": {"b": [1, 2]}, "c\\": ": "\\\\"}', ":" * 100_000 + '"' + "\\:" * 50_000],
)
async def test_colons_within_texts_are_no_names(body):
    world = World()
    status, _ = await world.ask(
        "POST",
        TOPIC + "/messages",
        json.dumps({"body": body, "properties": {"a:b": "c:d", '":"': '"a":"b"'}}).encode(),
    )
    assert status == 200 and world.gateway.sent[0][1] == [
        new_messages.NewMessage(body.encode(), properties={"a:b": "c:d", '":"': '"a":"b"'})
    ]
