import pytest
import torch

from evo_kernel.fitness.ir.counting import Counter, most_of
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Pointer

HEAD = """module {{
  tt.func public @k(%x: !tt.ptr<i32>) {{
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %me = tt.get_program_id x : i32
{body}
    tt.return
  }}
}}"""


def _load(name: str, index: str, tag: str) -> str:
    return f"%p{tag} = tt.addptr %x, {index} : !tt.ptr<i32>, i32\n%{name} = tt.load %p{tag} : !tt.ptr<i32>\n"


APART = _load("a", "%c0", "1") + _load("b", "%c1", "2")
CHAIN = _load("a", "%c0", "1") + _load("b", "%a", "2") + _load("c", "%b", "3")
LOOP = f"scf.for %i = %c0 to %c3 step %c1 : i32 {{\n{CHAIN}}}\n"
BRANCH = _load("a", "%c0", "1") + "%on = arith.cmpi eq, %a, %c0 : i32\nscf.if %on {\n" + _load("b", "%c1", "2") + "}\n"
CARRIED = (
    _load("a", "%c0", "1")
    + "%r = scf.for %i = %c0 to %c3 step %c1 iter_args(%q = %a) -> (i32) : i32 {\n"
    + _load("b", "%q", "2")
    + "scf.yield %b : i32\n}\n"
)
STORED = _load("a", "%c0", "1") + "tt.store %p1, %a : !tt.ptr<i32>\n" + _load("b", "%c1", "2")
ATOMIC = (
    "%p = tt.addptr %x, %c0 : !tt.ptr<i32>, i32\n%on = arith.constant true\n"
    "%a = tt.atomic_rmw add, relaxed, gpu, %p, %c0, %on : (!tt.ptr<i32>, i32, i1) -> i32\n"
) + _load("b", "%a", "1")
UNEVEN = f"%on = arith.cmpi eq, %me, %c0 : i32\nscf.if %on {{\n{CHAIN}}}\n"


@pytest.mark.parametrize(
    ("body", "rounds"),
    [(APART, [1, 1]), (CHAIN, [3, 3]), (LOOP, [9, 9]), (BRANCH, [2, 2]), (CARRIED, [4, 4]), (STORED, [2, 2]),
     (ATOMIC, [2, 2]), (UNEVEN, [3, 0])],
    ids=["apart", "chain", "loop", "branch", "carried", "stored", "atomic", "uneven"],
)  # fmt: skip
def test_a_round_is_a_load_that_waits_for_another(body, rounds):
    memory, module = DeviceMemory(), parse(HEAD.format(body=body))
    memory.add(16, defined=True)
    memory.buffers[0].data.zero_()
    counter = Counter(module, memory, 2, footprints=False)
    found = launch(module, (2, 1, 1), [Pointer(buffer=0)], memory, programs=torch.arange(2), observer=counter)
    assert found.finding is None or found.finding.kind == "race"
    assert counter.by_program["rounds"].tolist() == rounds


TURNS = f"""scf.while : () -> () {{
  %turn = tt.addptr %x, %me : !tt.ptr<i32>, i32
  %on = arith.constant true
  %flag = tt.atomic_rmw add, acquire, gpu, %turn, %c0, %on : (!tt.ptr<i32>, i32, i1) -> i32
  %again = arith.cmpi eq, %flag, %c0 : i32
  scf.condition(%again)
}} do {{
  scf.yield
}}
{CHAIN}
%mine = tt.addptr %x, %me : !tt.ptr<i32>, i32
%next = tt.addptr %mine, %c1 : !tt.ptr<i32>, i32
%yes = arith.constant true
%old = tt.atomic_rmw exch, release, gpu, %next, %c1, %yes : (!tt.ptr<i32>, i32, i1) -> i32
"""


def test_who_waits_for_another_program_is_not_done_before_it():
    memory, module = DeviceMemory(), parse(HEAD.format(body=TURNS))
    memory.add(16, defined=True)
    memory.buffers[0].data.copy_(torch.tensor([1, 0, 0, 0], dtype=torch.int32).view(torch.uint8))
    counter = Counter(module, memory, 3, footprints=False)
    launch(module, (3, 1, 1), [Pointer(buffer=0)], memory, programs=torch.arange(3), observer=counter)
    assert counter.by_program["rounds"].tolist() == [3, 3, 3]
    assert most_of(counter)["most.rounds"] == 9
