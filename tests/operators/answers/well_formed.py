"""Answers that must apply, and to what."""

from __future__ import annotations

from tests.operators.answers.source import BOTH, CALL, FUSED, SCALE, SHIFT, SOURCE
from tests.operators.support_model import block

ONE = block(SCALE, BOTH)
ONE_DONE = SOURCE.replace(SCALE, BOTH)
TWO = ONE + block(CALL, "")
FILE = f"```python\n{FUSED}```"
FRAMES = {
    "bare": "{}",
    "prose before": "I fold the shift into the first kernel.\n\n{}",
    "prose after": "{}\nThat saves one launch.",
    "prose around": "The bottleneck is launches.\n\n{}\n\nThe sign: one launch fewer.",
    "headings": "# Plan\n\nFuse.\n\n# Edit\n\n{}",
    "list before": "1. fuse\n2. drop the launch\n\n{}",
    "thinking": "<think>\nIs x + 1 elementwise? Yes.\n</think>\n{}",
    "blank lines": "\n\n\n{}\n\n\n",
    "unicode prose": "Größe × Takt → schneller ✓\n{}",
    "inline code": "`shift_kernel` goes away.\n{}",
    "quote": "> one strategy, and nothing else\n\n{}",
    "rule of dashes": "---\n{}\n---",
    "underlined heading": "Edit\n====\n\n{}",
    "table": "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n{}",
}


def _fenced(body: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{body}{fence}"


def _dos(text: str) -> str:
    return text.replace("\n", "\r\n")


FORMS: list[tuple[str, str, str]] = [
    ("one block in a fence", _fenced(ONE), ONE_DONE),
    ("one block in a bare fence", _fenced(ONE, ""), ONE_DONE),
    ("one block in a text fence", _fenced(ONE, "text"), ONE_DONE),
    ("each block in its own fence", _fenced(ONE) + "\n\n" + _fenced(block(CALL, "")), FUSED),
    ("prose between blocks", ONE + "\nand the launch goes:\n\n" + block(CALL, ""), FUSED),
    ("windows line ends", _dos(TWO), FUSED),
    ("old mac line ends", TWO.replace("\n", "\r"), FUSED),
    ("trailing blanks in the search", block(SCALE + "   ", BOTH), ONE_DONE),
    ("blank lines around the search", block("\n" + SCALE + "\n", BOTH), ONE_DONE),
    ("trailing blanks after markers", ONE.replace("SEARCH\n", "SEARCH  \n").replace("=======\n", "======= \n"), ONE_DONE),
    ("a block of several lines", block(f"    x = tl.load(x_ptr + cols, mask=mask)\n{SCALE}", f"    x = tl.load(x_ptr + cols, mask=mask, other=0.0)\n{BOTH}"),
     SOURCE.replace(f"    x = tl.load(x_ptr + cols, mask=mask)\n{SCALE}", f"    x = tl.load(x_ptr + cols, mask=mask, other=0.0)\n{BOTH}")),
    ("a block that deletes", block(CALL, ""), SOURCE.replace(CALL + "\n", "")),
    ("a block that inserts", block("BLOCK = 256", "BLOCK = 256\nSTAGES = 2"), SOURCE.replace("BLOCK = 256", "BLOCK = 256\nSTAGES = 2")),
    ("a block on what the block before wrote", ONE + block(BOTH, SCALE.replace("2.0", "3.0")), SOURCE.replace(SCALE, SCALE.replace("2.0", "3.0"))),
    ("context makes an ambiguous line unique", block("def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                                                     "def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n    cols = tl.arange(0, BLOCK)"),
     SOURCE.replace("def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
                    "def shift_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n    cols = tl.arange(0, BLOCK)")),
    ("ellipsis index in code", block(SCALE, "    x = tl.expand_dims(x, 0)[0, ...]\n" + BOTH), SOURCE.replace(SCALE, "    x = tl.expand_dims(x, 0)[0, ...]\n" + BOTH)),
    ("a comment with the word rest", block(SCALE, "    # spread over the rest of the warps? no: see the mask\n" + BOTH).replace("rest of", "remainder of"),
     SOURCE.replace(SCALE, "    # spread over the remainder of the warps? no: see the mask\n" + BOTH)),
    ("whole file", FILE, FUSED),
    ("whole file, py fence", _fenced(FUSED, "py"), FUSED),
    ("whole file, bare fence", _fenced(FUSED, ""), FUSED),
    ("whole file, upper case", _fenced(FUSED, "Python"), FUSED),
    ("whole file, four backticks", _fenced(FUSED, "python", "````"), FUSED),
    ("whole file, tildes", _fenced(FUSED, "python", "~~~"), FUSED),
    ("whole file, windows line ends", _dos(FILE), FUSED),
    ("whole file, blank lines inside the fence", f"```python\n\n\n{FUSED}\n\n```", FUSED),
    ("whole file, no last line end", _fenced(FUSED.rstrip("\n") + "\n"), FUSED),
    ("whole file, indented fence", f"  ```python\n{FUSED}  ```", FUSED),
    ("last block without a line end", ONE.rstrip("\n"), ONE_DONE),
    ("go on", ONE + "\nCONTINUE\n", ONE_DONE),
    ("go on after a file", FILE + "\n\nCONTINUE", FUSED),
    ("markers in the middle of lines are code", block(SCALE, BOTH + "  # a <<<<<<< SEARCH b"), SOURCE.replace(SCALE, BOTH + "  # a <<<<<<< SEARCH b")),
    ("three blocks", ONE + block(CALL, "") + block("BLOCK = 256", "BLOCK = 512"), FUSED.replace("BLOCK = 256", "BLOCK = 512")),
    ("a row of equals signs in code", block("BLOCK = 256", "# ====\nBLOCK = 256"), SOURCE.replace("BLOCK = 256", "# ====\nBLOCK = 256")),
    ("shift first", block(SHIFT, SHIFT.replace("1.0", "2.0")), SOURCE.replace(SHIFT, SHIFT.replace("1.0", "2.0"))),
]  # fmt: skip

WELL_FORMED = [
    *((f"blocks, {name}", frame.format(TWO), FUSED) for name, frame in FRAMES.items()),
    *((f"file, {name}", frame.format(FILE), FUSED) for name, frame in FRAMES.items()),
    *FORMS,
]
