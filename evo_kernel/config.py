"""Run configurations: TOML in, validated and frozen values out. Every key says what it is for."""

from __future__ import annotations

import copy
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from evo_kernel.deadline import LONGEST_S, seconds_of
from evo_kernel.errors import ConfigError
from evo_kernel.judge_place import LOCAL, judge_place

_Count = Annotated[int, Field(ge=1)]
MOST = 1e9
"""Of a weight or a price: sums and products of them are numbers that a population keeps."""
_Weight = Annotated[float, Field(ge=0, le=MOST)]
_Dollars = Annotated[float, Field(ge=0, le=MOST)]
_Seconds = Annotated[float, Field(gt=0)]


def _hours(value: object) -> object:
    """Hours as a number, or a duration such as 90s or 8h."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return seconds_of(value) / 3600


def _name_or_checkpoint(policy: str) -> str:
    """A checkpoint as an absolute path, which a resume finds from any working folder."""
    path = Path(policy).expanduser()
    is_path = os.sep in policy or path.suffix == ".pt" or (path / "policy.pt").is_file()
    return str(path.absolute()) if is_path else policy


_Policy = Annotated[str, AfterValidator(_name_or_checkpoint)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetConfig(_Section):
    """When a run ends. A key left out is no limit."""

    evaluations: Annotated[int, Field(ge=0)] | None = Field(default=None, description="plan sets that reach the check")
    hours: Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(_hours)] = Field(
        default=None, description='wall-clock hours over all sessions; or a duration, "90s", "8h"'
    )
    dollars: Annotated[float, Field(ge=0)] | None = Field(default=None, description="what language models may cost")
    tokens: Annotated[int, Field(ge=0)] | None = Field(default=None, description="language-model tokens, in and out")
    gpu_seconds: Annotated[float, Field(ge=0)] | None = Field(default=None, description="seconds that the GPU is busy")


class SelectionConfig(_Section):
    """How parents are chosen: weights of a mix."""

    thompson: _Weight = Field(
        default=0.5, description="a draw from each cell's posterior of log time; the best draw wins"
    )
    lexicase: _Weight = Field(default=0.3, description="epsilon-lexicase over the search cases")
    uniform: _Weight = Field(default=0.2, description="any passed candidate")


class PopulationConfig(_Section):
    """The memory of the search."""

    islands: _Count = Field(default=3, description="islands, once there are enough candidates")
    open_islands_after: _Count = Field(default=500, description="judged candidates before which there is one island")
    migrate_every: _Count = Field(default=50, description="judged candidates between migrations")
    contenders: _Count = Field(default=4, description="candidates kept in an archive cell, its elite included")
    selection: SelectionConfig = Field(default=SelectionConfig(), description="weights of the parent selectors")


class OperatorsConfig(_Section):
    """Which variation operators draw attempts, and how macro thinking picks."""

    mtmc: _Weight = Field(default=1.0, description="weight of macro thinking with the offline rewriter")
    crossover: _Weight = Field(default=0.15, description="weight of replaying another lineage's strategies")
    llm_mtmc: _Weight = Field(
        default=3.0, description="weight of macro thinking and micro coding by a model, given one"
    )
    llm_crossover: _Weight = Field(default=0.45, description="weight of merging two kernels by a model, given one")
    avo: _Weight = Field(default=0.0, description="weight of AVO, an agent as operator (docs/guides/agents.md)")
    use: tuple[str, ...] = Field(
        default=(),
        description="these operators alone, each at the same weight, instead of the mix: mtmc, crossover, llm-mtmc, "
        "llm-crossover, avo (docs/guides/agents.md), or installed ones",
    )
    installed: Mapping[str, _Weight] = Field(
        default={}, description="weights of operators that other packages offer (evo_kernel.operators), by name"
    )
    policy: _Policy = Field(
        default="bandit",
        description="how offline macro thinking picks a strategy: uniform, bandit, trained (before the run), a "
        "checkpoint of `evo-kernel train policy`, or the name of an installed one",
    )
    checkpoint: Path | None = Field(
        default=None,
        description="of the trained policy: a file of `evo-kernel train policy`; the one that comes along if left out",
    )
    max_steps: _Count = Field(default=1, description="strategies in one proposal, at most")


class JudgeConfig(_Section):
    """Where the judge is, and how much it does for one candidate."""

    at: Annotated[str, AfterValidator(judge_place)] = Field(
        default=LOCAL,
        description="local: this process judges; spool:DIR: the servers of a folder do, `evo-kernel judge DIR`; ray, "
        "ray:ADDRESS: the hosts of a Ray cluster (docs/guides/judges-elsewhere.md)",
    )
    environment: str = Field(
        default="",
        description="of judges elsewhere that differ: the key of the environment, or a part of its device's name",
    )
    deadline_s: Annotated[float, Field(gt=0, le=LONGEST_S)] = Field(
        default=60.0, description="of one recording, one compile, one check"
    )
    tune_plans: Annotated[int, Field(ge=0, le=64)] = Field(
        default=8, description="knob settings tried beyond the source's own"
    )
    tune_within: Annotated[float, Field(ge=1)] = Field(
        default=1.5, description="tune only what is within this factor of the best time"
    )
    assembler: str = Field(
        default="bundled",
        description="ptxas: Triton's own, `package` (of `nvidia-cuda-nvcc`), or a path; its version belongs to the "
        "environment of a score",
    )
    unconfined: bool = Field(default=False, description="go on where candidate code cannot be confined at all")


class ModelConfig(_Section):
    """One language model. Several share the conversations by weight."""

    name: str = Field(description="provider/model as litellm spells it, a name that your server knows, or `scripted`")
    base_url: str | None = Field(default=None, description="a server that speaks the chat-completions protocol")
    api_key_env: str | None = Field(default=None, description="the environment variable that holds the key")
    price_in: _Dollars | None = Field(default=None, description="dollars a million prompt tokens, if litellm has none")
    price_out: _Dollars | None = Field(default=None, description="dollars a million answered tokens")
    price_cached: _Dollars | None = Field(default=None, description="dollars a million prompt tokens from the cache")
    weight: _Weight = Field(default=1.0, description="share of conversations; 0: asked where no other answers")
    max_tokens: _Count = Field(default=16384, description="of one answer, at most")
    temperature: Annotated[float, Field(ge=0)] | None = Field(default=None, description="the provider's if left out")
    structured: bool | None = Field(default=None, description="takes a JSON schema; by litellm's table if left out")
    cache_marks: bool | None = Field(default=None, description="takes cache marks; by litellm's table if left out")
    try_s: _Seconds = Field(default=300.0, description="of one request")
    deadline_s: _Seconds = Field(default=900.0, description="of one question, with all its tries and waits")

    @field_validator("base_url")
    @classmethod
    def _plain(cls, url: str | None) -> str | None:
        """An address is stored with the run; a key is not."""
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no address: write it like http://localhost:8000/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("an address is stored with the run, so keep keys out of it: name a variable (api_key_env)")
        return url

    @model_validator(mode="after")
    def _both_prices(self) -> ModelConfig:
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("price_in and price_out go together (dollars a million tokens)")
        return self


class AgentsConfig(_Section):
    """How operators with a language model work."""

    policy: _Policy = Field(
        default="llm",
        description="who picks strategies: llm, mixed (llm and bandit), bandit, uniform, trained "
        "(operators.checkpoint), an installed one",
    )
    coder: Literal["combined", "llm", "rewriter"] = Field(
        default="combined",
        description="who carries them out: the rewriter where it can and else the model, or one alone",
    )
    hierarchy: bool = Field(default=True, description="first what to change, then how; off: faster, in one go")
    knowledge: bool = Field(default=True, description="prompts hold passages from the knowledge base")
    edits: _Count = Field(default=4, description="edits of one attempt that may build on each other")
    repairs: Annotated[int, Field(ge=0)] = Field(
        default=3, description="failed answers of one attempt that are answered"
    )
    turns: _Count = Field(default=120, description="answers of one attempt of an agent (avo)")
    attempt_hours: _Seconds = Field(default=3.0, description="that one attempt of an agent may work (avo)")
    answer_tokens: _Count = Field(default=8192, description="of one answer of a coder, at most")
    when_money_is_out: Literal["go on", "end"] = Field(
        default="go on",
        description="go on with operators that need no model until another limit is reached, or end the run",
    )


class KnowledgeConfig(_Section):
    """What agents can look up."""

    folders: tuple[Path, ...] = Field(
        default=(), description="folders of Markdown or text files that are searched beside the shipped notes"
    )


class Config(_Section):
    """One run."""

    task: str | None = Field(default=None, description="a built-in task, or the path of a task file")
    population: Path | None = Field(
        default=None, description="the population file; TASK.db in the working folder if left out"
    )
    first: Annotated[str, Field(pattern=r"^(all|auto|[^:\s]+:[\w.]+)$")] = Field(
        default="all",
        description="roots: auto starts from the first kernel (the task's SEED, else what lowering writes, else "
        "torch.compile's kernels); all from torch.compile's beside it (docs/internals/lowering.md); "
        "package.module:function from that function of an installed package in place of the first kernel",
    )
    seeds: tuple[Path, ...] = Field(
        default=(),
        description="kernels that are planted beside the first kernel: paths of Python modules, or "
        "package.module:function",
    )
    start_from: Literal["gallery"] | Path | None = Field(
        default=None,
        description="another population whose best kernels are planted beside the first kernel; gallery: the champion "
        "that comes along and computes what the task does (`evo-kernel champions TASK`)",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="of every random draw of the search")
    width: Annotated[int, Field(ge=1, le=1024)] = Field(default=2, description="attempts in flight")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="cuda measures, cpu models, auto takes what is there"
    )
    gpus: Annotated[str, BeforeValidator(str), Field(pattern=r"^([1-9][0-9]*|all)$")] = Field(
        default="1", description="how many of this machine's GPUs judge side by side: a number, or all"
    )
    budget: BudgetConfig = Field(default=BudgetConfig(), description="when the run ends")
    search: PopulationConfig = Field(default=PopulationConfig(), description="the memory of the search")
    operators: OperatorsConfig = Field(default=OperatorsConfig(), description="the variation operators")
    models: Mapping[str, ModelConfig] = Field(
        default={}, description="language models by a name of yours: [models.main] name = ..."
    )
    agents: AgentsConfig = Field(default=AgentsConfig(), description="operators with a language model")
    judge: JudgeConfig = Field(default=JudgeConfig(), description="the judge")
    knowledge: KnowledgeConfig = Field(default=KnowledgeConfig(), description="what agents can look up")


_GONE = ("best-of-n", "sequential", "session", "external")  # operators of earlier versions


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """A configuration from a TOML file (or the defaults) and `section.key=value` overrides. Raises ConfigError."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(_find(path).read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        config_from(data, str(path))  # what is wrong from here on is no fault of the file
    for override in overrides:
        _set(data, override)
    return config_from(data, "--set")


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """A configuration with some keys set, as `section.key=value`. Raises ConfigError."""
    data = config.model_dump(mode="json")
    for override in overrides:
        _set(data, override)
    return config_from(data, "--set")


def config_from(data: dict[str, Any], origin: str) -> Config:
    """Validate plain data. Raises ConfigError that names the key, and the nearest valid one."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(fault, origin) for fault in error.errors())) from error


def stored_config(data: Mapping[str, Any], origin: str) -> tuple[Config, list[str]]:
    """The configuration that a file holds, and what of it this version does not have. Raises ConfigError."""
    kept, gone = copy.deepcopy(dict(data)), []
    if used := kept.get("operators", {}).get("use"):
        kept["operators"]["use"] = [name for name in used if name not in _GONE]
        gone += [f"operators.use={name}" for name in used if name in _GONE]
    if kept.get("first") in ("both", "compiled"):  # of earlier versions
        kept["first"] = "all"
    try:
        Config.model_validate(kept)
    except ValidationError as error:
        for *sections, last in (fault["loc"] for fault in error.errors() if fault["type"] == "extra_forbidden"):
            place: Any = kept
            for section in sections:
                place = place[section]
            del place[last]
            gone.append(".".join(map(str, [*sections, last])))
    return config_from(kept, origin), gone


def keys() -> Iterator[tuple[str, str, Any]]:
    """(dotted key, description, default) of every setting: for documentation and near misses."""
    yield from _keys(Config, "")


def _keys(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, Any]]:
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _keys(type(field.default), f"{prefix}{name}.")
        elif name == "models":
            yield from _keys(ModelConfig, "models.NAME.")
        else:
            yield prefix + name, field.description or "", field.default


def _find(path: Path) -> Path:
    """A configuration by path, or by name among those that ship with the package."""
    here = Path(__file__).resolve().parent
    for place in (path, here.parent / path, here.parent / "configs" / path.name, here / "configs" / path.name):
        if place.is_file():
            return place
    shipped = sorted(p.name for p in [*(here.parent / "configs").glob("*.toml"), *(here / "configs").glob("*.toml")])
    raise ConfigError(f"there is no configuration {path}. Shipped ones: {', '.join(dict.fromkeys(shipped))}.")


def _set(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override}: write it as key=value, for example budget.hours=0.5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, last = key.strip().split(".")
    place = data
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override}: {section} is not a section")
    place[last] = value


def _explain(fault: Any, origin: str) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] != "extra_forbidden":
        return f"{origin}: {key}: {fault['msg']}"
    known = [name for name, _, _ in keys()]
    sections = sorted({name.rsplit(".", 1)[0] for name in known if "." in name})
    near = difflib.get_close_matches(key, [*known, *sections], n=1, cutoff=0.4)
    near = near or [name for name in known if name.split(".")[-1] == key.split(".")[-1]][:1]
    hint = f"; did you mean {near[0]}?" if near else f"; sections are {', '.join(sections)}"
    return f"{origin}: there is no key {key}{hint}"
