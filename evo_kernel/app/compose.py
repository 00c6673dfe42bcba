"""Opens what a configuration asks for (task, judge, population, ledger), runs the search, and publishes its state."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from evo_kernel import plugins
from evo_kernel.app.judges import AnyJudge, opened_judge
from evo_kernel.app.operator_factory import money_ends, operating, weights_of
from evo_kernel.app.signals import beside, ending_twice
from evo_kernel.budget import Budget, Ledger, Spent
from evo_kernel.champions.matching import matching
from evo_kernel.config import Config, stored_config
from evo_kernel.engine import Engine, EngineSettings, Observer, RunSummary
from evo_kernel.engine.loop import WAITS, LateRoot
from evo_kernel.errors import ConfigError, LoweringError, PopulationError
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.client import SpoolJudge
from evo_kernel.fitness.stages import THINKING, Stages
from evo_kernel.judge_place import LOCAL
from evo_kernel.observe.formatting import fault_lines
from evo_kernel.tasks.first import First, Origin, beside_first, first_of, lowered_beside, template_of
from evo_kernel.tasks.helper_process import in_a_thread
from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.packaged import names_function, packaged_source
from evo_kernel.tasks.task import Task
from evo_kernel.types import Environment, Judge, Recorded, Source, escaped
from evo_kernel.types.gpus import is_hopper
from populations.archive import PopulationSettings
from populations.population import LineagePopulation, open_population
from populations.reading import PopulationReader

START_FROM = 8
"""Kernels taken over from another population."""
ORIGINS: dict[Origin, str] = {"seed": "seed", "lowered": "seed"}
"""What the lineage calls where a first kernel comes from, where it has another name for it."""
FIRST_KERNEL = "first kernel"
BARREN = {False: 200, True: 60}
"""Attempts in a row with nothing new judged that end a run: without models, where they take milliseconds, and with."""


@dataclass(frozen=True)
class Prepared:
    """Everything that a run needs, open."""

    task: Task
    judge: AnyJudge
    population: LineagePopulation
    firsts: Mapping[str, Source]  # what the search starts from, by where it comes from
    late_roots: tuple[LateRoot, ...] = ()  # templates and torch.compile's kernels, where they are still to be planted


def task_of(config: Config) -> Task:
    """The configured task. Raises ConfigError, TaskError."""
    if not config.task:
        raise ConfigError("no task is given: use `evo-kernel run TASK`, or `task = ...` in the configuration")
    if config.task in plugins.found(plugins.TASKS) and config.task not in builtin_names():
        offered = plugins.load(plugins.TASKS, config.task)
        return load(str(offered() if callable(offered) else offered))
    return load(config.task)


def lasting(value: Any) -> Any:
    """A configuration with absolute paths, which a resume finds from any working folder."""
    match value:
        case Path():
            return value.absolute()
        case tuple():
            return tuple(map(lasting, value))
        case BaseModel():
            return value.model_copy(update={name: lasting(part) for name, part in value})
    return value


def population_path(config: Config, task: Task) -> Path:
    """TASK.db in the working folder, unless the configuration says otherwise."""
    return config.population or Path(f"{task.name}.db")


def judge_settings(config: Config) -> JudgeSettings:
    return JudgeSettings(seed=config.seed, **config.judge.model_dump(exclude={"at", "environment"}))


def configured_judge(
    config: Config, task: Task, *, score_soon: bool = False, known: Environment | None = None, wait: bool = True
) -> AnyJudge:
    """The judge that a configuration asks for. `known`: a population's environment; `wait`: for one elsewhere that has
    not announced itself yet. Raises UserError, InfraError."""
    return opened_judge(
        config.judge.at, task, device=config.device, settings=judge_settings(config), gpus=config.gpus,
        score_soon=score_soon, known=known, choice=config.judge.environment, wait=wait,
        say=lambda line: click.echo(escaped(line), err=True),
    )  # fmt: skip


def last_environment(path: Path) -> Environment | None:
    """Where a population was last judged; None where there is no file."""
    if not path.exists():
        return None
    with PopulationReader(path) as reader:
        return reader.sessions()[-1].environment


@contextlib.contextmanager
def prepared(config: Config, task: Task, path: Path, create: bool | None, wait: bool = True) -> Iterator[Prepared]:
    """Open judge and population for a run; plants the first kernel, and the other roots of a new population. `wait`:
    for a judge elsewhere that has not announced itself."""
    seeds = seed_files(config) if create else {}
    first = _first(task, config)

    def beside() -> Source | None:
        return beside_first(task, first) if first is not None else None

    makers: dict[str, Callable[[], Source | None]] = {}  # in the order in which they are judged: what takes long last
    if config.first == "all" and first is not None:
        makers = {"template": lambda: template_of(task), "gluon": lambda: template_of(task, "gluon")}
        makers |= {"lowered": lambda: lowered_beside(task, root) if root is not None else None, "compiled": beside}
    ahead = makers.keys() - {"lowered"} - ({"gluon"} if config.device == "cpu" else set())
    made = {origin: in_a_thread(makers[origin]) for origin in ahead if create}  # begun while the judge opens
    leaders: list[Source] = []
    if create and config.start_from:
        leaders = _leaders(config.start_from) if isinstance(config.start_from, Path) else [_champion(task)]
    known = last_environment(path) if config.judge.at != LOCAL and not create else None
    with configured_judge(config, task, score_soon=bool(create), known=known, wait=wait) as judge:
        search = config.search.model_dump()
        settings = PopulationSettings(selectors=search.pop("selection"), **search)
        population = open_population(
            path,
            task=task.card(),
            task_identity=task.identity,
            environment=judge.environment,
            seed=config.seed,
            settings=settings,
            run=config.model_dump(mode="json"),
            create=create,
        )
        with population:
            judge.know(population.verdicts(judge.environment.key))
            keep_ceilings(judge, population)
            root = first
            if not is_hopper(judge.environment.device):
                makers.pop("gluon", None)
            elif "gluon" in made and first is not None and first.origin == "lowered":
                template = made["gluon"].result()  # several times as fast as plain kernels
                root = First(template, "gluon", first.source) if template is not None else first
            if root is not None:
                population.plant(root.source, ORIGINS.get(root.origin, root.origin))
            for source in seeds.values():
                population.plant(source, "seed")
            for source in leaders:
                population.plant(source, "start-from")

            def late_root(origin: str, within_s: float) -> Recorded | None:
                if origin not in made:
                    made[origin] = in_a_thread(makers[origin])
                source = made[origin].result(within_s)
                return population.plant(source, origin) if source is not None else None

            due = [origin for origin in makers if origin not in population.origins()]
            firsts = {**({FIRST_KERNEL: first.source} if first is not None else {}), **seeds}
            yield Prepared(task, judge, population, firsts, tuple(partial(late_root, origin) for origin in due))


def first_kernels(task: Task, config: Config) -> dict[str, Source]:
    """What a search starts from, but torch.compile's kernels, by where it comes from. Raises ConfigError,
    LoweringError."""
    first = _first(task, config)
    return {**({FIRST_KERNEL: first.source} if first is not None else {}), **seed_files(config)}


def seed_files(config: Config) -> dict[str, Source]:
    """The kernels of the files and packages that a search is to start from, by name. Raises UserError."""
    found = dict[str, Source]()
    for path in config.seeds:
        try:
            if names_function(str(path)) and not path.exists():
                found[str(path)] = packaged_source(str(path))
                continue
            found[str(path)] = Source(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            told = f"cannot read {path}: {error}. --seed takes a Python module with `run(*inputs)`"
            raise ConfigError(told) from error
    return found


def _first(task: Task, config: Config) -> First | None:
    """The configured or the task's first kernel; None where it has none, and files are there to start from.

    Raises LoweringError, UserError."""
    if names_function(config.first):
        return First(packaged_source(config.first), "seed")
    try:
        return first_of(task)
    except LoweringError:
        if config.seeds:
            return None
        raise


def _champion(task: Task) -> Source:
    """The gallery's kernel that computes what the task does. Raises ConfigError."""
    if (match := matching(task)) is None:
        raise ConfigError(
            f"no champion computes what {task.name} does, or none takes its sizes: leave out --start-from gallery "
            "(`evo-kernel champions` lists them)"
        )
    return match.source


def _leaders(path: Path) -> list[Source]:
    """The best kernels of another population, with the knobs that they were scored with. Raises PopulationError.

    Of another task too: what is wrong here is found wrong when it is judged.
    """
    with PopulationReader(path) as reader:
        views = [reader.candidate(number) for number in reader.leaders(START_FROM)]
    if not views:
        raise PopulationError(f"{path} has no candidate that passed: name another file in --start-from")
    return [view.source for view in views]


def ledger_of(config: Config, population: LineagePopulation, began: float | None = None) -> Ledger:
    """The run's ledger, with what earlier sessions of the population have spent. `began`: when the command did, if its
    start counts too."""
    before = population.counters()
    wall_s = before.wall_s if began is None else population.earlier_wall_s
    spent = Spent(before.charged, wall_s / 3600, before.dollars, before.tokens, before.gpu_s)
    return Ledger(
        Budget(**config.budget.model_dump()),
        spent,
        by_call=bool(config.models),
        ends_with_money=money_ends(config),
        began=began,
    )


def search(
    config: Config, parts: Prepared, observer: Observer, ledger: Ledger, until_waiting: bool = False
) -> RunSummary:
    """Run the loop with signals: the first finishes what is in flight, a second stops now. `until_waiting`: end when
    all that is under way waits for verdicts from elsewhere."""
    settings = EngineSettings(width=config.width, barren=BARREN[bool(config.models)])
    stop, population = threading.Event(), parts.population
    stages = parts.judge.stages
    profiled = not until_waiting  # a prompt would be parked for its table
    with operating(config, population, parts.judge, ledger, observer.trouble, stages, stop, profiled) as operator:
        rewrites = weights_of(config).keys() <= {"mtmc", "crossover"}
        cut_waits = None if rewrites else stop.set
        engine = Engine(population, operator, parts.judge, ledger, settings, observer, cut_waits, parts.late_roots)
        parts.judge.baselines.on_baselines = kept_baselines(population, observer.trouble)
        judge = parts.judge
        if isinstance(judge, SpoolJudge):
            judge.on_trouble = observer.trouble
        with announced(population, stages), watched(engine, judge, stop):
            if not until_waiting or not isinstance(judge, SpoolJudge):
                return engine.run()
            with giving_up(judge, engine):
                ended = engine.run()
            return replace(ended, cause=WAITS) if judge.gave_up and not engine.interrupted else ended


QUIET_S = 2.0
"""The same threads have waited for verdicts so long, and nothing else is under way: they wait for what is elsewhere."""


def giving_up(judge: SpoolJudge, engine: Engine | None = None) -> AbstractContextManager[None]:
    """Until the block ends: once all that is under way waits for verdicts, stop, and let nobody wait any more."""

    def watch(ended: threading.Event) -> None:
        while not ended.wait(QUIET_S / 10):
            thinking = judge.stages.state().stages[THINKING]
            if judge.quiet_s >= QUIET_S and not thinking and not (engine is not None and engine.makes_root):
                if engine is not None:
                    engine.stop("all that is under way waits for verdicts", WAITS)
                judge.give_up()
                return

    return beside(watch)


@contextlib.contextmanager
def watched(engine: Engine, judge: Judge, stop: threading.Event | None = None) -> Iterator[None]:
    """The first SIGINT or SIGTERM finishes what the judge has in hand, the second ends every child and returns at once.

    `stop` is set by the first: calls of models end, which may take a quarter of an hour each.
    """

    def finish(name: str) -> None:
        engine.stop(f"stopped by {name}")
        if stop is not None:
            stop.set()

    def abort(name: str) -> None:
        engine.abort(f"stopped by {name}")
        judge.close()

    with ending_twice(finish, abort):
        yield


def resumed_config(path: Path, stored: dict[str, Any] | None) -> Config:
    """The configuration that a population was last run with. Raises PopulationError."""
    if not stored:
        raise PopulationError(
            f"{path} holds no run configuration; start it with `evo-kernel run TASK --population {path}`"
        )
    config, gone = stored_config(stored, str(path))
    if gone:
        click.echo(f"{path} was made by an earlier version: ignoring its settings {', '.join(gone)}", err=True)
    return config


ANNOUNCE_S = 5.0


def announced(
    population: LineagePopulation, stages: Stages, every_s: float = ANNOUNCE_S
) -> AbstractContextManager[None]:
    """Until the block ends, leave word of the stages beside the population every few seconds."""

    def announce(ended: threading.Event) -> None:
        population.announce(stages.state())
        while not ended.wait(every_s):
            population.announce(stages.state())

    return beside(announce)


def keep_ceilings(judge: AnyJudge, population: LineagePopulation) -> None:
    """Hand the judge what an earlier session measured in this very environment, or keep what it measures now."""
    if judge.baselines.ceilings.know(population.ceilings(judge.environment.key)):
        return
    found = judge.ceilings
    if found.measured:
        population.store_ceilings(found.as_data())


def kept_baselines(
    population: LineagePopulation, tell: Callable[[str], None]
) -> Callable[[str, Mapping[str, float], Mapping[str, str]], None]:
    """What hears from a judge what a case is held against: keeps it, and tells what could not be timed."""

    def hear(case: str, baselines_us: Mapping[str, float], faults: Mapping[str, str]) -> None:
        population.store_baselines(case, baselines_us, faults)
        for line in fault_lines({case: faults}):
            tell(line)

    return hear
