"""The documentation as a site, in a browser: ``make docs`` runs this after it has built it."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from browser import SCREENS, Browser, needs_browser

pytestmark = [pytest.mark.site, needs_browser]

DRAWN = "document.querySelector('{}').checkVisibility({{visibilityProperty: true}})"


class Files(SimpleHTTPRequestHandler):
    """The files of the site, without a line on the terminal for each."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the pages, served as a host does: a search asks for files, which a page that is a file may not."""
    folder = Path(__file__).parents[1] / "outputs/site"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=folder)) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/docs"
        server.shutdown()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("page", ["index", "concepts", "configuration/optimizer", "api/masks"])
def test_nothing_keeps_anybody_from_reading_a_page(
    site: str, browser: Browser, page: str, width: int, scheme: str
) -> None:
    browser.open(f"{site}/{page}.html", width=width, scheme=scheme)
    assert browser.barriers() == []
    assert browser.tab_through() == []
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.complaints == []


def test_the_menu_of_a_narrow_page_opens_by_keyboard(site: str, browser: Browser) -> None:
    browser.open(f"{site}/index.html", width=390)
    menu, link = ".nav-overlay-icon > .icon", ".sidebar-tree a"
    for key, is_open in ((" ", True), ("Enter", False), ("Enter", True)):
        browser.focus(menu)
        browser.press(key)
        assert browser.ask(f"document.querySelector('{menu}').ariaExpanded") == str(is_open).lower()
        assert browser.ask(DRAWN.format(link)) == is_open
    assert browser.barriers() == []
    assert browser.tab_through() == []
    browser.focus(link)
    browser.press("Enter")
    browser.wait_until_loaded()
    assert browser.ask("document.querySelector('h1').textContent").startswith("First steps")


def test_the_first_key_skips_the_menu(site: str, browser: Browser) -> None:
    browser.open(f"{site}/concepts.html")
    for key in ("Tab", "Enter", "Tab"):
        browser.press(key)
    assert browser.ask("document.activeElement.closest('article') !== null")


def test_a_search_by_keyboard(site: str, browser: Browser) -> None:
    browser.open(f"{site}/index.html")
    browser.focus(".sidebar-search")
    browser.type("rotary")
    browser.press("Enter")
    browser.wait_until_loaded()
    browser.ask("new Promise(done => setInterval(() => document.querySelector('.search a') && done(), 50))")
    assert browser.barriers() == []
    browser.focus(".search a")
    browser.press("Enter")
    browser.wait_until_loaded()
    assert "rotary" in browser.ask("document.querySelector('article').textContent").lower()
