"""The knowledge base: ranking, hostile queries, budgets, users' folders, threads, and what the installed Triton offers."""

from __future__ import annotations

import importlib
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evo_kernel.errors import UserError
from operators.knowledge import passages
from operators.knowledge.base import KnowledgeBase, tokens
from operators.knowledge.passages import PASSAGE_CHARS, fit, passages_of, tokens_of


@pytest.fixture(scope="module")
def base() -> KnowledgeBase:
    return KnowledgeBase()


QUESTIONS = {
    "why does my matmul not use wgmma": "wgmma.md#which-tldot-of-a-matmul-becomes-wgmma",
    "tl.dot block shapes that give HGMMA instead of HMMA": "wgmma.md",
    "how do I choose num_stages": "pipelining.md#what-num_stages-does",
    "loop is not pipelined, profile shows schedule plain": "pipelining.md#why-a-loop-was-not-pipelined",
    "tensor memory accelerator descriptor rules alignment": "pipelining.md#tma-the-tensor-memory-accelerator",
    "is TMA worth it for small tiles": "pipelining.md#when-tma-pays-and-when-it-does-not",
    "mbarrier phase parity hang": "pipelining.md#mbarrier",
    "16-byte vectorized coalesced loads": "memory.md#coalescing-and-vector-width",
    "bandwidth of HBM3e on the H200": "memory.md#levels-of-the-memory-hierarchy",
    "is my kernel memory bound or compute bound": "memory.md#is-it-memory-bound-or-compute-bound",
    "registers spill, reduce register pressure": "occupancy.md#limited-by-registers",
    "how many programs are resident on an SM": "occupancy.md",
    "tail effect waves quantization": "occupancy.md#waves-and-tails",
    "shared memory bank conflicts padding swizzle": "shared_memory.md",
    "persistent kernel over tiles": "grids.md#persistent-kernels",
    "grouped tile order for L2 reuse": "grids.md#tile-order-and-the-l2",
    "split-k for skinny matmul": "grids.md#split-k",
    "stream-K decomposition": "grids.md#stream-k",
    "online softmax rescaling": "attention.md#online-softmax",
    "skip masked blocks in causal attention": "attention.md#causal-masks-skip-and-order",
    "flash decoding single query long context": "attention.md#decoding-in-two-stages-split-kv",
    "merge partial attention outputs with log-sum-exp": "attention.md#merging-parts-by-log-sum-exp",
    "many responses share one prompt prefix attention": "attention.md#a-prompt-shared-by-many-responses",
    "convolution as implicit GEMM channels last": "convolution.md",
    "im2win transform": "convolution.md#im2win",
    "welford variance layernorm numerically stable": "numerics.md#variance-two-passes-welford-or-shifted",
    "tf32 versus ieee input_precision": "numerics.md#tf32-ieee-tf32x3",
    "exp2 instead of exp": "numerics.md#exp-exp2-log2",
    "what does the judge refuse, why was I rejected": "integrity.md",
    "runtime_error illegal memory access": "integrity.md#statuses-and-what-to-do",
    "long_scoreboard stalls in the profile": "profile_table.md#stall-reasons",
    "bound by latency what should I try": "profile_table.md#from-the-bound-to-the-next-move",
    "fuse bias and activation epilogue": "fusion.md#epilogues-of-products",
    "int4 quantised weights dequantize": "fusion.md#quantised-weights",
    "sum over all elements to one scalar deterministically": "rows.md#reducing-everything-to-one-number",
    "softmax over short rows several rows per program": "rows.md#several-rows-a-program",
    "type of variable changes in loop compile error": "pitfalls.md",
    "what should I try first for a row kernel like softmax": "where_to_start.md#order-of-changes-by-kind-of-kernel",
    "output is NaN in some rows, how to repair": "where_to_start.md#repairing-a-broken-kernel",
    "CUDA C++ register array local memory": "cuda_cpp.md#registers-and-local-memory",
    "gluon warp specialization producer consumer registers": "gluon.md#warp-roles",
}


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items(), ids=list(QUESTIONS.values()))
def test_question_finds_its_note(base, question, answer):
    found = [passage.source.removeprefix("evo-kernel/") for passage in base.search(question, k=3)]
    assert any(source.startswith(answer) for source in found), found


def test_most_answers_come_first(base):
    first = sum(base.search(q, k=1)[0].source.startswith(f"evo-kernel/{a}") for q, a in QUESTIONS.items())
    assert first >= 0.8 * len(QUESTIONS), first


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tl.dot", "triton.language#dot"),
        ("make_tensor_descriptor block_shape", "triton.language#make_tensor_descriptor"),
        ("signature of tl.range", "triton.language#range"),
        ("warpgroup_mma", "triton.experimental.gluon.language.nvidia.hopper#warpgroup_mma"),
        ("do_bench", "triton.testing#do_bench"),
        ("TensorDescriptor", "triton.tools.tensor_descriptor#TensorDescriptor"),
        ("triton.autotune", "triton#autotune"),
    ],
)
def test_a_name_finds_what_is_installed(base, name, source):
    assert f"triton-{version('triton')}/{source}" in [passage.source for passage in base.search(name, k=2)]


def test_api_passages_name_real_things():
    entries = [entry for entry in passages.api_passages() if not entry.listing]
    assert len(entries) > 200
    for entry in entries:
        path, name = entry.passage.source.split("/", 1)[1].split("#")
        assert callable(getattr(importlib.import_module(path), name)), entry.passage.source
        assert entry.passage.text.startswith(f"`{entry.names[0]}(")
        assert "_semantic" not in entry.passage.text.split("\n")[0], entry.passage.text.split("\n")[0]
    names = {name for entry in entries for name in entry.names}
    assert names >= {"tl.load", "tl.dot", "triton.Config", "hopper.mbarrier.wait", "gl.NVMMASharedLayout", "tl.sum"}


def test_api_signatures_are_those_of_the_installed_version(base):
    import inspect

    import triton.language as tl

    (passage,) = base.search("tl.load", k=1)
    for parameter in inspect.signature(tl.load).parameters:
        assert parameter.startswith("_") or parameter in passage.text.split("\n")[0]


def test_modules_that_a_version_lacks_are_left_out(monkeypatch):
    monkeypatch.setitem(passages.MODULES, "triton.no_such_module", "nothing")
    assert list(passages.api_passages())


def test_without_triton_the_notes_remain(monkeypatch):
    monkeypatch.setattr(passages.importlib, "import_module", missing)
    base = KnowledgeBase()
    assert base.search("online softmax")[0].source.startswith("evo-kernel/attention.md")
    assert "does not import" in base.skipped[0]


def missing(name):
    raise ImportError(f"no {name}")


HOSTILE = (
    '" OR 1=1 --', "title:wgmma", "NEAR(a b, 3)", "wgmma*", "(((", '"""', "^tl", "a AND", "NOT", "-", "", "   ", "\0", "%s%n",
    "{title}: x", "; DROP TABLE passages", "\ud800", "é" * 5000, "🦆", "_", ".", "..._", "a.b.c.d" * 999, "名前 空間",
)  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_are_only_words(base, query):
    base.search(query)
    assert base.search("wgmma")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), st.integers(-3, 9), st.integers(-5, 3000))
def test_any_text_is_a_query(base, query, k, budget):
    found = base.search(query, k, budget)
    assert len(found) <= max(k, 0)
    assert sum(tokens_of(p.text) + tokens_of(p.source + p.title) for p in found) <= max(budget, 0)


def test_identifiers_are_found_whole_and_by_parts():
    assert list(tokens("tl.dot_scaled")) == ["tl.dot_scaled", "tl", "dot", "scaled"]
    assert list(tokens("NVMMASharedLayout(x).")) == ["nvmmasharedlayout", "nvmma", "shared", "layout", "x"]
    assert list(tokens("`num_stages=3`, sm_90.")) == ["num_stages", "num", "stages", "3", "sm_90", "sm", "90"]


def test_users_folders_are_searched_and_named(tmp_path):
    notes = tmp_path / "mine"
    (notes / "deep").mkdir(parents=True)
    (notes / "deep" / "zebra.md").write_text("# Zebra tiles\nintro\n## Striping\nThe quagga order stripes tiles.\n")
    (notes / "plain.txt").write_text("An okapi prefetch distance of seven.")
    (notes / ".hidden").mkdir()
    (notes / ".hidden" / "secret.md").write_text("okapi okapi okapi")
    (notes / "binary.md").write_bytes(b"\xff\xfe\x00okapi")
    (notes / "data.csv").write_text("okapi,1")
    base = KnowledgeBase([notes])
    (found,) = base.search("quagga striping", k=1)
    assert (found.source, found.title) == ("mine/deep/zebra.md#striping", "Zebra tiles › Striping")
    assert [p.source for p in base.search("okapi")] == ["mine/plain.txt"]
    assert [sentence for sentence in base.skipped if "binary.md" in sentence]
    assert base.search("online softmax")[0].source.startswith("evo-kernel/")


def test_folders_of_one_name_are_told_apart(tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent / "notes").mkdir(parents=True)
        (tmp_path / parent / "notes" / "x.md").write_text(f"okapi of {parent}")
    found = KnowledgeBase([tmp_path / "a" / "notes", tmp_path / "b" / "notes"]).search("okapi")
    assert len({passage.source for passage in found}) == 2


def test_a_missing_folder_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no knowledge folder .*nowhere.*knowledge\.folders"):
        KnowledgeBase([tmp_path / "nowhere"])


def test_budget_cuts_between_paragraphs(base):
    whole = base.search("online softmax", k=1, budget_tokens=5000)[0]
    part = base.search("online softmax", k=1, budget_tokens=300)[0]
    assert part.text.endswith("[…]") and whole.text.startswith(part.text.removesuffix("\n\n[…]"))
    assert part.text.count("```") % 2 == 0
    assert base.search("online softmax", budget_tokens=10) == ()
    assert fit("short", 10) == "short"


def test_sections_with_fences_repeats_and_lengths():
    text = "lead\n# A\none\n## B\n```sh\n# no heading\n```\n## B\ntwo\n# C\n" + "word " * 900 + "\n\n" + "more " * 300
    found = list(passages_of(text, "n.md"))
    assert [(p.source, p.title) for p in found[:4]] == [
        ("n.md", "n.md"), ("n.md#a", "A"), ("n.md#b", "A › B"), ("n.md#b-1", "A › B"),
    ]  # fmt: skip
    assert "# no heading" in found[2].text
    assert all(len(p.text) <= PASSAGE_CHARS for p in found) and {p.source for p in found[4:]} == {"n.md#c"}
    assert sum(p.text.count("word") + p.text.count("more") for p in found) == 1200


def test_many_threads_get_the_same_answers():
    base = KnowledgeBase(api=False)
    alone = {q: KnowledgeBase(api=False).search(q) for q in list(QUESTIONS)[:4]}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(base.search, list(alone) * 40))
    assert answers == list(alone.values()) * 40


def test_a_search_takes_milliseconds(base):
    base.search("warm")
    taken = []
    for question in QUESTIONS:
        start = time.perf_counter()
        base.search(question)
        taken.append(time.perf_counter() - start)
    assert sorted(taken)[len(taken) // 2] < 0.005
