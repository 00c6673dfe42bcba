"""The dashboard in a real browser: skipped where playwright or Chromium is missing.

pip install playwright      and a Chromium: CHROMIUM=/path/to/it, or `chromium` on the PATH
AXE=/path/to/axe.min.js     to check accessibility too
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

import uvicorn
from playwright import sync_api

from evo_kernel.cli.serve import listen
from evo_kernel.dashboard.app import Dashboard
from populations.population import open_population
from tests.dashboard.nasty import MARK, hostile
from tests.populations.samples import CARD, MODELED, TASK, search

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
AXE = os.environ.get("AXE", "")
TOKEN = "a-token-of-the-tests-own"

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

LOOKS = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "phone": (390, 844, "dark")}


class Site:
    def __init__(self, home: str, nasty: int, live: Path) -> None:
        self.home, self.nasty, self.live = home, nasty, live
        one = f"/0/candidate/{nasty}"
        self.pages = ("/0/", "/0/lineage", f"/0/lineage?at={nasty}", one, f"/0/candidate/{nasty + 1}",
                      "/1/", "/compare?a=0&b=1")  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("browser")
    nasty = hostile(folder / "nasty.db")
    with open_population(folder / "live.db", task=CARD, task_identity=TASK, environment=MODELED, seed=2) as population:
        search(population, 10, random.Random(2))
    listening = listen(0)
    port = listening.getsockname()[1]
    dashboard = Dashboard([folder / "nasty.db", folder / "live.db"], TOKEN, f"evo-kernel-{port}")
    config = uvicorn.Config(dashboard.app, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield Site(f"http://127.0.0.1:{port}", nasty, folder / "live.db")
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any, site: Site) -> Iterator[Any]:
    """browse(look) is a page that is let in, and the list of what went wrong in it."""
    contexts = []

    def do(look: str = "light") -> tuple[Any, list[str]]:
        width, height, scheme = LOOKS[look]
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page, wrong = context.new_page(), []
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda one: None if one.url.startswith(site.home + "/") else wrong.append(one.url))
        page.goto(f"{site.home}/?token={TOKEN}")
        return page, wrong

    yield do
    for context in contexts:
        context.close()


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_whole_and_runs_nothing_foreign(site: Site, browse: Any, look: str):
    page, wrong = browse(look)
    page.add_init_script(f"window.{MARK} = () => {{ window.broken = true }}")
    for path in site.pages:
        page.goto(site.home + path)
        page.wait_for_load_state("load")
        assert page.locator("h1").count() == 1, path
        assert not page.evaluate("window.broken"), path
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{path} is {wider} px wider than the {look} screen"
        if AXE:
            page.evaluate(Path(AXE).read_text())
            found = page.evaluate(
                "axe.run().then(done => done.violations.map(one => one.id + ' ' + one.nodes[0].html))"
            )
            assert found == [], path
    assert wrong == []


def test_plots_are_drawn_and_change_their_axis(browse: Any):
    page, wrong = browse()
    page.wait_for_selector(".plot canvas")
    page.get_by_label("hours").check()
    page.wait_for_selector(".u-legend >> text=hours")
    assert wrong == []


def test_keys_lead_through_the_pages(site: Site, browse: Any):
    page, wrong = browse()
    for key, path in (("l", "/0/lineage"), ("o", "/0/")):
        page.keyboard.press(key)
        page.wait_for_url(site.home + path)
    page.keyboard.press("/")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.home}/0/candidate/2")
    page.keyboard.press("p")
    page.wait_for_url(f"{site.home}/0/candidate/1")
    assert wrong == []


def test_the_nodes_of_the_lineage_are_links(site: Site, browse: Any):
    page, wrong = browse()
    page.goto(f"{site.home}/0/lineage")
    page.locator("#tree a").last.click()
    page.wait_for_url("**/candidate/*")
    assert wrong == []


def test_a_page_follows_a_run(site: Site, browse: Any):
    page, wrong = browse()
    page.goto(f"{site.home}/1/")
    page.wait_for_selector("#live >> text=candidates")
    with open_population(site.live, task=CARD, task_identity=TASK, environment=MODELED, seed=2) as population:
        search(population, 20, random.Random(9))
        total = population.counters().candidates
        page.wait_for_selector("#live >> text=● running", timeout=10_000)
        page.wait_for_selector(f"#standing >> text={total} from", timeout=10_000)
    page.wait_for_selector("#live >> text=not running", timeout=10_000)
    assert wrong == []
