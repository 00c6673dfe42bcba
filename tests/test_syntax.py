import ast
import gc
import sys
import threading

import pytest

from evo_kernel import syntax
from evo_kernel.types import Source


@pytest.fixture
def switching():
    """Threads switch as often as they can, and inside conversions too: a gc callback written in Python lets them."""
    before, callback = sys.getswitchinterval(), lambda *_: sum(range(50))
    gc.callbacks.append(callback)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.callbacks.remove(callback)


def test_threads_parse_at_once(switching):
    text, raised = (
        "\n".join(f"def f{n}(x):\n    return [x * {n} + g(x, y=[{n}]) for _ in range(3)]" for n in range(300)),
        [],
    )

    def parse():
        try:
            for _ in range(7):
                syntax.parse_module(text)
                syntax.parse_expression("a + b[c](d, e=f)")
        except SystemError as error:
            raised.append(error)

    threads = [threading.Thread(target=parse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


@pytest.mark.parametrize(
    "text",
    ["flood " * 50_000, "x = " + "(" * 3000 + ")" * 3000, "x = " + "+".join(["0"] * 900), "x = " + "-" * 20_000 + "1"],
)
def test_text_that_is_too_much_for_the_parser_is_a_syntax_error(text):
    with pytest.raises(SyntaxError):
        syntax.parse_module(text)
    with pytest.raises(SyntaxError):
        syntax.parse_expression(text.removeprefix("x = "))


@pytest.mark.parametrize(("opened", "closed"), [("{1: ", "}"), ("a and (b or ", ")"), ("[", "]"), ("f(x=", ")")])
def test_whatever_is_parsed_can_be_spelled_again(opened, closed):
    """As deep as may be, with as much of Python's stack in use as an engine's thread or a test has."""
    for times in reversed(range(syntax.MAX_DEPTH)):
        try:
            tree = syntax.parse_expression(opened * times + "c" + closed * times)
        except SyntaxError as error:
            assert "nested deeper than 150 levels" in error.msg and error.lineno == 1
        else:
            assert times > syntax.MAX_DEPTH // 3 and ast.unparse(tree)
            return


def test_the_fault_of_a_deep_text_names_its_line():
    with pytest.raises(SyntaxError) as caught:
        syntax.parse_module("\n\n@(" + "+".join(["0"] * 400) + ")\ndef run(x):\n    return x\n")
    assert caught.value.lineno == 3


def test_half_of_a_surrogate_pair_makes_no_source():
    with pytest.raises(SyntaxError, match="surrogate pair") as caught:
        Source('import torch\n\nSIGN = "\ud83d"\n')
    assert caught.value.lineno == 3
    assert Source('SIGN = "\U0001f600"').sha256
