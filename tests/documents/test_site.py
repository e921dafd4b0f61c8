"""The pages of the root as the site shows them."""

from tests.support import site_pages


def test_links_into_docs_are_seen_from_there():
    text = '[a](docs/FOLLOW.md) <img src="docs/pictures/x.png"> [examples](docs/examples)'
    assert site_pages.from_root(text) == '[a](FOLLOW.md) <img src="pictures/x.png"> `examples`'


def test_a_list_after_a_paragraph_gets_an_empty_line_and_code_stays():
    assert (
        site_pages.with_lists("a\n- b\n- c\nd\n```\ne\n- f\n```\n") == "a\n\n- b\n- c\nd\n```\ne\n- f\n```\n"
    )


def test_a_folder_of_the_navigation_has_all_its_pages_in_order():
    docs = site_pages.ROOT / "docs"
    item = site_pages._with_folders({"Architecture": ["ARCHITECTURE.md", "architecture/*"]}, docs)
    pages = [f"architecture/{page.name}" for page in sorted((docs / "architecture").glob("*.md"))]
    assert item == {"Architecture": ["ARCHITECTURE.md", *pages]}
