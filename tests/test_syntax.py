import gc
import sys
import threading

import pytest

from evo_kernel import syntax


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
            for _ in range(10):
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


@pytest.mark.parametrize("text", ["flood " * 50_000, "x = " + "(" * 3000 + ")" * 3000])
def test_text_that_is_too_much_for_the_parser_is_a_syntax_error(text):
    with pytest.raises(SyntaxError):
        syntax.parse_module(text)
    with pytest.raises(SyntaxError):
        syntax.parse_expression(text.removeprefix("x = "))
