"""From collected kernels and lines to the text of a module in the house style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evo_kernel.tasks.lowering.module import Branch, LoweredLaunch, numbered

LINE = 112

HEADER = '''"""{title}"""

{imports}

{constants}
'''


def render(title: str, modules: Sequence[tuple[Branch, Sequence[Sequence[Any]]]], functions: Sequence[str] = ()) -> str:
    """The whole module. Each entry is one traced branch with the inputs that `run` takes it for.

    `functions`: texts of jitted functions that kernels call.
    Kernels with equal texts are written once, whichever branch launches them.
    """
    defaults: dict[str, dict[str, int]] = {}
    for module, _ in modules:
        for kernel, knobs in module.defaults.items():
            known = defaults.setdefault(kernel, dict(knobs))
            for knob, value in knobs.items():
                known[knob] = max(known[knob], value)
    names: dict[str, str] = {}
    for kernel in defaults:
        names[kernel] = numbered(set(names.values()), kernel.split("\0")[0])
    # Knobs are plain where there is one kernel, and carry its name where there are several.
    prefixes = {k: "" if len(names) == 1 else n.replace("_kernel", "").upper() + "_" for k, n in names.items()}
    constants = [f"{prefixes[k]}{knob} = {value}" for k, knobs in defaults.items() for knob, value in knobs.items()]
    names = {kernel: name + "_kernel" for kernel, name in names.items()}
    kernels = [_kernel(names[kernel], kernel.split("\0")[1]) for kernel in defaults]
    body = _run(_chosen(modules), names, prefixes)
    imports = ["import torch", "import triton", "import triton.language as tl"]
    if "math." in body:
        imports.insert(0, "import math\n")
    header = HEADER.format(title=title, imports="\n".join(imports), constants="\n".join(constants))
    return "\n\n".join([header, *functions, *kernels, body])


def _kernel(name: str, text: str) -> str:
    parameters, body = text.split("\n", 1)
    line = f"def {name}{parameters}"
    if len(line) > LINE:
        inside = parameters.removeprefix("(").removesuffix("):")
        constexprs = [part for part in inside.split(", ") if part.endswith("tl.constexpr")]
        plain = [part for part in inside.split(", ") if part not in constexprs]
        line = f"def {name}(\n    {', '.join(plain)},\n    {', '.join(constexprs)},\n):"
    return f"@triton.jit\n{line}\n{body}"


def _chosen(modules: Sequence[tuple[Branch, Sequence[Sequence[Any]]]]) -> list[tuple[Branch, str]]:
    """Each branch with the test by which `run` takes it; branches that would read the same are one.

    A trace may assume more than what is written from it depends on: of PyTorch 2.11's pooling, that a size is odd.
    """
    groups: list[tuple[list[Branch], list[Sequence[Any]]]] = []
    for module, served in modules:
        twins, cases = next((group for group in groups if _same(group[0][0], module)), ([], []))
        if not twins:
            groups.append((twins, cases))
        twins.append(module)
        cases.extend(served)
    chosen = []
    for index, (twins, _) in enumerate(groups):
        later = [case for _, cases in groups[index + 1 :] for case in cases]
        tests = list(dict.fromkeys(twin.traced.test_against(later) for twin in twins))
        chosen.append((twins[0], tests[0] if len(tests) == 1 else " or ".join(f"({test})" for test in tests)))
    return chosen


def _same(one: Branch, other: Branch) -> bool:
    return (one.traced.names, _read_sizes(one), one.lines) == (other.traced.names, _read_sizes(other), other.lines)


def _run(modules: Sequence[tuple[Branch, str]], names: dict[str, str], prefixes: dict[str, str]) -> str:
    if len(modules) == 1:
        return _function("run", modules[0][0], names, prefixes)
    functions, choice = [], []
    arguments = ", ".join(modules[0][0].traced.names)
    for index, (module, test) in enumerate(modules):
        functions.append(_function(f"run_{index}", module, names, prefixes))
        last = index == len(modules) - 1
        choice += [] if last else [f"    if {test}:"]
        choice.append(f"    {'' if last else '    '}return run_{index}({arguments})")
    return "\n\n".join([*functions, "\n".join([f"def run({arguments}):", *choice]) + "\n"])


def _function(name: str, module: Branch, names: dict[str, str], prefixes: dict[str, str]) -> str:
    lines = [f"def {name}({', '.join(module.traced.names)}):", *_read_sizes(module)]
    for line in module.lines:
        lines.append("    " + (line if isinstance(line, str) else _launch(line, names, prefixes)))
    return "\n".join(lines) + "\n"


def _read_sizes(module: Branch) -> list[str]:
    """`n0, n1 = x.shape` for every input of which a size is used."""
    traced, lines = module.traced, []
    for position, argument in enumerate(traced.names):
        places = {dim: traced.size_name(symbol) for symbol, (where, dim) in traced.symbols.items() if where == position}
        used = {dim: name for dim, name in places.items() if name in module.used}
        if used:
            targets = [used.get(dim, "_") for dim in range(traced.inputs[position].dim())]
            lines.append(f"    {', '.join(targets)}{',' if len(targets) == 1 else ''} = {argument}.shape")
    return lines


def _launch(launch: LoweredLaunch, names: dict[str, str], prefixes: dict[str, str]) -> str:
    prefix = prefixes[launch.kernel]
    grid = launch.grid.format(**{knob: prefix + knob for knob in launch.knobs})
    options = [f"{knob.lower() if knob.startswith('NUM_') else knob}={prefix}{knob}" for knob in launch.knobs]
    call = f"{names[launch.kernel]}[{grid}]"
    arguments = [*launch.args, *options]
    loop = "    " * launch.depth
    flat = f"{loop}{call}({', '.join(arguments)})"
    if len(flat) <= LINE - 4:
        return flat
    inside = f"\n{loop}        "
    return f"{loop}{call}({inside}{', '.join(launch.args)},{inside}{', '.join(options)},\n{loop}    )"
