"""The dashboard without a browser: who gets in, what comes out, and that nothing is written."""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
pytest.importorskip("jinja2", reason="the extra [serve] is not installed")

from starlette.testclient import TestClient

from evo_kernel.dashboard import formatting
from evo_kernel.dashboard.app import Dashboard
from evo_kernel.dashboard.guard import Guard
from evo_kernel.dashboard.pages import case_times
from evo_kernel.types import Compared, Measurement, Source
from populations.population import open_population
from populations.reading import PopulationReader
from tests.dashboard.nasty import MARK, SOURCE, Inspector, hostile
from tests.populations.samples import CARD, MEASURED, MODELED, TASK, failed, passed, propose, search

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-tests-own"
HOME = "http://127.0.0.1:8799"
PAGES = ("/0/", "/0/lineage", "/1/", "/compare", "/compare?a=0&b=1", "/2/", "/2/lineage", "/2/candidate/1",
         "/compare?a=1&b=2")  # fmt: skip


class Served:
    def __init__(self, dashboard: Dashboard, nasty: int, paths: tuple[Path, ...]) -> None:
        self.dashboard, self.nasty, self.paths = dashboard, nasty, paths
        self.outside = TestClient(dashboard.app, base_url=HOME)
        self.client = TestClient(dashboard.app, base_url=HOME, headers={"authorization": f"Bearer {TOKEN}"})
        one = f"/0/candidate/{nasty}"
        self.pages = (
            *PAGES,
            one,
            f"/0/lineage?at={nasty}",
            f"/0/candidate/{nasty + 1}",
        )
        self.data = ("/0/data/rises", "/data/compare")
        self.texts = (f"{one}/conversation", f"/0/candidate/{nasty - 1}/conversation")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("dashboard")
    first, second, third = folder / "first.db", folder / "<b>second.db", folder / "empty.db"
    nasty = hostile(first)
    with open_population(second, task=CARD, task_identity=TASK, environment=MEASURED, seed=3) as population:
        search(population, 12, random.Random(3))
    with open_population(third, task=CARD, task_identity="another", environment=MODELED, seed=3) as population:
        population.plant(Source("# not judged"))
    paths = (first, second, third)
    return Served(Dashboard(paths, TOKEN), nasty, paths)


def _text(served: Served, path: str, between: str = "") -> str:
    """What a person reads of a page."""
    return between.join(Inspector(served.client.get(path).text).text)


# ---- the door -----------------------------------------------------------------------------------------------------------


def test_nothing_is_told_without_the_token(served: Served):
    for path in (*served.pages, *served.data, *served.texts, "/", "/static/app.js", "/nothing"):
        answer = served.outside.get(path, follow_redirects=False)
        assert answer.status_code == 401, path
        assert "softmax" not in answer.text
    wrong = {"authorization": f"Bearer {TOKEN}x"}
    assert served.outside.get("/0/", headers=wrong).status_code == 401
    assert served.outside.get("/0/?token=" + "é" * 24).status_code == 401
    assert served.outside.get("/0/", headers={"cookie": "evo-kernel=wrong; x=\x01"}).status_code == 401


def test_the_token_moves_from_the_address_to_a_cookie(served: Served):
    browser = TestClient(served.dashboard.app, base_url=HOME)
    answer = browser.get(f"/0/lineage?at=1&token={TOKEN}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/0/lineage?at=1")
    assert re.search("httponly", answer.headers["set-cookie"], re.I)
    assert re.search("samesite=strict", answer.headers["set-cookie"], re.I)
    assert browser.get("/0/").status_code == 200
    away = browser.get(f"//evil.example/?token={TOKEN}", follow_redirects=False)
    assert not away.headers.get("location", "").startswith("//")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7:8799", "localhost:x", ""])
def test_a_foreign_host_is_refused_even_with_the_token(served: Served, host: str):
    assert served.client.get("/0/", headers={"host": host}).status_code == 421


def test_hosts_of_this_machine_pass(served: Served):
    for host in ("localhost:9000", "127.0.0.1", "[::1]:8799"):
        assert served.client.get("/0/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_is_answered(served: Served, method: str):
    for path in ("/0/", "/static/app.js", f"/0/candidate/{served.nasty}"):
        assert served.client.request(method, path).status_code == 405


def test_a_short_token_is_refused(served: Served):
    with pytest.raises(ValueError, match="16"):
        Guard(served.dashboard.app, "short", "c")


# ---- what comes out -----------------------------------------------------------------------------------------------------


def test_every_answer_bears_the_headers(served: Served):
    for path in (
        *served.pages,
        *served.data,
        *served.texts,
        "/static/app.css",
        "/0/candidate/99999",
        "/nothing",
        "/7/",
    ):
        headers = served.client.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'", path
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'", path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
    assert "content-security-policy" in served.outside.get("/0/").headers


def test_hostile_text_stays_text_on_every_page(served: Served):
    for path in served.pages:
        answer = served.client.get(path)
        assert answer.status_code == 200, (path, answer.text[-300:])
        assert len(answer.content) < 400_000, path
        found = Inspector(answer.text)
        assert found.problems == [], path
        assert not re.search("[\u202e\u2066\u200b\x07\x1b]", answer.text), path
        assert "49" not in re.findall(r"x=&#34;(\d+)", answer.text), "a template was evaluated"


def test_hostile_text_is_shown_for_what_it_is(served: Served):
    text = _text(served, f"/0/candidate/{served.nasty}")
    assert f"<script>{MARK}()</script>" in text and "⟨U+202E⟩" in text
    assert "more characters in this line" in text
    for number in (served.nasty, served.nasty - 1):  # turns of an agent; calls of a model
        answer = served.client.get(f"/0/candidate/{number}/conversation")
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.text.count(MARK) > 5 and "{{7*7}}" in answer.text
        assert not re.search("[\u202e\u2066\u200b\x07\x1b]", answer.text)


def test_a_row_that_unfolds_to_gigabytes_is_not_unfolded():
    bomb = zlib.compress(b'"' + b"a" * 40_000_000 + b'"')
    assert len(bomb) < 100_000
    assert formatting.unfold(bomb) == "(more than 8000000 bytes)"
    assert formatting.unfold(b"no zlib") == formatting.unpack("!!!") == "(cannot be read)"
    assert formatting.unpack("[" * 100_000) == "(cannot be read)"


def test_data_is_json_and_a_source_is_a_download(served: Served):
    for path in served.data:
        answer = served.client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()
    answer = served.client.get(f"/0/candidate/{served.nasty}/source")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.text == SOURCE + "# 0.5\n"


def test_links_between_pages_lead_somewhere(served: Served):
    links = set().union(
        *(Inspector(served.client.get(path).text).links for path in ("/0/", "/1/", "/1/lineage", "/compare"))
    )
    assert len(links) > 30
    for link in links:
        if link.startswith("/"):
            assert served.client.get(link).status_code in (200, 400), link  # 400: a form that was sent empty


@pytest.mark.parametrize(
    "path",
    ["/0/candidate/9223372036854775808", "/0/candidate/9223372036854775808/source", "/" + "9" * 4400 + "/",
     f"/0/candidate/{10**30}/conversation", "/0/candidate/999999999999", "/0/candidate/0", "/0/candidate/99999", "/9/", "/3/", "/0/nothing", "/static/../app.py", "/static/%2e%2e/app.py",
     "/0/lineage?at=99999", "/0/lineage?at=1e3", "/compare?a=9", "/0/candidate/2?against=3", "/0/candidate/2?against=²"],
)  # fmt: skip
def test_what_is_not_there_is_said_to_be(served: Served, path: str):
    answer = served.client.get(path)
    assert answer.status_code == 404
    assert Inspector(answer.text).problems == []


# ---- what pages show ----------------------------------------------------------------------------------------------------


def test_a_candidate_against_an_ancestor(served: Served):
    with PopulationReader(served.paths[1]) as reader:
        deep = max(range(1, reader.last_candidate() + 1), key=lambda number: reader.candidate(number).generation)
        path = [step.candidate for step in reader.critical_path(deep)]
    assert len(path) >= 3
    page = served.client.get(f"/1/candidate/{deep}?against={path[0]}").text
    assert f'<option value="{path[0]}" selected>' in page
    assert '<span class="line gone">-# seed' in page and '<span class="line added">' in page


def test_measured_times_have_intervals_against_each_baseline(served: Served):
    with PopulationReader(served.paths[1]) as reader:
        best = reader.best()
        assert best is not None
        evaluation = reader.candidate(best.candidate).evaluation
    text = " ".join(_text(served, f"/1/candidate/{best.candidate}", " ").split())
    assert evaluation is not None
    first = evaluation.measurements[0]
    assert f"{100.0 / first.median_us:.3f}× {100.0 / first.high_us:.3f}× to {100.0 / first.low_us:.3f}×" in text
    assert "share of light" in text and "softmax_kernel" in text


def test_runs_of_different_work_are_not_compared_in_silence(served: Served):
    assert "The environments differ" in _text(served, "/compare?a=0&b=1")
    assert "The tasks differ" in _text(served, "/compare?a=0&b=2")
    assert "differ:" not in _text(served, "/compare?a=1&b=1")


def test_the_lineage_is_collapsed_and_opens_around_a_candidate(tmp_path: Path):
    path = tmp_path / "wide.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        seed = population.plant(Source("# seed"))
        population.tell(seed, passed(seed.proposal.source, random.Random(1), log_us=4.0))
        rng = random.Random(2)
        for number in range(60):
            brief = population.ask()
            recorded = population.record(brief, propose(brief, rng, f"# {number}"))
            source = recorded.proposal.source
            log_us = 3.0 if number == 40 else 4.5 + rng.random()
            population.tell(recorded, passed(source, rng, log_us=log_us) if number % 3 else failed(source))
    client = TestClient(Dashboard([path], TOKEN).app, base_url=HOME, headers={"authorization": f"Bearer {TOKEN}"})
    page = client.get("/0/lineage").text
    drawn = set(re.findall(r'href="/0/candidate/(\d+)" class', page))
    with PopulationReader(path) as reader:
        assert drawn == {str(step.candidate) for step in reader.critical_path(42)}  # the record of number 40
    assert "<text" in page and "children" in page
    around = set(re.findall(r'href="/0/candidate/(\d+)"[^>]* class', client.get("/0/lineage?at=1").text))
    assert drawn < around and len(around) <= 42


def test_pages_have_baselines_and_floor_beside_the_kernel(tmp_path: Path):
    """40 µs against 100 and 80 µs, share of light one half: bars over the longest, as card and as table."""
    path, rng = tmp_path / "card.db", random.Random(1)
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        seed = population.plant(Source("BLOCK = 64"))
        found = passed(seed.proposal.source, rng, log_us=math.log(40.0))
        times = {"eager": 100.0, "torch.compile": 80.0}
        measured = replace(found.measurements[0], median_us=40.0, baselines_us=times, light_share=0.5)
        population.tell(seed, replace(found, score=2.0, measurements=(measured,), verdicts=()))
        population.store_baselines("large", times, {})
    client = TestClient(Dashboard([path], TOKEN).app, base_url=HOME, headers={"authorization": f"Bearer {TOKEN}"})
    for page, names in (("/0/", ("candidate 1", "eager")), ("/0/candidate/1", ("this kernel", "eager"))):
        text = client.get(page).text
        widths = re.findall(r'class="bar (\w+)".*?<rect width="([\d.]+)"', text)
        assert sorted(widths) == [("baseline", "100.00"), ("baseline", "80.00"), ("floor", "20.00"), ("own", "40.00")]
        assert all(name in text for name in (*names, "torch.compile", "floor"))
    card = re.sub(r"<[^>]+>", "", client.get("/0/").text)
    assert "Best, not confirmed yet" in card and "2.000× torch.compile, candidate 1" in " ".join(card.split())
    assert "BLOCK = 1024" in client.get("/0/candidate/1/source").text  # as it was scored
    data = client.get("/data/compare").json()["runs"][0]
    assert data["against"] == "torch.compile" and data["evaluations"]["score"][-1] == 2.0
    assert "torch.compile 80.0</td>" in client.get("/compare").text and "20.0</td>" in client.get("/compare").text


def test_nodes_of_the_lineage_have_number_strategy_and_gain(tmp_path: Path):
    path, rng = tmp_path / "line.db", random.Random(1)
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        seed = population.plant(Source("# seed"))
        population.tell(seed, passed(seed.proposal.source, rng, log_us=math.log(80.0)))
        child = population.record(population.ask(), propose(population.ask(), rng, "# faster"))
        population.tell(child, passed(child.proposal.source, rng, log_us=math.log(50.0)))
    client = TestClient(Dashboard([path], TOKEN).app, base_url=HOME, headers={"authorization": f"Bearer {TOKEN}"})
    drawn = re.search(r"<svg.*?</svg>", client.get("/0/lineage").text, re.DOTALL)
    assert drawn and 'class="fit"' in drawn[0]  # as wide as the window
    assert child.proposal.strategy is not None
    texts = [re.sub(r"<[^>]+>", "", text) for text in re.findall(r"<text aria-hidden.*?</text>", drawn[0])]
    assert texts == ["1", "seed", "2", child.proposal.strategy.name, "1.600×"]
    assert 'x1="29.17%"' in drawn[0] and 'x2="70.83%"' in drawn[0]  # from the first to the second


# ---- following ----------------------------------------------------------------------------------------------------------


def test_pages_follow_a_run(tmp_path: Path):
    path, rng = tmp_path / "p.db", random.Random(6)
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=6) as population:
        search(population, 3, rng)
        app = Dashboard([path], TOKEN, look_s=0.0).app
        client = TestClient(app, base_url=HOME, headers={"authorization": f"Bearer {TOKEN}"})

        def headline() -> str:
            found = re.search(r'id="live" data-live>(.*?)</span>', client.get("/0/lineage").text)
            assert found
            return found[1]

        before = headline()
        assert "● running" in before and headline() == before
        search(population, 5, rng)
        assert f"{population.counters().candidates} candidates" in headline() != before
    assert "○ not running" in headline()


def test_nothing_is_written(served: Served):
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in served.paths]
    for path in (*served.pages, *served.data):
        served.client.get(path)
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in served.paths] == before
    with served.dashboard.runs[0].reader() as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.connection.execute("DELETE FROM events")


# ---- the command --------------------------------------------------------------------------------------------------------


def test_serve_prints_an_address_that_works_and_stops(served: Served):
    words = [sys.executable, "-P", "-m", "evo_kernel.cli.main", "serve", str(served.paths[1]), "--port", "0"]
    child = subprocess.Popen(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address.split("?")[0], timeout=10)
        assert refused.value.code == 401
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=10) as answer:
            assert answer.status == 200 and b"softmax" in answer.read()
    finally:
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    assert "Traceback" not in said and "GET" not in said


def test_serve_says_what_is_wrong(tmp_path: Path):
    words = [sys.executable, "-P", "-m", "evo_kernel.cli.main", "serve", str(tmp_path / "none.db"), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2 and "There is no population at" in done.stderr


def test_terms_of_a_time_are_not_what_was_compared() -> None:
    details = {"dram": 3.0, "issue": 5.0} | Compared(0.5, 64, 64, whole=True).as_details()
    measured = Measurement("large", "p", 9.0, 0.0, 0, 9.0, 9.0, details=details)
    assert case_times(measured, modeled=True).terms == (("issue", 5.0), ("dram", 3.0))
