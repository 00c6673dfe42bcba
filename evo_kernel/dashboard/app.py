"""The web application: routes over populations that are only read."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from evo_kernel.dashboard import compare, formatting, pages
from evo_kernel.dashboard.formatting import conversation
from evo_kernel.dashboard.guard import Guard
from evo_kernel.dashboard.runs import LOOK_S, Run
from evo_kernel.errors import PopulationError

HERE = Path(__file__).parent


class Dashboard:
    """`app` is the ASGI application, which closes the files at its shutdown."""

    def __init__(self, paths: Sequence[Path], token: str, cookie: str = "evo-kernel", look_s: float = LOOK_S) -> None:
        """`look_s`: between two looks at a file."""
        self.runs = tuple(Run(number, path, look_s) for number, path in enumerate(paths))
        self._templates = _templates()
        register_url_convertor("number", _Number())
        routes = [
            Route("/", lambda request: RedirectResponse("/0/", 303)),
            Mount("/static", StaticFiles(directory=HERE / "static")),
            Route("/compare", self._page(compare.compare, "compare.html", "Compare")),
            Route("/data/compare", self._data(lambda runs, request: pages.best_so_far(*compare.chosen(runs, request)))),
            Route("/{run:number}/", self._page(pages.overview, "overview.html", "Overview")),
            Route("/{run:number}/lineage", self._page(pages.lineage, "lineage.html", "Lineage")),
            Route("/{run:number}/go", self._go),
            Route("/{run:number}/candidate/{number:number}", self._page(pages.candidate, "candidate.html", "")),
            Route("/{run:number}/candidate/{number:number}/source", self._source),
            Route("/{run:number}/candidate/{number:number}/conversation", self._conversation),
            Route("/{run:number}/data/rises", self._data(lambda runs, request: pages.best_so_far(_run(runs, request)))),
        ]  # fmt: skip
        handlers: dict[Any, Any] = {HTTPException: self._problem, PopulationError: self._missing}
        starlette = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        self.app = Guard(starlette, token, cookie)

    def look(self) -> None:
        """Read what is there, templates and the colouring of sources too, so that the first page need not."""
        for run in self.runs:
            run.overview()
        for name in self._templates.list_templates():
            self._templates.get_template(name)
        formatting.highlighted("x = 1")

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        for run in self.runs:
            run.close()

    # Endpoints that are no coroutines run in threads: a slow page holds up no other.

    def _page(self, fill: Callable[..., dict[str, Any]], template: str, name: str) -> Callable[[Request], Response]:
        def page(request: Request) -> Response:
            given: dict[str, Any] = {"runs": self.runs, "page": name}
            if "run" in request.path_params:
                given["run"] = _run(self.runs, request)
                given |= fill(given["run"], request)
            else:
                given |= fill(self.runs, request)
            return HTMLResponse(self._templates.get_template(template).render(given))

        return page

    def _data(self, find: Callable[[Sequence[Run], Request], dict[str, Any]]) -> Callable[[Request], Response]:
        return lambda request: JSONResponse(find(self.runs, request))

    def _go(self, request: Request) -> Response:
        run, number = _run(self.runs, request), request.query_params.get("n", "")
        if not (number.isascii() and number.isdigit() and len(number) < 12):
            raise HTTPException(400, "A candidate is asked for by its number.")
        return RedirectResponse(f"/{run.number}/candidate/{int(number)}", 303)

    def _source(self, request: Request) -> Response:
        number = request.path_params["number"]
        with _run(self.runs, request).reader() as reader:
            text = reader.candidate(number).source.text
        return PlainTextResponse(
            text.encode("utf-8", "replace"),
            headers={"content-disposition": f'attachment; filename="candidate-{number}.py.txt"'},
        )

    def _conversation(self, request: Request) -> Response:
        with _run(self.runs, request).reader() as reader:
            attempt = reader.attempt_of(request.path_params["number"])
            return PlainTextResponse(conversation(reader.connection, attempt) or "No model was asked.")

    def _problem(self, request: Request, error: HTTPException) -> Response:
        del request
        heading = "There is no such page" if error.status_code == 404 else "No"
        return self._message(error.status_code, heading, error.detail)

    def _missing(self, request: Request, error: PopulationError) -> Response:
        del request
        return self._message(404, "Not found", str(error))

    def _message(self, status: int, heading: str, text: str) -> Response:
        template = self._templates.get_template("message.html")
        return HTMLResponse(template.render(runs=self.runs, page="", heading=heading, text=text), status)


class _Number(Convertor[int]):
    """Of a population or a candidate, in an address: SQLite and Python take no number of any length."""

    regex = "[0-9]{1,12}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


def _run(runs: Sequence[Run], request: Request) -> Run:
    number = request.path_params["run"]
    if number >= len(runs):
        raise HTTPException(404, f"There is no population {number} here: they are numbered 0 to {len(runs) - 1}.")
    return runs[number]


def _templates() -> Environment:
    """Everything is escaped, and a value that is missing is an error, not an empty place."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, auto_reload=False
    )
    names = ("clip", "micros", "ratio", "percent", "count", "few", "hours", "dollars", "ago", "moment")
    found.filters |= {name: getattr(formatting, name) for name in names}
    found.filters["exp"] = lambda value: math.exp(min(value, 700.0))
    found.filters["block"] = lambda text: Markup("\n").join(formatting.lines_of(str(text)))
    return found
