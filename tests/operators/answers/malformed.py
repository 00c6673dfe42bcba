"""Answers that must end in a repair request: (name, answer, part of the reason)."""

from __future__ import annotations

from tests.operators.answers.source import BOTH, CALL, FUSED, SCALE, SOURCE
from tests.operators.support_model import block

ONE = block(SCALE, BOTH)
FILE = f"```python\n{FUSED}```"
NO_EDIT, MISFIT = "holds no edit", "not in the source"
_LOAD = "    x = tl.load(x_ptr + cols, mask=mask)"


def _swap(old: str, new: str, text: str = ONE) -> str:
    assert old in text
    return text.replace(old, new)


MALFORMED: list[tuple[str, str, str]] = [
    # nothing to apply
    ("empty", "", NO_EDIT),
    ("blanks", "  \n \n", NO_EDIT),
    ("refusal", "I'm sorry, but I can't help with that.", NO_EDIT),
    ("prose only", "Fuse the two kernels, then drop the second launch.", NO_EDIT),
    ("a question", "Which GPU is this for?", NO_EDIT),
    ("code without a fence", FUSED, NO_EDIT),
    ("json", '{"search": "a", "replace": "b"}', NO_EDIT),
    ("a tool call in text", '<tool_call>{"name": "edit", "arguments": {}}</tool_call>', NO_EDIT),
    ("only thinking", "<think>\nperhaps fuse\n</think>", NO_EDIT),
    ("only CONTINUE", "CONTINUE", NO_EDIT),
    ("inline code", "Use `tl.store(y_ptr + cols, x * 2.0 + 1.0)`.", NO_EDIT),
    ("repeated token", "the " * 4000, NO_EDIT),
    ("aider-like file name", "scale.py\nSEARCH\nREPLACE", NO_EDIT),
    ("html", "<pre>def run(x):\n    return x</pre>", NO_EDIT),
    ("NUL", "\0" + ONE, "NUL"),
    # fences
    ("a diff fence", "```diff\n-a\n+b\n```", "'diff'"),
    ("a json fence", '```json\n{"a": 1}\n```', "'json'"),
    ("a cpp fence", "```cpp\nint run() {}\n```", "'cpp'"),
    ("a shell fence", "```bash\nsed -i s/a/b/ x.py\n```", "'bash'"),
    ("a fence that does not end", FILE.removesuffix("```"), "does not end"),
    ("a file cut in the middle", FILE[: len(FILE) // 2], "does not end"),
    ("a fence with one kernel only", f"```python\n{SOURCE[SOURCE.index('@triton'):SOURCE.index('def run')]}```", "no whole file"),
    ("run indented", "```python\n    def run(x):\n        return x\n```", "no whole file"),
    ("an async run", "```python\nasync def run(x):\n    return x\n```", "no whole file"),
    ("a class", "```python\nclass Model:\n    pass\n```", "no whole file"),
    ("an empty fence", "```python\n```", "no whole file"),
    ("two files", f"{FILE}\n\n{FILE}", "2 fences"),
    ("a file and a snippet", f"{FILE}\n\n```python\nassert True\n```", "other fences"),
    ("a file that leaves out", _swap(BOTH, "    # ... rest of the kernel unchanged", FILE), "leaves code out"),
    ("a file with dots", _swap(BOTH, "    ...", FILE), "leaves code out"),
    ("a file, existing code", _swap(BOTH, "    # existing code here", FILE), "leaves code out"),
    ("a file and blocks", f"{ONE}\n{FILE}", "blocks and a whole file"),
    # markers
    ("no divider", _swap("=======\n", ""), "needs `=======`"),
    ("no end", _swap(">>>>>>> REPLACE\n", ""), "no `>>>>>>> REPLACE`"),
    ("cut in the search", ONE[: ONE.index("=======")], "no `=======`"),
    ("cut in the replacement", ONE[: ONE.index(">>>>>>>") - 9], "no `>>>>>>> REPLACE`"),
    ("six marks", _swap("<<<<<<< SEARCH", "<<<<<< SEARCH"), "outside a block"),
    ("eight marks", _swap("<<<<<<< SEARCH", "<<<<<<<< SEARCH"), "outside a block"),
    ("lower case", _swap("SEARCH", "search"), "outside a block"),
    ("original/updated", ONE.replace("SEARCH", "ORIGINAL").replace("REPLACE", "UPDATED"), "outside a block"),
    ("git markers", ONE.replace("SEARCH", "HEAD").replace("REPLACE", "branch"), "outside a block"),
    ("end marker lower case", _swap(">>>>>>> REPLACE", ">>>>>>> replace"), "needs `>>>>>>> REPLACE`"),
    ("end marker with a name", _swap(">>>>>>> REPLACE", ">>>>>>> REPLACE scale.py"), "needs `>>>>>>> REPLACE`"),
    ("two dividers", _swap("=======\n", "=======\n=======\n"), "needs `>>>>>>> REPLACE`"),
    ("a block in a block", block(SCALE, ONE), "needs `>>>>>>> REPLACE`"),
    ("search twice", _swap("<<<<<<< SEARCH\n", "<<<<<<< SEARCH\n<<<<<<< SEARCH\n"), "needs `=======`"),
    ("a stray end", ONE + ">>>>>>> REPLACE\n", "outside a block"),
    ("a stray divider", "=======\n" + ONE, "outside a block"),
    ("indented markers", "\n".join("  " + line for line in ONE.split("\n")), NO_EDIT),
    ("quoted markers", "\n".join("> " + line for line in ONE.split("\n")), NO_EDIT),
    ("an empty search", block("", BOTH), "has nothing between"),
    ("a blank search", block("   \n", BOTH), "has nothing between"),
    ("itself", block(SCALE, SCALE), "by themselves"),
    ("a fence inside", block(SCALE, f"```python\n{BOTH}\n```"), "code fence"),
    ("dots for lines", block(SCALE, "    ...\n" + BOTH), "leaves code out"),
    ("rest unchanged", block(SCALE, BOTH + "\n    # rest of the kernel unchanged"), "leaves code out"),
    ("same as before", block(SCALE, BOTH + "\n    # ... same as before"), "leaves code out"),
    # blocks that do not fit
    ("wrong indentation", block(SCALE.strip(), BOTH.strip()), MISFIT),
    ("deeper indentation", block("    " + SCALE, "    " + BOTH), MISFIT),
    ("tabs", block(SCALE.replace("    ", "\t"), BOTH), MISFIT),
    ("line numbers", block(" 16 " + SCALE, BOTH), MISFIT),
    ("another name", block(SCALE.replace("y_ptr", "out_ptr"), BOTH), MISFIT),
    ("a typo", block(SCALE.replace("cols", "col"), BOTH), MISFIT),
    ("half a line", block("    tl.store(y_ptr + cols, x * 2.0", BOTH), MISFIT),
    ("two lines in one", block(_LOAD + "; " + SCALE.strip(), BOTH), MISFIT),
    ("a line missing inside", block("    mask = cols < n\n" + SCALE, BOTH), MISFIT),
    ("dots in the search", block("def scale_kernel(...):\n    ...\n" + SCALE, BOTH), MISFIT),
    ("code of another kernel", block("    acc += tl.dot(a, b)", "    acc = tl.dot(a, b, acc)"), MISFIT),
    ("code of another world", block("SELECT * FROM WHERE;", "DROP;"), "Nothing there is like them"),
    ("a diff as search", block("-" + SCALE, "+" + BOTH), MISFIT),
    ("smart quotes", block('“““Scale and shift.”””', '"""One."""'), MISFIT),
    ("ambiguous", block(_LOAD, _LOAD.replace(")", ", other=0.0)")), "2 places"),
    ("already in", block("    y = torch.empty(x.shape)", "    y = torch.empty_like(x)"), "in already"),
    ("the second does not fit", ONE + block(CALL + "  # fuse", ""), MISFIT),
    ("the same block twice", ONE + ONE, "in already"),
    # texts that are no module
    ("unbalanced", block(SCALE, BOTH.removesuffix(")")), "not valid Python"),
    ("wrong block", block(CALL, "        " + CALL), "not valid Python"),
    ("prose in code", block(SCALE, BOTH + "\nThis is faster."), "not valid Python"),
    ("run is gone", block("def run(x):", "def launch(x):"), "no top-level `def run"),
    ("python 2", block("    n = x.numel()", "    n = x.numel()\n    print n"), "not valid Python"),
    ("a file that does not parse", "```python\ndef run(x):\n    return (x\n```", "not valid Python"),
    ("a file of one endless line", "```python\ndef run(x):\n    " + "flood " * 50_000 + "\n```", "not valid Python"),
    ("a file nested too deeply", "```python\ndef run(x):\n    return " + "(" * 3000 + "x" + ")" * 3000 + "\n```", "not valid Python"),
    ("the same file", f"```python\n{SOURCE}```", "changes nothing"),
    ("back and forth", ONE + block(BOTH, SCALE), "changes nothing"),
]  # fmt: skip
