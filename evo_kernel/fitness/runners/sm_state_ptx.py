"""PTX of the kernels that overwrite SM state; see sm_state.py.

The assembler names all but the last 2 of a thread's registers, so one kernel leaves 2 rows of each warp's share of the
register file. Shares of 168 and of 32 registers end at different rows, but for the file's last, which end every share
that reaches them: no code can name those. Shares of 32 also fill all warp slots, each with uniform registers and
predicates of its own.
"""

from __future__ import annotations

SM_THREADS, WARP_THREADS, LOCAL_THREADS = 384, 512, 512  # per block of each kernel
_SM_REGISTERS, _WARP_REGISTERS = 168, 32  # per thread
_UNIFORM = 56  # values that make the assembler name all of its uniform registers, UR4 to UR61; with more it uses none
_PREDICATES = 7

_HEAD = """
.version 6.4
.target sm_75
.address_size 64
"""
_MEET = """
    bar.sync 0;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %go, %thread, 0;
    @%go bra met;
    ld.param.u64 %arrived, [arrived];
    ld.param.u64 %all, [all];
    atom.global.add.u64 %seen, [%arrived], 1;
wait:
    ld.volatile.global.u64 %seen, [%arrived];
    setp.lt.u64 %go, %seen, %all;
    @%go bra wait;
met:
    bar.sync 0;
    ret;
"""
"""End of both kernels: a block waits until so many blocks have arrived since the counter was created."""


def sm_text() -> str:
    """PTX that fills shared memory, then its registers."""
    return f"""{_HEAD}
.extern .shared .align 16 .b8 word[];
.visible .entry clear_sm(.param .u64 arrived, .param .u64 all, .param .u32 reserved, .param .u32 bytes)
.maxntid {SM_THREADS}, 1, 1
.maxnreg {_SM_REGISTERS}
{{
    .reg .pred %go;
    .reg .b32 %thread, %at, %end, %mark, %reserved, %v<{_SM_REGISTERS}>;
    .reg .b64 %arrived, %all, %seen;
    mov.u32 %thread, %tid.x;
    shl.b32 %at, %thread, 4;
    mov.u32 %end, word;
    add.u32 %at, %at, %end;
    ld.param.u32 %mark, [bytes];
    add.u32 %end, %end, %mark;
    ld.param.u32 %reserved, [reserved];
    sub.u32 %at, %at, %reserved;
    mov.u32 %mark, 0xffffffff;
fill:
    st.volatile.shared.v4.u32 [%at], {{%mark, %mark, %mark, %mark}};
    add.u32 %at, %at, {16 * SM_THREADS};
    setp.lt.u32 %go, %at, %end;
    @%go bra fill;
    bar.sync 0;
{_held(_SM_REGISTERS)}{_MEET}}}
"""


def warps_text() -> str:
    """PTX that fills uniform registers, predicates and registers of every warp slot.

    Values that depend on each other crosswise are all live at once, and those of a parameter alone are uniform.
    """
    values, apart = range(_UNIFORM), (1, 5)
    uniform = [f"mul.lo.u32 %u{i}, %one, {2 * i * i + 12345};" for i in values]
    for step in apart:
        for i in values:
            uniform += [f"xor.b32 %u{i}, %u{i}, %u{(i + step) % _UNIFORM};", f"add.u32 %u{i}, %u{i}, {7 * i + step};"]
    predicates = [
        f"ld.volatile.shared.u32 %v0, [word]; setp.lt.u32 %p{i}, %v0, {1 << 4 * i};" for i in range(_PREDICATES)
    ]
    for step in (1, 3):
        predicates += [f"xor.pred %p{i}, %p{i}, %p{(i + step) % _PREDICATES};" for i in range(_PREDICATES)]
    predicates += [f"@%p{i} st.volatile.shared.u32 [word], %one;" for i in range(_PREDICATES)]
    uniform += [f"{'add.u32' if i % 2 else 'xor.b32'} %u0, %u0, %u{i};" for i in values[1:]]
    return f"""{_HEAD}
.shared .align 16 .b8 word[16];
.visible .entry clear_warps(.param .u64 arrived, .param .u64 all, .param .u32 one)
.maxntid {WARP_THREADS}, 1, 1
.maxnreg {_WARP_REGISTERS}
{{
    .reg .pred %go, %p<{_PREDICATES}>;
    .reg .b32 %thread, %one, %u<{_UNIFORM}>, %v<{_WARP_REGISTERS}>;
    .reg .b64 %arrived, %all, %seen;
    ld.param.u32 %one, [one];
    {" ".join(uniform)}
    st.volatile.shared.u32 [word], %u0;
    bar.sync 0;
    {" ".join(predicates)}
{_held(_WARP_REGISTERS)}{_MEET}}}
"""


def _held(registers: int) -> str:
    """PTX with so many values live at once, a few more than there are registers: volatile accesses keep their order."""
    loads = "".join(f"    ld.volatile.shared.u32 %v{n}, [word];\n" for n in range(registers))
    return loads + "".join(f"    st.volatile.shared.u32 [word], %v{n};\n" for n in range(registers))


def local_text(size: int) -> str:
    return f"""{_HEAD}
.visible .entry clear_local(.param .u64 arrived, .param .u64 all)
.maxntid {LOCAL_THREADS}, 1, 1
{{
    .local .align 16 .b8 frame[{size}];
    .reg .pred %go;
    .reg .b32 %thread, %mark;
    .reg .b64 %arrived, %all, %seen, %at, %end;
    mov.u64 %at, frame;
    cvta.local.u64 %at, %at;
    add.u64 %end, %at, {size};
    mov.u32 %mark, 0xffffffff;
fill:
    st.volatile.v4.u32 [%at], {{%mark, %mark, %mark, %mark}};
    add.u64 %at, %at, 16;
    setp.lt.u64 %go, %at, %end;
    @%go bra fill;
{_MEET}}}
"""
