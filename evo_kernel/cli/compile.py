"""`compile`: what the machine code of kernels needs and does, without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from evo_kernel.cli.options import DEVICE, JSON, PATH, TASK, UNCONFINED, read_source, with_settings


@click.command()
@click.argument("files", metavar="FILE...", type=PATH, nargs=-1, required=True)
@TASK
@click.option("--case", "case_name", help="Compile for the shapes of this case; by default the first search case.")
@with_settings
@DEVICE
@click.option("--sass", is_flag=True, help="Also print the machine code, with source lines.")
@click.option("--ptx", is_flag=True, help="Also print the PTX.")
@UNCONFINED
@JSON
def compile(
    files: tuple[Path, ...],
    task_name: str,
    case_name: str | None,
    knobs: tuple[str, ...],
    settings_file: Path | None,
    device: str,
    sass: bool,
    ptx: bool,
    unconfined: bool,
    as_json: bool,
) -> None:
    """Compile the kernels of FILE and tell what their machine code needs and does; it needs no GPU and runs nothing.

    Of each kernel: registers, spills, shared memory, blocks an SM and what limits them, tensor-core and copy
    instructions, instructions of each loop by the line that it comes from, and the assembler's warnings (wgmma that is
    serialised, setmaxnreg that is ignored). Triton, Gluon and CUDA C++. Several files or settings give a table. Without
    a GPU, or with --device cpu, the code is for an H200 (sm_90). Exit code 1 if one does not compile.

    \b
    evo-kernel compile mine.py --task softmax
    evo-kernel compile mine.py --task matmul --knobs BLOCK_M=64,STAGES=3 --knobs BLOCK_M=128,STAGES=4
    evo-kernel compile variants/*.py --task my_op.py --settings settings.json --json
    """
    from evo_kernel.app import early_start

    early_start.begin(None, "cpu")
    from evo_kernel.app import compiling
    from evo_kernel.app.variants import settings_of, variants_of
    from evo_kernel.fitness.costmodel.targets import target_for
    from evo_kernel.fitness.runners.choose import arch_of
    from evo_kernel.tasks.loading import load

    variants = variants_of([(str(file), read_source(file)) for file in files], settings_of(knobs, settings_file))
    task, arch = load(task_name), arch_of(device)
    made = compiling.compile_variants(task, variants, case_name, arch, unconfined)
    if as_json:
        told = [one.as_data(sass, ptx) for one in made]
        click.echo(json.dumps(told if len(told) > 1 else told[0]))
    else:
        compiling.show_compiled(made, f"{target_for(arch).name} (sm_{arch})", sass, ptx)
    if any(one.report.fault for one in made):
        sys.exit(1)
