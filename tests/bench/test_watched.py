"""The bench's browsers read a page as its script does."""

from pathlib import Path

from tests.bench.watched import Page

LIVE = Path(__file__).resolve().parents[2] / "static" / "js" / "live.js"


def test_streams_and_what_is_fetched_again_are_read_from_the_page():
    page = Page(
        '<div class="tabs"><a href="/store/">Map</a><a href="/store/write/">Write path</a></div><a '
        'href="/else/">no tab</a>'
        '<section data-stream="store.write"><input type="text"><p><b data-path="x">1</b></p></section>'
        '<section data-stream="group" data-name="billing"><div><div data-renew '
        'hx-get="/groups/billing/" hx-trigger="refresh"></div></div></section>'
        '<div data-renew hx-get="/nobody/"></div><section data-stream="store.index"><div data-renew '
        'hx-get="?part_of=chains"></div></section>',
        "/store/index/",
    )
    assert page.tabs == ["/store/", "/store/write/"]
    assert page.streams == {("store.write", ""), ("group", "billing"), ("store.index", "")}
    assert page.renewed == [
        (("group", "billing"), "/groups/billing/"),
        (("store.index", ""), "/store/index/?part_of=chains"),
    ]


def test_the_attributes_are_those_that_the_script_looks_at():
    script = LIVE.read_text()
    assert all(name in script for name in ("[data-stream]", "[data-renew]", "{ ...data, at_ms: null }"))
