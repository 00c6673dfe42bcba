import dataclasses

import pytest

from evo_kernel.fitness.compile import instructions, machine_code, module_state, nvrtc
from tests.fitness.test_launch_kinds import needs_nvrtc

pytestmark = needs_nvrtc

BODY = 'extern "C" __global__ void sums(const double* x, float* y, int n) { %s }'
HONEST = """
__device__ __noinline__ float twice(float v) { return 2 * v; }
__device__ __noinline__ float thrice(float v) { return 3 * v; }
extern "C" __global__ void sums(const double* x, float* y, int n) {
    const float table[5] = {1, 2, 3, 4, 5};
    float (*either)(float) = n > 0 ? twice : thrice;
    if (n < 0) printf("%d of $ %s", n, __func__);
    assert(n > 0 && "rows");
    y[0] = sin(x[0]) + pow(x[1], x[2]) + table[n] + twice(y[1]) + either(y[2]);
    switch (n) { CASES }
}
""".replace("CASES", " ".join(f"case {n}: y[{n}] = {n}.5f / y[n]; break;" for n in range(12)))
ENTRY = 'unsigned long long a; asm volatile("mov.u64 %%0, %s;" : "=l"(a)); y[0] = a;'


def _fault(code: str) -> str:
    made = nvrtc.load().compile(code, "sums", 90, (nvrtc.SILENT,))
    return module_state.fault_of(made.cubin, "", code)


def test_honest_cuda_leaves_nothing_behind():
    assert _fault(HONEST) == ""


def test_assembly_beside_a_table_of_the_library_is_allowed():
    """The table is a variable of the module, which only assembly that spells its name could reach."""
    code = BODY % (
        'float a; asm volatile("{ .reg .f32 acc;\\n\\tld.global.nc.f32 acc, [%1]; mov.f32 %0, acc; }" : "=f"(a) : "l"(y)); '
        "double s, c; sincos(x[0], &s, &c); y[1] = a * s + c;"
    )
    assert machine_code.variables(nvrtc.load().compile(code, "sums", 90, (nvrtc.SILENT,)).cubin)
    assert _fault("#include <cuda_fp16.h>\n" + code) == ""


@pytest.mark.parametrize("use", ["*(volatile int*)a", "atomicAdd((int*)a, 1)", "*(volatile int*)a = n"])
def test_accesses_that_may_be_of_local_memory_are_counted(use):
    """So that it is cleared where code has no frame: assembly takes its address."""
    code = BODY % f'unsigned long long a; asm volatile("cvta.local.u64 %0, 64;" : "=l"(a)); y[0] = {use};'
    cubin = nvrtc.load().compile(code, "sums", 90, (nvrtc.SILENT,)).cubin
    assert machine_code.resources(cubin).stack_bytes == 0 and _fault(code) == ""
    assert instructions.instruction_counts(cubin)["generic"] > 0


def test_accesses_of_global_memory_alone_are_not_generic():
    cubin = nvrtc.load().compile(BODY % "y[n] = x[n];", "sums", 90, (nvrtc.SILENT,)).cubin
    assert "generic" not in instructions.instruction_counts(cubin)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("__device__ int assertFile_0[4];" + BODY % "y[0] = assertFile_0[n]++;", "variable assertFile_0"),
        ("__device__ __managed__ int printfFormat_0;" + BODY % "y[0] = printfFormat_0++;", "variable printfFormat_0"),
        ("__constant__ int assertFunc_7[2] = {1, 2};" + BODY % "y[0] = assertFunc_7[n];", "variable assertFunc_7"),
        ("#define T(a) __cudar ## a\n__device__ int T(t_x)[2];" + BODY % "y[0] = T(t_x)[n]++;", "variable __cudart_x"),
        (BODY % 'char* s = (char*)"text"; y[0] = ++s[n];', "variable $str"),
        (BODY % "char* s = (char*)__func__; y[0] = ++s[n];", "variable __unnamed_1"),
        ("#undef printf\n" + BODY % "printf(0);", "it calls vprintf"),
        (BODY % (ENTRY % "sums"), "address of the function sums"),
        (BODY % "y[0] = clock64();", "reads a clock"),
        (BODY % 'int a; asm volatile("mov.u32 %0, %%pm3;" : "=r"(a)); y[0] = a;', "performance counter"),
        (BODY % 'int a; asm volatile("mov.u32 %0, %%envreg2;" : "=r"(a)); y[0] = a;', "driver's workspace"),
        (
            BODY % 'long long a; asm volatile("mov.b64 %0, {%%envreg2, %%envreg1};" : "=l"(a)); y[0] = a;',
            "driver's work",
        ),
    ],
)
def test_what_would_outlive_a_launch_is_refused(code, says):
    assert says in _fault(code)


TABLE = "static constexpr char name[] = {95, 95, 99, 117, 100, 97, 114, 116, 0};"
TABLE += "double s, c; sincos(x[0], &s, &c); y[0] = s; asm volatile(%s);"


@pytest.mark.parametrize(
    ("before", "assembly"),
    [
        ("", '"st.global.u32 [__cudart_i2opi_d], 3;"'),
        ("", '"st.global.u32 [__cuda" "rt_i2opi_d], 3;"'),
        ("", r'"st.global.u32 [__\x63udart_i2opi_d], 3;"'),
        ("", 'R"z(st.global.u32 [__cud)z" "art_i2opi_d], 3;"'),
        ("#define A(a) #a\n", '"st.global.u32 [" A(__c) "udart_i2opi_d], 3;"'),
        ("#define A(a) /*\n*/ #a\n", '"st.global.u32 [" A(__c) "udart_i2opi_d], 3;"'),
        ("", '"st.global.u32 [%0_i2opi_d], 3;" :: "C"(name)'),
    ],
)
def test_assembly_that_spells_a_table_of_the_library_is_refused(before, assembly):
    assert "variable __cudart_i2opi_d" in _fault(before + BODY % (TABLE % assembly))


SCALE = """
  tt.func public @scale(%d: !tt.tensordesc<tensor<1x16xf32>>, %y: !tt.ptr<i64>) {
    %zero = arith.constant 0 : i32
    %x = tt.descriptor_load %d[%zero, %zero] : !tt.tensordesc<tensor<1x16xf32>> -> tensor<1x16xf32>
    ASSEMBLY
"""
LINE = '%%1 = tt.elementwise_inline_asm "%s" {constraints = "=l,r"} %%zero : i32 -> i64'


@pytest.mark.parametrize("text", ["mov.u64 $0, %rd7; // $1", "mov.u64 $0, %rd$1;", "mov.u64 $0, $1$2;"])
def test_a_register_of_the_compiler_beside_a_tensor_map_is_refused(text):
    cubin = nvrtc.load().compile(BODY % "", "sums", 90, ()).cubin
    line = LINE % text
    assert "address of a parameter" in module_state.fault_of(cubin, SCALE.replace("ASSEMBLY", line), "")
    assert not module_state.fault_of(cubin, line, "")  # no tensor map, no address


@pytest.mark.parametrize(
    "text", ["ex2.approx.f32 $0, $1;", "mov.u32 $0, %smid;", "{ .reg .b16 a<2>; mov.b32 {a0, a1}, $1; }"]
)
def test_assembly_of_own_registers_beside_a_tensor_map_is_allowed(text):
    cubin = nvrtc.load().compile(BODY % "", "sums", 90, ()).cubin
    assert not module_state.fault_of(cubin, SCALE.replace("ASSEMBLY", LINE % text), "")


def test_a_tensor_map_is_no_operand_of_assembly():
    cubin = nvrtc.load().compile(BODY % "", "sums", 90, ()).cubin
    line = LINE.replace("%%zero : i32", "%%d : !tt.tensordesc<tensor<1x16xf32>>") % "ld.u32 $0, [$1];"
    assert "address of a parameter" in module_state.fault_of(cubin, SCALE.replace("ASSEMBLY", line), "")


def test_what_waits_in_cccl_reads_no_clock(tmp_path):
    header = tmp_path / "cuda" / "std" / "__cuda" / "chrono.h"
    header.parent.mkdir(parents=True)
    now = '(uint64_t __time; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(__time)::); return __time;)'
    header.write_text("#define uint64_t unsigned long long\n__device__ uint64_t now() {" + now[1:-1] + "}")
    found = nvrtc.load()
    library = dataclasses.replace(found, include=(*found.include, str(tmp_path)))
    code = "#include <cuda/std/__cuda/chrono.h>\n" + BODY % "y[0] = now();"
    assert module_state.fault_of(library.compile(code, "sums", 90, ()).cubin, "", code) == ""


def test_a_relocation_counts_in_the_hash():
    """Two sources whose code differs in nothing but the function that an address is of."""
    others = 'extern "C" __global__ void one(float* y) { y[0] = 1; }\n'
    others += 'extern "C" __global__ void two(float* y) { y[0] = 2; }\n'
    made = [nvrtc.load().compile(others + BODY % (ENTRY % name), "sums", 90, ()).cubin for name in ("one", "two")]
    assert [machine_code.addressed_functions(cubin) for cubin in made] == [("one",), ("two",)]
    assert machine_code.code_hash(made[0], "sums") != machine_code.code_hash(made[1], "sums")
