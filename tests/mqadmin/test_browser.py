"""In a real browser: the numbers move, nothing is refused by the page's own policy, and it fits a phone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mqadmin.test_payloads import MESSAGES
from tests.mqadmin.test_payloads import PAGES as PAGES_WITH_PAYLOADS
from tests.mqadmin.test_units import CASES
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.fake_runs import CHECKS, RUNS

pytestmark = pytest.mark.browser
# fmt: skip
PAGES = (
    "/",
    "/topics/",
    "/topics/orders/",
    "/messages/?by=offset&topic=orders&queue=0&offset=5",
    "/messages/40000/",
    "/messages/waiting/",
    "/messages/44000/",
    "/messages/45000/",
    "/messages/48000/",
    "/groups/",
    "/groups/billing/",
    "/store/",
    "/store/dispatch/",
    "/store/write/",
    "/store/index/?topic=orders&key=order-41040&chains=1",
    "/store/disk/",
    "/store/disk/?retention_hours=12",
    "/store/recovery/",
    "/store/lab/",
    "/store/cache/",
    "/store/layout/?topic=orders",
    "/store/bytes/?offset=237",
    "/store/bytes/?kind=consumequeue&topic=TopicX&queue=1",
    "/store/bytes/?kind=index&slot=0",
    "/store/bytes/?offset=30000",
    *(f"/store/doctor/{run}/" for run in CHECKS),
    "/jobs/",
    "/access/?user=billing&action=Pub&resource=Topic:orders",
    "/access/users/billing?action=Pub&resource=Topic:pay1&address=10.0.0.8",
    "/access/dashboard/?caller=user:admin&right=send",
    "/password/",
    "/glossary/",
    "/pipeline/",
    *(f"/pipeline/runs/{run}/" for run in RUNS),
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A dashboard over invented, moving data, in a process of its own."""
    yield from _dashboard(tmp_path_factory.mktemp("data"), "running")


@pytest.fixture(scope="module")
def hostile_address(tmp_path_factory):
    """One over messages, clients and files that try to run in the browser."""
    yield from _dashboard(tmp_path_factory.mktemp("data"), "hostile")


def _dashboard(directory: Path, state: str) -> Iterator[str]:
    environment = os.environ | {
        "BROKER_DATA_DIR": str(directory),
        "DJANGO_SETTINGS_MODULE": "tests.support.dashboard_settings",
    }
    command = [sys.executable, "-m", "tests.support.run_fake_dashboard", "0", state]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2]
    ) as process:
        line = process.stdout.readline()
        assert line.startswith("READY "), line
        yield line.split()[1].rstrip("/")
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine (make deps installs one)")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def state(browser, address):
    """The cookies of a user who logged in by the form."""
    context = browser.new_context()
    page = context.new_page()
    _log_in(page, address)
    page.wait_for_selector("#log-position")
    yield context.storage_state()
    context.close()


def _log_in(page, address: str) -> None:
    page.goto(f"{address}/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", "admin-password")
    page.click("button[type=submit]")


@pytest.fixture
def page(browser, state, request):
    width = getattr(request, "param", 1280)
    context = browser.new_context(viewport={"width": width, "height": 860}, storage_state=state)
    page = context.new_page()
    page.complaints = []
    page.on(
        "console",
        lambda message: (
            page.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    context.close()


def test_the_log_position_moves_by_itself(page, address):
    page.goto(f"{address}/")
    before = page.inner_text("#log-position")
    page.wait_for_function(
        "before => document.querySelector('#log-position').textContent !== before", arg=before, timeout=5_000
    )
    after = page.inner_text("#log-position")
    assert int(after.replace(",", "")) > int(before.replace(",", ""))
    assert page.inner_text("[data-live]") == "live"
    page.wait_for_selector("canvas")
    assert page.complaints == []


@pytest.mark.parametrize(
    ("path", "moving"),
    [
        ("/store/dispatch/", ["race.end", "race.sinks.flushed.lag_bytes", "restart.rescan_bytes"]),
        ("/store/write/", ["groups", "group_messages.places.lately.1", "whole.places.lately.4"]),
    ],
)
def test_the_way_of_a_send_moves_by_itself(page, address, path, moving):
    page.goto(f"{address}{path}")
    for data_path in moving:
        select = f"[data-path='{data_path}']"
        before = page.locator(select).first.inner_text()
        page.wait_for_function(
            "([select, before]) => document.querySelector(select).textContent !== before",
            arg=[select, before],
            timeout=8_000,
        )
    if path == "/store/dispatch/":
        page.wait_for_selector("canvas")
    page.click("summary >> nth=0")
    assert page.locator(".teach p").first.is_visible()
    assert page.complaints == []


def test_a_page_is_loaded_again_for_another_state_of_the_broker_and_of_nothing_else(page, address):
    sockets = []
    page.route_web_socket("**/ws/v1/", lambda socket: sockets.append(socket))
    page.goto(f"{address}/store/dispatch/")
    page.evaluate("window.isFirst = true")

    def say(stream: str, state: str) -> None:
        sockets[-1].send(
            json.dumps(
                [
                    {
                        "stream": stream,
                        "name": "",
                        "kind": "snapshot",
                        "data": {"state": state, "sentence": f"{stream} is {state}"},
                    }
                ]
            )
        )

    say("store.exposure", "crashed")
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    assert page.evaluate("window.isFirst") is True
    say("state", "closed")
    page.wait_for_function("() => window.isFirst === undefined")


def test_a_page_whose_stream_is_slow_stays_live_until_the_broker_sends_nothing(page, address):
    sockets, light = [], "document.querySelector('[data-live]').textContent"
    page.clock.install()
    page.route_web_socket("**/ws/v1/", lambda socket: sockets.append(socket))
    page.goto(f"{address}/store/disk/")
    assert page.evaluate("[...new Set(live.sections.map((one) => one.dataset.stream))]") == ["part"]
    for _ in range(12):
        sockets[-1].send(
            json.dumps(
                [
                    {
                        "stream": "state",
                        "name": "",
                        "kind": "snapshot",
                        "data": {"state": "running", "sentence": "Everything runs."},
                    }
                ]
            )
        )
        page.wait_for_function(f"() => {light} === 'live'")
        page.clock.run_for(1_000)
        assert page.evaluate(light) == "live"
    page.clock.run_for(3_000)
    assert page.evaluate(light) == "no answer for a while"


def _frame(stream: str, name: str, data: dict, kind: str = "snapshot") -> str:
    return json.dumps([{"stream": stream, "name": name, "kind": kind, "data": data}])


def test_a_page_without_news_does_not_go_on_to_say_that_the_broker_runs(page, address):
    """By a connection that ends, that falls silent, and one that never opens; also on a page that watches
    nothing."""
    sockets, broker = [], "document.querySelector('[data-broker-state]')"
    running = _frame("state", "", {"state": "running", "sentence": "Everything runs."})

    def connected() -> None:
        sockets[-1].send(running)
        page.wait_for_function(
            f"() => {broker}.textContent === 'running' && {broker}.classList.contains('good') && "
            f"!document.body.classList.contains('stale')"
        )

    def unknown() -> None:
        page.wait_for_function(
            f"() => {broker}.textContent === 'state unknown' && !{broker}.classList.contains('good')"
        )
        assert "Its last state was “running”" in page.locator("[data-broker-state]").get_attribute("title")
        assert page.evaluate("document.body.classList.contains('stale')")

    page.clock.install()
    page.route_web_socket("**/ws/v1/", lambda socket: sockets.append(socket))
    for path in ("/", "/messages/", "/store/disk/"):
        page.goto(f"{address}{path}")
        connected()
        page.clock.run_for(4_000)
        unknown()
        connected()
        count = len(sockets)
        sockets[-1].close()
        unknown()
        page.clock.run_for(600)
        while len(sockets) == count:
            page.evaluate("0")
        connected()
    page.goto(f"{address}/groups/")
    page.clock.run_for(4_000)
    unknown()


def test_a_page_without_news_does_not_go_on_to_say_how_the_broker_is(page, address):
    sockets, running = [], _frame("state", "", {"state": "running", "sentence": "Everything runs."})
    page.clock.install()
    page.route_web_socket("**/ws/v1/", lambda socket: sockets.append(socket))
    page.goto(address)
    sockets[-1].send(running)
    good = {"severity": "good", "sentence": "Everything runs.", "notices": [], "html": "<li>No notice</li>"}
    sockets[-1].send(_frame("condition", "", good))
    page.wait_for_function(
        "() => document.getElementById('condition').textContent === 'good Everything runs.'"
    )
    assert page.evaluate("document.getElementById('notices').textContent") == "No notice"
    page.clock.run_for(4_000)
    lost = (
        "unknown The condition is unknown now: the broker does not answer this page. Its last answer was "
        "“Everything runs.”"
    )
    page.wait_for_function("said => document.getElementById('condition').textContent === said", arg=lost)
    assert page.evaluate("document.getElementById('condition').firstElementChild.className") == "pill"
    sockets[-1].send(running)
    page.wait_for_function(
        "() => document.getElementById('condition').textContent === 'good Everything runs.'"
    )
    assert page.evaluate("document.getElementById('condition').firstElementChild.className") == "pill good"


def test_lag_bars_are_measured_by_the_largest_lag_of_now(page, address):
    sockets = []
    page.route_web_socket("**/ws/v1/", lambda socket: sockets.append(socket))
    page.goto(f"{address}/groups/billing/")
    bars = page.locator("rect[data-width^='queues.']")
    queues = [{"lag": lag} for lag in (1_000_000, 250_000, 0, None)]
    sockets[-1].send(_frame("group", "billing", {"largest_lag": 1_000_000, "queues": queues}))
    page.wait_for_function(
        "() => document.querySelector('rect[data-width^=\"queues.1.\"]').getAttribute('width') === '25.000%'"
    )
    assert [bars.nth(n).get_attribute("width") for n in range(4)] == [
        "100.000%",
        "25.000%",
        "0.000%",
        "0.000%",
    ]


def test_figures_about_clients_and_readers_move_and_a_failed_stream_says_so(page, address):
    sockets = []
    page.route_web_socket("**/ws/v1/", lambda socket: sockets.append(socket))
    page.goto(f"{address}/groups/billing/")
    member = {
        "client_id": "another@1",
        "address": "10.0.0.9:1",
        "language": "GO",
        "version": "V5",
        "heartbeat_ms": 0,
    }
    sockets[-1].send(
        _frame(
            "group",
            "billing",
            {
                "clients": 0,
                "consume_enable": False,
                "members": [member | {"heartbeat_ms": page.evaluate("Date.now()")}, member],
                "dead": {"messages": 0},
                "retry_max_times": 3,
            },
        )
    )
    page.wait_for_function(
        "() => document.querySelector('[data-path=\"members.0.client_id\"]').textContent === 'another@1'"
    )
    assert page.inner_text("[data-path='members.0.heartbeat_ms']").endswith("ms ago")
    assert (
        page.inner_text(".lead").strip()
        == "Consuming is switched off for this group. No client of this group is connected."
    )
    assert "given up after 3 retries" in page.inner_text("dl.tiles")
    sockets[-1].send(
        _frame("group", "billing", {"code": "failed", "detail": "a file could not be read"}, "error")
    )
    page.wait_for_function(
        "() => document.querySelector('section[data-name=billing]').dataset.why.includes('a file "
        "could not be read')"
    )
    assert "a file could not be read" in page.evaluate(
        "getComputedStyle(document.querySelector('section[data-name=billing]'), '::before').content"
    )
    page.goto(f"{address}/topics/orders/")
    sockets[-1].send(
        _frame(
            "topic",
            "orders",
            {
                "readers": [{"group": "late", "lag": 77_001, "clients": 3}] * 2,
                "write_queues": 9,
                "queues": [],
            },
        )
    )
    page.wait_for_function(
        "() => document.querySelector('[data-path=\"readers.0.lag\"]').textContent === '77,001'"
    )
    assert page.locator("[data-path='readers.0.group']").get_attribute("href") == "/topics/late/".replace(
        "topics", "groups"
    )


def test_the_server_says_each_second_that_it_lives_whatever_a_page_watches(page, address):
    heard = []
    page.on(
        "websocket",
        lambda socket: socket.on(
            "framereceived", lambda frame: heard.extend(one["stream"] for one in json.loads(frame))
        ),
    )
    with page.expect_event("websocket") as socket:
        page.goto(f"{address}/store/disk/")
    while heard.count("state") < 3:
        socket.value.wait_for_event("framereceived", timeout=5_000)
    assert page.inner_text("[data-live]") == "live"


@pytest.mark.parametrize("page", [1280, 390], indirect=True)
def test_every_page_fits_and_nothing_complains(page, address):
    for path in PAGES:
        page.goto(f"{address}{path}")
        page.wait_for_load_state("load")
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider == 0, f"{path} is {wider} pixels wider than its window"
        assert page.complaints == [], path


# Words without a hyphen, of which letters stand in two lines
_BROKEN_WORDS = """() => {
  const found = [], walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    for (const word of walk.currentNode.data.matchAll(/[^\\s-]+/g)) {
      const range = document.createRange();
      range.setStart(walk.currentNode, word.index);
      range.setEnd(walk.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) found.push(word[0]);
    }
  }
  return found;
}"""


@pytest.mark.parametrize("page", [390, 345], indirect=True)
def test_no_word_of_the_access_pages_is_broken_on_a_phone(page, address):
    page.goto(f"{address}/access/")
    page.click("summary:has-text('New user')")
    page.fill("#name", "made-by-a-person")
    page.fill("#password", "a-long-password-1")
    with page.expect_navigation():
        page.click("button:has-text('Create')")
    page.goto(f"{address}/access/")
    assert "create user made-by-a-person" in page.inner_text("main")
    for path in PAGES:
        if path.startswith("/access/"):
            page.goto(f"{address}{path}")
            page.wait_for_load_state("load")
            assert page.evaluate(_BROKEN_WORDS) == [], path


def test_the_doctors_page_goes_on_by_itself_and_leads_to_the_bytes(page, address):
    page.goto(f"{address}/store/doctor/")
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    assert "log, 3 found" in page.inner_text("#check")
    page.goto(f"{address}/store/doctor/check-bad/")
    assert page.locator("#findings tbody tr").count() == 8 and page.locator("#plan tbody tr").count() == 4
    assert (
        page.locator("#findings a").first.get_attribute("href")
        == "/store/bytes/?kind=commitlog&offset=67150084"
    )
    page.click("summary:has-text('What is this?')")
    assert "Everything else" in page.inner_text("main")
    assert page.complaints == []


def test_nothing_is_asked_of_other_hosts(page, address):
    asked = set()
    page.on("request", lambda request: asked.add(request.url.split("/")[2]))
    for path in ("/", "/store/", "/messages/40000/"):
        page.goto(f"{address}{path}")
    assert asked == {address.split("/")[2]}


def test_the_script_writes_numbers_as_the_server_does(page, address):
    page.goto(f"{address}/")
    for name, value, text in CASES:
        assert page.evaluate("([name, value]) => live.format[name](value)", [name, value]) == text, (
            name,
            value,
        )


def test_the_script_shows_and_hides_by_a_value(page, address):
    page.goto(f"{address}/store/write/")
    shown = page.evaluate("""() => {
        const section = document.createElement("section");
        section.innerHTML = '<p data-when="a.count"></p><p data-unless="a.count"></p>';
        return [{a: {count: 0}}, {a: {count: 3}}, {}].map((data) => { live.write(section, data); return [...section.children].map((p) => !p.hidden); });
    }""")
    assert shown == [[False, True], [True, False], [False, True]]


def test_the_theme_that_was_chosen_stays(page, address):
    page.goto(f"{address}/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("[data-theme-toggle]")
    assert page.evaluate(ground) != light
    page.goto(f"{address}/topics/")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_page_of_the_rest_interface_follows_the_theme(page, address):
    page.goto(f"{address}/api/v1/docs")
    page.wait_for_selector(".opblock")
    grounds = (
        "() => ['body', '.swagger-ui', '.opblock-get'].map((one) => "
        "getComputedStyle(document.querySelector(one)).backgroundColor)"
    )
    light = page.evaluate(grounds)
    page.click("[data-theme-toggle]")
    dark = page.evaluate(grounds)
    assert all(before != after for before, after in zip(light, dark, strict=True))
    page.goto(f"{address}/")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.goto(f"{address}/api/v1/docs")
    page.wait_for_selector(".opblock")
    assert page.evaluate(grounds) == dark
    assert page.complaints == []


# Texts whose contrast with their background is below WCAG's AA: 4.5, or 3 for large ones.
PALE = """() => {
    const parse = (colour) => { const parts = colour.match(/[\\d.]+/g).map(Number); return parts.length > 3 ? parts : [...parts, 1]; };
    const over = (top, under) => [0, 1, 2].map((n) => top[n] * top[3] + under[n] * (1 - top[3])).concat(1);
    const behind = (element) => {
        const layers = [];
        for (; element; element = element.parentElement) layers.push(parse(getComputedStyle(element).backgroundColor));
        return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
    };
    const light = (colour) => {
        const [red, green, blue] = colour.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const pale = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement, style = getComputedStyle(element);
        if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || ["SCRIPT", "OPTION"].includes(element.tagName)) continue;
        const ground = behind(element), pair = [light(over(parse(style.color), ground)), light(ground)].sort((a, b) => b - a);
        const size = parseFloat(style.fontSize), wanted = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
        const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
        if (contrast < wanted) pale.push(`${contrast.toFixed(2)} ${element.tagName}.${element.className} ${walker.currentNode.textContent.trim().slice(0, 40)}`);
    }
    return pale;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_stands_out_from_what_lies_behind_it(page, address, theme):
    page.emulate_media(color_scheme=theme)
    for path in (*PAGES, "/api/v1/docs"):
        page.goto(f"{address}{path}")
        if path == "/api/v1/docs":
            page.wait_for_selector(".opblock")
        assert page.evaluate(PALE) == [], path


@pytest.mark.parametrize("page", [390], indirect=True)
def test_a_name_as_long_as_may_be_fits_a_phone(page, address):
    page.goto(f"{address}/messages/40000/")
    page.evaluate(
        "document.querySelectorAll('.crumbs a, h1, .facts a').forEach((one) => { one.textContent = "
        "'x'.repeat(127); })"
    )
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_a_hidden_tab_asks_for_nothing_and_a_shown_one_goes_on(page, address):
    said = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: said.append(frame)))
    page.goto(f"{address}/")
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); "
        "dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'paused'")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: false}); dispatchEvent(new "
        "Event('visibilitychange'))"
    )
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    assert [frame for frame in said if "pause" in frame or "resume" in frame] == [
        '{"kind":"pause"}',
        '{"kind":"resume"}',
    ]


def test_a_field_and_its_bytes_light_up_together(page, address):
    page.goto(f"{address}/messages/40000/")
    page.hover("tr[data-field=topic]")
    assert page.locator(".run.lit[data-field=topic]").count() >= 1
    assert page.locator(".run.lit:not([data-field=topic])").count() == 0


def test_the_journey_of_a_message_moves_by_itself(page, address):
    page.goto(f"{address}/messages/40000/")
    position = (
        "[...document.querySelectorAll('.journey tr')].find((row) => row.innerText.includes('Read by "
        "billing')).innerText"
    )
    before = page.evaluate(position)
    page.wait_for_function(f"before => {position} !== before", arg=before, timeout=8_000)
    assert page.inner_text("[data-live]") == "live"
    page.click("text=Its page")
    page.wait_for_url("**/messages/41000/")
    assert page.complaints == []


def test_bytes_are_stepped_through_by_keyboard_and_pointers_lead_around(page, address):
    page.goto(f"{address}/store/bytes/?kind=consumequeue&topic=TopicX&queue=1&unit=0")
    page.focus("[data-hex]")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("[data-description]:not(tr)").startswith(
        "log offset = 0 — where the message's record begins"
    )
    assert page.locator("tr.lit").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url("**/store/bytes/?kind=commitlog&offset=0")
    page.hover(".run[data-field=body_crc]")
    assert "(right)" in page.inner_text("[data-description]:not(tr)")
    page.click("text=Index entry of its key k1")
    page.wait_for_url("**/store/bytes/?kind=index&name=*&entry=2")
    page.focus("[data-hex]")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("[data-description]:not(tr)").startswith("log offset = 0 — ")
    page.keyboard.press("Enter")
    page.wait_for_url("**/store/bytes/?kind=commitlog&offset=0")
    page.select_option("#kind", "index")
    page.fill("#slot", "304")
    page.click("text=Show")
    page.wait_for_url("**slot=304**")
    assert "304" in page.inner_text("table.fields tbody tr")
    assert page.complaints == []


def test_a_search_field_narrows_the_table_as_one_types(page, address):
    page.goto(f"{address}/topics/")
    page.fill("input[name=q]", "pay")
    page.wait_for_function("() => document.querySelectorAll('#table tbody tr').length === 1")
    assert page.inner_text("#table tbody tr td.name") == "payments"
    # A frame that came while one typed may have narrowed the table before the search itself, which alone
    # moves the address.
    page.wait_for_url("**/topics/?*q=pay*")
    # The table is fetched again as the numbers move, and stays as narrow as it was.
    with page.expect_response(lambda response: "q=pay" in response.url and "/topics/" in response.url):
        pass
    assert page.inner_text("#table tbody tr td.name") == "payments"


@pytest.mark.parametrize("path", ["/topics/", "/groups/"])
def test_the_lists_move_by_themselves_and_say_so(page, address, path):
    page.goto(f"{address}{path}")
    with page.expect_response(
        lambda response: f"{path}?" in response.url and response.request.headers.get("hx-request") == "true"
    ):
        pass
    assert page.inner_text("[data-live]") == "live"
    assert page.complaints == []


def test_what_is_reckoned_from_files_is_fetched_again_when_a_frame_brings_news(page, address):
    page.goto(f"{address}/groups/billing/")
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    news = (
        "() => { const section = live.sections.find((one) => one.dataset.stream === 'group.timeline'); "
        "for (const n of [1, 2]) live.write(section, { n }); }"
    )
    with page.expect_response(
        lambda response: (
            response.url.endswith("/groups/billing/timeline")
            and response.request.headers.get("hx-request") == "true"
        )
    ) as answer:
        page.evaluate(news)
    assert answer.value.status == 200
    page.wait_for_function("() => document.querySelector(`[data-stream='group.timeline'] svg`)")
    assert page.complaints == []


@pytest.mark.parametrize(
    "path",
    [
        "/store/disk/",
        "/store/disk/?retention_hours=12",
        "/store/layout/?topic=orders",
        "/store/index/?chains=1",
        "/store/cache/",
    ],
)
def test_what_the_server_draws_for_all_comes_by_the_socket(page, address, path):
    fetched = []
    page.on(
        "request", lambda request: fetched.append(request.url) if request.headers.get("hx-request") else None
    )
    page.goto(f"{address}{path}")
    page.wait_for_function(
        "() => { const part = document.querySelector('[data-html]'); return part.shown && "
        "part.querySelector('svg'); }"
    )
    # The next one takes the place of all that stood there.
    said = page.evaluate(
        "() => { const section = live.sections.find((one) => one.dataset.stream === 'part'); "
        "live.write(section, { html: '<p>another</p>' }); return "
        "section.querySelector('[data-html]').innerText; }"
    )
    assert said == "another"
    assert fetched == [] and page.complaints == []


def test_a_name_that_moves_takes_its_link_along(page, address):
    page.goto(f"{address}/")
    page.wait_for_selector("canvas")
    # Read in the same moment as it is written: the next frame puts what is true in its place.
    text, address_of_link, rate, group = page.evaluate(
        """() => {
            const section = live.sections.find((section) => section.querySelector("[data-rows=top_topics]"));
            const topic = {name: "%RETRY%a", in_per_s: 1, out_per_s: null};
            live.write(section, {top_topics: [topic, topic, topic], worst_lag: null});
            const at = (path) => section.querySelector(`[data-path='${path}']`);
            return [at("top_topics.0.name").innerText, at("top_topics.0.name").getAttribute("href"), at("top_topics.0.out_per_s").innerText, at("worst_lag.group").innerText];
        }"""
    )
    assert (text, address_of_link) == ("%RETRY%a", "/topics/%25RETRY%25a/")
    assert (rate, group) == ("unknown", "no group reads yet")


def test_the_runs_of_the_pipeline_are_fetched_again_when_the_page_is_behind_and_only_then(page, address):
    page.goto(f"{address}/pipeline/runs/running/")
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    page.add_init_script(
        "addEventListener('DOMContentLoaded', () => { "
        "document.querySelector('[data-renew]').dataset.renew = 'another mark'; })"
    )
    for path in ("/pipeline/", "/pipeline/runs/running/"):
        with page.expect_response(
            lambda response, path=path: (
                response.url.endswith(path) and response.request.headers.get("hx-request") == "true"
            )
        ):
            page.goto(f"{address}{path}")
    assert page.locator(".cells .done").count() == 31 and page.locator(".cells i").count() == 86
    assert page.complaints == []


def test_a_result_is_drawn_and_its_log_comes_when_it_is_asked_for(page, address):
    page.goto(f"{address}/pipeline/runs/statistics/")
    page.wait_for_selector("[data-series] canvas")
    page.click("details summary")
    page.wait_for_function("() => document.querySelector('#log').textContent.includes('starting Spark')")
    assert page.complaints == []


def test_the_strips_of_the_page_cache_show_who_is_where(page, address):
    page.goto(f"{address}/store/cache/")
    page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
    assert (
        page.locator("svg.strip rect.tone5").count() > 20
        and page.locator("svg.strip .mark.reads").count() == 2
    )
    before = page.inner_text("[data-path='positions.wrote']")
    page.wait_for_function(
        "before => document.querySelector(\"[data-path='positions.wrote']\").textContent !== before",
        arg=before,
        timeout=5_000,
    )
    assert page.complaints == []


def test_a_topic_is_chosen_and_its_stripes_are_drawn(page, address):
    page.goto(f"{address}/store/layout/")
    assert page.locator("#stripes").count() == 0
    page.click("tbody tr:first-child td.name a")
    page.wait_for_selector("#stripes rect")
    assert page.locator("#stripes rect").count() > 20
    page.fill("#topic", "nowhere")
    page.click("main button[type=submit]")
    assert page.inner_text(".errorlist") == "There is no queue of nowhere in the store."
    assert page.complaints == []


def test_the_heat_map_is_drawn_told_and_kept_up_to_date(page, address):
    page.goto(f"{address}/store/index/")
    page.focus("[data-slots]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    told = page.inner_text("#cell-description")
    assert told.startswith("Cell 99: slots 49,500 to 49,999, 3") and told.endswith(" %")
    drawn = """() => { const canvas = document.querySelector('[data-slots]'), data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                       return new Set(new Uint32Array(data.buffer)).size; }"""
    assert page.evaluate(drawn) > 5
    # A cell that moves: its numbers change under the pointer, and with them those of the tables.
    page.keyboard.press("Home")
    before = page.inner_text("#cell-description"), page.inner_text("#slots [data-path=counted]")
    assert before[0].startswith("Cell 0: ")
    page.wait_for_function(
        "([told, counted]) => document.querySelector('#cell-description').textContent !== told && "
        "document.querySelector('#slots [data-path=counted]').textContent !== counted",
        arg=before,
    )
    page.hover("[data-slots]", position={"x": 3, "y": 300})
    assert (
        int(page.inner_text("#cell-description").split(":")[0].removeprefix("Cell ").replace(",", "")) % 100
        == 0
    )
    page.check("[data-stretch]")
    assert page.inner_text("[data-scale-low]") != "0.0 %"
    page.click("text=Count the chains")
    page.wait_for_selector("#chains .lengths")
    assert page.locator("#chains .longest tbody tr").count() == 10
    with page.expect_navigation():
        page.evaluate(
            "() => { const ages = document.querySelector('[data-ages]'); ages.value = 1; "
            "ages.dispatchEvent(new Event('change')); }"
        )
    assert (
        "file=20251122090000000" in page.url and page.inner_text("#slots h2") == "Slots of 20251122090000000"
    )
    assert page.complaints == []


def test_a_heat_map_that_is_older_than_the_frames_is_fetched_anew(page, address):
    page.goto(f"{address}/store/index/")
    with page.expect_response(
        lambda response: response.url.endswith("/api/v1/store/index/20251123050000000/slots") and response.ok
    ):
        page.evaluate(
            "() => document.getElementById('slots').dispatchEvent(new CustomEvent('live', {detail: "
            "{cells: null, changed: [], findings: [], since_ms: Date.now() + 60000, at_ms: "
            "Date.now() + 61000}}))"
        )
    assert page.complaints == []


@pytest.mark.takes(60)
def test_nothing_that_others_write_runs_in_the_browser(browser, hostile_address):
    """A page that took a payload for markup would show a dialog, set `owned`, ask another host, or be refused
    by its own policy."""
    context = browser.new_context()
    page, said = context.new_page(), []
    page.on("dialog", lambda dialog: (said.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda request: (
            said.append(request.url)
            if not request.url.startswith((f"{hostile_address}/", "data:image/"))
            else None
        ),
    )
    _log_in(page, hostile_address)
    admin = ("/admin/mqadmin/topic/", "/admin/mqadmin/group/", "/admin/mqadmin/group/billing/change/")
    for path in (
        *(
            path
            for path in PAGES_WITH_PAYLOADS
            if not path.startswith(("/jobs/some", "/store/doctor/some", "/pipeline/runs/"))
        ),
        *MESSAGES,
        *admin,
    ):
        answer = page.goto(f"{hostile_address}{path}")
        assert answer.status == 200, path
        page.wait_for_load_state("load")
        if page.locator("[data-stream]").count():
            page.wait_for_function("() => document.querySelector('[data-live]').textContent === 'live'")
        assert page.evaluate("window.owned") is None and said == [], (path, said[:3])
        for style in ("[autofocus]", "details", "input"):
            for element in page.locator(f"main {style}").all()[:3]:
                element.focus()
    assert page.evaluate("window.owned") is None and said == []
    context.close()
