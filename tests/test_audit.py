"""Thirteen categories: right kernels have no finding, planted bugs are found by their category."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from mutants import BASES, BOOK, SPLIT, VECTOR, WARP
from wild import NAN, WILD

from sgemm_lab.ladder import Step, Variant, ladder, own
from sgemm_lab.learn.audit import CATEGORIES, RECORD, audit, audits, main, recorded, theirs
from sgemm_lab.learn.trials import ABSENT, FOUND, NONE, OPEN, SHORT
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import PtxBackend, ptx
from sgemm_lab.run.check import check
from sgemm_lab.run.launch import launch
from sgemm_lab.run.profile import profile

pytestmark = pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC here")

NAIVE, TILED = ladder[1], ladder[2]
STEPS = [step for step in ladder if step.function]


@dataclass(frozen=True)
class Planted:
    """A right kernel with texts replaced; `category` must find it, and `says` stands in the
    evidence."""

    category: str
    name: str
    kernel: Step | Variant
    edits: tuple[tuple[str, str], ...]
    says: str

    @property
    def variant(self) -> Variant:
        variant = self.kernel() if isinstance(self.kernel, Step) else self.kernel
        step = variant.step
        for old, new in self.edits:
            step = step.edited(old, new)
        return Variant(step, variant.items)


def planted(category: str, name: str, kernel, *texts: str, says: str) -> Planted:
    """`texts`: old, new, old, new, …"""
    return Planted(category, name, kernel, tuple(zip(texts[::2], texts[1::2], strict=True)), says)


_KERNEL = 'extern "C" __global__ void'
_STORE = "*c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;"
_SUM = "sum += A[(size_t)row * K + k] * B[(size_t)k * N + col];"

PLANTED = (
    planted("bounds", "no check of the row", NAIVE, "if (row < M && col < N)", "if (col < N)",
            says="past its end"),
    planted("bounds", "vectors from odd places", ladder[6], "(K | N) % 4 == 0 && ", "",
            says="not a multiple of 16 bytes"),
    planted("races", "no barrier after the products", TILED,
            "        __syncthreads();\n        As[threadIdx.y]", "        As[threadIdx.y]",
            says=r"writes As\[0\]\[0\], which thread .* read at line \d+, a round before"),
    planted("races", "double buffering without its barrier", ladder[11],
            "        left -= BK;\n\n        __syncthreads();", "        left -= BK;\n",
            says=r"reads As\[0\].*, which thread .* writes"),
    planted("barriers", "threads outside leave", TILED, "    float sums[ACCUMULATORS] = {};",
            "    if (row >= M || col >= N) return;\n    float sums[ACCUMULATORS] = {};",
            says="waits at a barrier that thread .* never reaches"),
    planted("barriers", "barrier in a branch", TILED,
            "        __syncthreads();\n\n#pragma unroll\n        for (int k",
            "        if (threadIdx.x < 16) __syncthreads();\n\n#pragma unroll\n        for (int k",
            says="waits at a barrier that thread .* never reaches"),
    planted("uninitialised", "no zeros beyond K", TILED,
            "As[threadIdx.y][threadIdx.x] = a_next;",
            "if (k0 + threadIdx.x < K) As[threadIdx.y][threadIdx.x] = a_next;",
            says=r"reads As\[.*no thread of the block has written"),
    planted("uninitialised", "beta times whatever is there", NAIVE, _STORE,
            "*c = alpha * sum + beta * *c;", says=r"reads C\[0, 0\], which nobody has written"),
    planted("uninitialised", "a sum that begins anywhere", NAIVE, "float sum = 0.0f;", "float sum;",
            says="reads a variable before anything is put there"),
    planted("overflow", "row of A in 32 bits", NAIVE, "A[(size_t)row * K + k]", "A[row * K + k]",
            says="wraps around"),
    planted("overflow", "row of B in 32 bits", NAIVE, "B[(size_t)k * N + col]",
            "B[(unsigned)k * N + col]", says="wraps around"),
    planted("overflow", "row of C in 32 bits", TILED, "&C[(size_t)row * N + col]",
            "&C[row * N + col]", says="don't store the last element"),
    planted("architectures", "cp.async on every chip", NAIVE, "        float sum = 0.0f;\n",
            '        float sum = 0.0f;\n        asm volatile("cp.async.commit_group;");\n',
            says="does not compile for sm_75"),
    planted("architectures", "other arithmetic from sm_80 on", NAIVE, _SUM,
            f"#if __CUDA_ARCH__ >= 800\nsum += 1 + {_SUM[7:]}\n#else\n{_SUM}\n#endif",
            says="sm_80 it computes other bits than for sm_75"),
    planted("architectures", "an instruction of sm_90 alone", NAIVE, "        float sum = 0.0f;\n",
            '        float sum = 0.0f;\n        asm volatile("fence.proxy.async;");\n',
            says="does not compile for sm_75"),
    planted("warps", "half of the lanes named", WARP.variant, "__syncwarp(); // halved",
            "__syncwarp(0xffff);", says="mask"),
    planted("warps", "a shuffle that not all reach", NAIVE, _STORE,
            "if (threadIdx.x < 20) sum = __shfl_sync(0xffffffff, sum, threadIdx.x);\n"
            f"        __syncwarp();\n        {_STORE}",
            says="mask"),
    planted("ordering", "blocks of neighbours overlap", NAIVE, "        *c = beta",
            "        if (col + 1 < N) c[1] = sum;\n        *c = beta", says="in the same launch"),
    planted("ordering", "a block reads what another wrote", NAIVE, "        *c = beta",
            "        sum += 0.0f * C[0];\n        *c = beta", says="in the same launch"),
    planted("errors", "a trap where K is odd", NAIVE, "        float sum = 0.0f;\n",
            '        float sum = 0.0f;\n        if (K % 2) asm volatile("trap;");\n', says="trap"),
    planted("errors", "a loop that steps over its end", TILED, "k0 < K; k0 += TILE",
            "k0 != K; k0 += TILE", says="still running"),
    planted("seams", "sums that no launch resets", NAIVE, _KERNEL,
            f"__device__ float left;\n{_KERNEL}", "        float sum = 0.0f;",
            "        float sum = left;", _STORE,
            f"{_STORE}\n        if (row == 0 && col == 0) left = 1.0f;", says="elements wrong"),
    planted("seams", "a ticket that is never given back", NAIVE, _KERNEL,
            f"__device__ unsigned launches;\n{_KERNEL}", "    if (row < M && col < N) {",
            "    const bool late = launches > gridDim.x * gridDim.y;\n"
            "    if (threadIdx.x + threadIdx.y == 0) atomicAdd(&launches, 1u);\n"
            "    if (!late && row < M && col < N) {", says="elements wrong"),
    planted("aliasing", "an input as scratch", NAIVE, "        *c = beta",
            "        if (col == 0) ((float*)A)[(size_t)row * K] *= 2.0f;\n        *c = beta",
            says="writes to A, an input"),
    planted("aliasing", "C through the read-only path", NAIVE, "beta * *c;", "beta * __ldg(c);",
            says="reads C as data that nobody writes"),
    planted("aliasing", "one array for A and B left out", NAIVE, "if (row < M && col < N)",
            "if (A != B && row < M && col < N)", says="one array for A and B"),
    planted("numbers", "zeros skipped", NAIVE, _SUM,
            f"if (A[(size_t)row * K + k] != 0.0f && B[(size_t)k * N + col] != 0.0f) {_SUM}",
            says="against a zero in B"),
    planted("numbers", "subnormals flushed", NAIVE, _SUM,
            f"if (fabsf(A[(size_t)row * K + k] * B[(size_t)k * N + col]) >= 1.2e-38f) {_SUM}",
            says="subnormal products"),
    planted("numbers", "ten bits of the inputs", NAIVE, "A[(size_t)row * K + k] * B",
            "__int_as_float(__float_as_int(A[(size_t)row * K + k]) & 0xffffe000) * B",
            says="times the allowed error"),
    planted("numbers", "a NaN taken for the largest number", NAIVE, _STORE,
            f"sum = fminf(sum, 3.4e38f);\n        {_STORE}", says="(inf|nan) in A"),
    planted("coupling", "a literal for TILE", TILED, "for (int k = 0; k < TILE; ++k)",
            "for (int k = 0; k < 32; ++k)", says="with TILE="),
    planted("coupling", "illegal settings compile", TILED, "TILE >= 1 && TILE * TILE <= 1024",
            "true", says="compiles, though"),
    planted("coupling", "bounds below the block", NAIVE, "__launch_bounds__(THREADS)",
            "__launch_bounds__(THREADS / 2)", says="no launch is possible"),
    planted("coupling", "the grid as a size", own(NAIVE.source, "naive", (32, 32), (32, 32, 1)),
            "(size_t)k * N + col", "(size_t)k * (gridDim.x * 32 < N + 32 ? N : 1) + col",
            says="a grid one block larger"),
)  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: f"{bug.category}: {bug.name}")
def test_a_planted_bug_is_found_by_its_category(bug):
    entry = audit(bug.variant, bug.category)[bug.category]
    assert entry.verdict == FOUND and re.search(bug.says, entry.evidence), entry


def test_each_category_has_two_planted_bugs_and_each_edit_stands_once():
    caught = [bug.category for bug in PLANTED]
    assert len(CATEGORIES) == 13 and all(caught.count(c.key) >= 2 for c in CATEGORIES)
    assert len({bug.variant.step.source for bug in PLANTED}) == len(PLANTED) >= 26


# --- right kernels --------------------------------------------------------------------------------

SMALL = {1, 2, 3, 4}  # the steps whose audits take little
RIGHT = [base.variant for base in BASES if base not in (*BOOK, SPLIT, VECTOR)]  # SPLIT adds to C


@pytest.mark.parametrize("step", [
    step if step.number in SMALL else pytest.param(step, marks=pytest.mark.slow) for step in STEPS
], ids=lambda step: step.stem)  # fmt: skip
def test_a_step_has_no_finding_and_its_record_says_the_same(step):
    found = audit(step)
    assert found.ok and {e.verdict for e in found.entries} <= {NONE, ABSENT}, found
    kept = recorded()[step.number]
    assert found == kept, "python -m sgemm_lab audit --record"


@pytest.mark.parametrize("variant", RIGHT, ids=lambda variant: variant.step.stem)
def test_a_right_kernel_that_is_no_step_has_no_finding(variant):
    keys = [each.key for each in CATEGORIES if each.key not in ("numbers", "coupling")]
    assert audit(variant, keys).ok


def test_a_kernel_that_takes_aligned_arrays_for_granted_is_told_so():
    entry = audit(VECTOR.variant, "bounds")["bounds"]
    assert entry.verdict == FOUND and "arrays 1, 2, 3 floats off a boundary" in entry.evidence


def test_a_kernel_that_takes_its_grid_for_granted_is_told_so():
    entry = audit(WARP.variant, "coupling")["coupling"]
    assert entry.verdict == FOUND
    assert re.search("a grid one block larger each way: .* reads B.*past its end", entry.evidence)


@pytest.mark.slow
@pytest.mark.parametrize("variant", RIGHT, ids=lambda variant: variant.step.stem)
def test_nor_in_its_numbers_and_macros(variant):
    keys = ["numbers", *["coupling"] * (variant is not WARP.variant)]
    assert audit(variant, keys).ok


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_other_settings_of_a_step_have_no_finding_either(step):
    first, *_, last = step.variants()
    assert audit(first).ok and audit(last).ok


# --- kernels from the wild ------------------------------------------------------------------------


@pytest.mark.parametrize("wild", WILD, ids=lambda wild: wild.name)
def test_the_audit_names_the_fault_of_a_kernel_from_the_wild(wild):
    found = audit(wild.code, wild.faults, block=wild.block, tile=wild.tile)
    for category, says in wild.faults.items():
        entry = found[category]
        assert entry.verdict == FOUND and re.search(says, entry.evidence), entry


@pytest.mark.parametrize("wild", WILD, ids=lambda wild: wild.name)
def test_and_its_author_had_reason_to_think_it_right(wild):
    variant = theirs(wild.code, wild.block, wild.tile)
    assert check(variant, wild.passes).ok


def test_a_comparison_that_nan_passes_takes_the_kernel_that_makes_them():
    variant = theirs(NAN.code, NAN.block, NAN.tile)
    A, B = (np.random.default_rng(0).random(s, dtype=np.float32) for s in ((16, 9), (9, 16)))
    C = launch(variant, A, B, on=ptx)
    assert not (abs(C - A @ B) > 1e-3).any() and np.isnan(C).any()


# --- a kernel of one's own ------------------------------------------------------------------------

MINE = """
#define T 8 // __global__ void not_this(int x)
/* nor __global__ void this(int y) */
extern "C" __global__ void __launch_bounds__(T * T)
mine(PARAMETERS) {
    size_t row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    if (row >= ROWS || col >= COLS) return;
    float sum = 0;
    for (int i = 0; i < DEEP; ++i) sum += A[row * DEEP + i] * B[(size_t)i * COLS + col];
    C[row * COLS + col] = VALUE;
}
"""


def mine(parameters, rows="M", cols="N", deep="K", value="sum", **names):
    code = MINE.replace("PARAMETERS", parameters).replace("ROWS", rows).replace("COLS", cols)
    code = code.replace("DEEP", deep).replace("VALUE", value)
    head, brace, body = code.partition(") {")
    for name, other in names.items():
        body = re.sub(rf"\b{name}\b", other, body)
    return head + brace + body


ARRAYS = "const float* A, const float* B, float* C"
WITH_BETA = "beta == 0 ? alpha * sum : alpha * sum + beta * C[row * N + col]"


@pytest.mark.parametrize("code, names", [
    (mine(f"{ARRAYS}, int M, int N, int K"), None),
    (mine(f"size_t M, size_t N, size_t K, {ARRAYS}"), None),
    (mine(f"unsigned M, unsigned N, unsigned K, float alpha, {ARRAYS}, float beta",
          value=WITH_BETA), None),
    (mine("int m, int n, int k, float *a, float *b, float *c", "m", "n", "k", A="a", B="b", C="c"),
     None),
    (mine(f"{ARRAYS}, int N", rows="N", deep="N"), None),
    (mine("int rows, int cols, int deep, const float* X, const float* Y, float* Z", "rows",
          "cols", "deep", A="X", B="Y", C="Z"), ("M", "N", "K", "A", "B", "C")),
])  # fmt: skip
def test_parameters_are_known_by_name_or_named(code, names):
    wanted = ["bounds", "seams", "aliasing", "numbers", "coupling", "errors"]
    found = audit(code, wanted, block=(8, 8), parameters=names)
    assert found.ok, found
    broken = code.replace("if (row >= ", "if (row > ")
    assert "bounds" in audit(broken, "bounds", block=(8, 8), parameters=names).found


FILE = """
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

__global__ void zero(int n, float* x);

namespace mine {
template <int BM, int BN>
__global__ void __launch_bounds__((BM * BN) / (2 - 1), 1)
tiled(int M, int N, int K, const float* A, const float* B, float* C) {
    const uint32_t row = blockIdx.y * BM + threadIdx.x / BN;
    const uint32_t col = blockIdx.x * BN + threadIdx.x % BN;
    float sum = 0;
    if (row >= M || col >= N) return;
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * K + k] * B[(size_t)k * N + col];
    C[(size_t)row * N + col] = sum;
}
}

__global__ void zero(int n, float* x) { x[blockIdx.x] = 0; }

#ifndef __CUDACC_RTC__
int main() { cudaFree(0); }
#endif
"""


def test_a_file_as_it_is_written_for_nvcc_is_taken(tmp_path, capsys):
    path = tmp_path / "mine.cu"
    path.write_text(FILE)
    asked = {"name": "mine::tiled<8, 16>", "block": 128, "tile": (8, 16)}
    found = audit(path, ["bounds", "seams", "coupling"], **asked)
    assert found.ok and found.name == "tiled"
    assert "on the GPU too" in audit(path, "seams", **asked, on=PlayedGpu())["seams"].evidence
    path.write_text(FILE.replace("row >= M ||", ""))
    entry = audit(str(path), "bounds", **asked)["bounds"]
    assert entry.evidence.startswith("tiled, line 16 of your kernel.cu: thread ("), entry
    command = [str(path), "--name", asked["name"], "--block", "128", "--tile", "8", "16"]
    assert main(command) == 1 and "past its end" in capsys.readouterr().out
    assert main([str(tmp_path / "none.cu"), "--block", "8"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_extern_c_of_another_kernel_or_in_a_comment_does_not_count():
    code = f'// extern "C" is missing here\n{FLAT}'.replace('\nextern "C"', "\n")
    code += 'extern "C" __global__ void other(int n, float* x) { x[0] = n; }\n'
    assert audit(code, "bounds", name="flat", **FLAT_LAUNCH).ok


def test_one_without_extern_c_and_with_a_grid_of_one_number_is_taken():
    code = FLAT.replace('extern "C"', "")
    flat = FLAT_LAUNCH | {"grid": lambda M, N: -(-M * N // 64)}
    assert audit(code, ["bounds", "seams"], **flat).ok


FLAT = """
extern "C" __global__ void flat(int M, int N, int K, const float* A, const float* B, float* C) {
    extern __shared__ float mine[];
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= (size_t)M * N) return;
    mine[threadIdx.x] = 0;
    for (int k = 0; k < K; ++k) mine[threadIdx.x] += A[i / N * K + k] * B[(size_t)k * N + i % N];
    C[i] = mine[threadIdx.x];
}
"""
FLAT_LAUNCH = {"block": (64,), "grid": lambda M, N: (-(-M * N // 64),), "shared_mem": 256}


def test_a_grid_of_ones_own_and_dynamic_shared_memory_are_part_of_the_launch():
    found = audit(FLAT, ["bounds", "overflow", "seams", "coupling"], **FLAT_LAUNCH)
    assert found.ok and found["overflow"].verdict == NONE, found
    assert audit(FLAT, "bounds", **FLAT_LAUNCH | {"shared_mem": 252}).found == ("bounds",)
    assert audit(FLAT, "numbers", **FLAT_LAUNCH | {"grid": lambda M, N: (1,)}).found == ("numbers",)
    wrapped = FLAT.replace("blockIdx.x * (size_t)blockDim.x", "blockIdx.x * blockDim.x")
    assert audit(wrapped, "overflow", **FLAT_LAUNCH)["overflow"].verdict == FOUND


@pytest.mark.slow
def test_a_square_kernel_is_tried_at_offsets_past_32_bits_too():
    code = mine(f"{ARRAYS}, int N", rows="N", deep="N").replace("(size_t)i * N", "i * (unsigned)N")
    assert audit(code, "overflow", block=(8, 8))["overflow"].verdict == FOUND


@pytest.mark.parametrize("given, says", [
    ({"subject": "int x;"}, "one __global__ kernel.*it holds none"),
    ({"subject": "nowhere.cu"}, "nowhere.cu"),
    ({"subject": f"{MINE}\nint main() {{ cudaMalloc(0, 0); }}".replace("PARAMETERS", "int N")},
     "not all known"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}") + "int main() { cudaMalloc(0, 0); }"},
     "put host code between #ifndef __CUDACC_RTC__"),
    ({"subject": MINE + MINE.replace("mine", "other")}, "name= says which.*it holds mine, other"),
    ({"subject": mine(f"int M, {ARRAYS}")}, r"not all known by their names.*parameters=\("),
    ({"subject": mine(f"int M, int N, int K, int lda, {ARRAYS}")}, "not all known"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}"), "block": None}, r"Pass block=\(x, y\)"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}"), "parameters": "MNK"}, "not all known"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}"), "block": (0, 16)},
     r"mine: block=\(0, 16\) is not 1 to 2 whole numbers from 1 on"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}"), "block": "8x8"}, "block='8x8' is not"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}"), "tile": (8, 8, 8, 8)}, "is not 1 to 3"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}"), "arch": "80"}, "it looks like sm_80"),
    ({"subject": NAIVE, "block": None, "arch": "sm_80"}, "for a kernel given as text"),
    ({"subject": mine(f"int M, int N, int K, {ARRAYS}").replace("float sum", "floats sum")},
     "does not compile"),
    ({"subject": NAIVE, "only": "speed", "block": None},
     "no category 'speed'; there are bounds, races"),
    ({"subject": NAIVE}, "for a kernel given as text"),
    ({"subject": ladder[0], "block": None}, "has no source"),
    ({"subject": None, "block": None}, "is no variant of a step"),
])  # fmt: skip
def test_what_cannot_be_audited_is_refused_in_words(given, says):
    with pytest.raises((ValueError, TypeError, OSError), match=says):
        audit(**{"block": (8, 8)} | given)


def test_an_index_that_wraps_to_a_place_outside_is_a_finding_too():
    code = mine(f"int M, int N, int K, {ARRAYS}").replace("size_t row", "int row")
    code = code.replace(", col =", "; int col =").replace("(size_t)i", "i")
    entry = audit(code, "overflow", block=(8, 8))["overflow"]
    assert entry.verdict == FOUND and re.search("before its beginning|past its end", entry.evidence)


def test_what_is_wrong_in_any_launch_is_not_laid_to_unusual_ones():
    found = audit(NAN.code, block=NAN.block, tile=NAN.tile)
    assert found.found == ("uninitialised", "numbers")
    assert {found[k].verdict for k in ("overflow", "seams", "aliasing", "coupling")} == {OPEN}


def test_a_kernel_that_never_ends_is_not_run_again_and_again():
    bug = next(bug for bug in PLANTED if bug.name == "a loop that steps over its end")
    endless = audit(bug.variant)
    assert endless["errors"].verdict == FOUND
    assert {endless[k].verdict for k in ("numbers", "seams", "overflow", "coupling")} == {OPEN}


def test_what_no_launch_came_to_is_not_said_to_be_right():
    stops = "    if (row >= 0 || C[-1] != 2) C[-1] = 1;\n    float sums[ACCUMULATORS] = {};"
    found = audit(TILED.edited("    float sums[ACCUMULATORS] = {};", stops))
    assert found.found[0] == "bounds" and not found.ok
    assert {e.verdict for e in found.entries if e.category.key not in found.found} <= {
        OPEN, ABSENT
    }  # fmt: skip
    assert "no launch came to it: tiled, line" in found["races"].evidence
    assert found["warps"].verdict == ABSENT


def test_what_could_not_be_tried_is_not_ok():
    bug = next(bug for bug in PLANTED if bug.name == "a loop that steps over its end")
    found = audit(bug.variant, "numbers")
    assert found.found == () and not found.ok


BUSY = """
extern "C" __global__ void busy(int M, int N, int K, const float* A, const float* B, float* C) {
    size_t row = blockIdx.y * 4 + threadIdx.y, first = (blockIdx.x * 4 + threadIdx.x) * 32;
    for (size_t col = first; col < first + 32; ++col) {
        float sum = 0;
        for (int j = 0; j < 4 * K; ++j)
            if (j % 4 == 0 && row < M && col < N)
                sum += A[row * K + j / 4] * B[(size_t)(j / 4) * N + col];
        if (row < M && col < N) C[row * N + col] = sum;
    }
}
"""


def test_a_thread_with_much_to_do_is_not_taken_for_an_endless_one():
    found = audit(BUSY, ["bounds", "errors"], block=(4, 4), tile=(4, 128))
    assert found.ok, found
    A, B, C = np.ones((4, 96), "f4"), np.ones((96, 128), "f4"), np.ones((4, 128), "f4")
    sizes = map(np.int32, (4, 128, 96))
    counted = profile(BUSY, "busy", (1, 1), (4, 4), (*sizes, A, B, C)).counters
    assert counted.instructions > SHORT  # of its one warp


def test_a_kernel_for_newer_architectures_says_from_which_on():
    cp_async = "        float sum = 0.0f;\n"
    code = NAIVE.source.replace(cp_async, f'{cp_async}asm volatile("cp.async.commit_group;");')
    entries = [audit(code, "architectures", block=(32, 32), arch=arch)["architectures"]
               for arch in ("sm_75", "sm_80")]  # fmt: skip
    assert [entry.verdict for entry in entries] == [FOUND, NONE]
    assert 'say for which: arch="sm_80"' in entries[0].evidence
    assert len(entries[0].evidence) < 400


def test_a_kernel_that_no_launch_takes_is_found_once():
    found = audit(NAIVE.edited("__launch_bounds__(THREADS)", "__launch_bounds__(THREADS / 2)"))
    assert found.found == ("coupling",)
    assert [e.verdict for e in found.entries].count(OPEN) == 12


# --- on a GPU, played by the PTX machine ----------------------------------------------------------


class PlayedGpu(PtxBackend):
    """A GPU with little memory; `raises` when a module is loaded, if given."""

    def __init__(self, raises=None):
        super().__init__()
        self.raises, self.zeros = raises, self._zeros
        device = SimpleNamespace(compute_capability="75", synchronize=lambda: None)
        self.cuda = SimpleNamespace(**vars(self.cuda) | {"Device": lambda: device})

    def RawModule(self, code, options=()):
        assert "#include" not in code  # a GPU's compiler has no such files
        if self.raises:
            raise self.raises
        return PtxBackend.RawModule(code=code, options=options)

    @staticmethod
    def _zeros(shape, dtype):
        if np.prod(shape) > 1 << 20:
            raise MemoryError
        return np.zeros(shape, dtype)


def test_numbers_are_compared_on_a_gpu_too():
    found = audit(NAIVE, on=PlayedGpu())
    assert found.ok
    there = [e.category.key for e in found.entries if e.evidence.endswith(", on the GPU too")]
    assert there == ["seams", "aliasing", "numbers", "coupling"]
    assert found["overflow"].evidence.endswith(
        "; not on the GPU: 2097119×1×2050: there is no room for a matrix of 16 GiB"
    )


def test_a_gpu_never_sees_a_kernel_with_a_finding():
    gpu = PlayedGpu(AssertionError("it was launched"))
    found = audit(NAIVE.edited("if (row < M && col < N)", "if (col < N)"), on=gpu)
    assert found.found[0] == "bounds" and not any("on the GPU" in repr(e) for e in found.entries)
    late = next(bug for bug in PLANTED if bug.name == "a ticket that is never given back")
    entry = audit(late.variant, "seams", on=gpu)["seams"]
    assert entry.verdict == FOUND and "on the GPU" not in entry.evidence


def test_a_kernel_that_the_gpu_lacks_instructions_for_is_not_tried_there():
    newer = replace(NAIVE, min_capability=(9, 0))
    entry = audit(newer, "numbers", on=PlayedGpu())["numbers"]
    assert entry.verdict == NONE and "not on the GPU: 01_naive needs compute" in entry.evidence


def test_what_cuda_says_is_a_finding():
    gpu = PlayedGpu(RuntimeError("an illegal memory access was encountered"))
    entry = audit(NAIVE, "seams", on=gpu)["seams"]
    assert entry.verdict == FOUND
    assert entry.evidence == "on the GPU: an illegal memory access was encountered"


def test_without_a_gpu_the_command_says_that_there_is_none(capsys):
    assert main(["1", "--gpu"]) == 2 and "no NVIDIA GPU here" in capsys.readouterr().err


# --- what is shown --------------------------------------------------------------------------------


def test_an_audit_is_shown_as_text_and_as_a_table():
    found = audit(NAIVE.edited("if (row < M && col < N)", "if (col < N)"), ["bounds", "races"])
    assert repr(found).splitlines()[0] == (
        "Audit of 01_naive.cu, changed: findings in 1 of 1 categories tried"
    )
    assert max(map(len, repr(found).splitlines())) <= 98
    html = found._repr_html_()
    assert html.count("<tr>") == 3 and "past its end" in html and 'class="x">FOUND' in html
    assert not found.ok and found.found == ("bounds",)
    assert found["Out-of-bounds access"] is found["bounds"] is found.entries[0]


def test_the_overview_has_a_row_a_category_and_a_column_a_step():
    lines = audits().text.splitlines()
    assert lines[0].split()[-len(STEPS) :] == [str(step.number) for step in STEPS]
    assert len(lines) == 1 + len(CATEGORIES) + 2 and "✗" not in "".join(lines[:-1])


def test_of_a_gpus_record_only_what_is_of_these_kernels_is_told(tmp_path):
    (tmp_path / "audits.json").write_text(RECORD.read_text("utf-8"), "utf-8")
    there = RECORD.with_name("audits_h200.json").read_text("utf-8")
    stale = there.replace(NAIVE().source_hash, "0" * 16)
    for text, compared in ((there, 55), (stale, 50)):
        (tmp_path / "audits_h200.json").write_text(text, "utf-8")
        caption = audits(tmp_path / "audits.json").text.splitlines()[-1]
        assert f"On NVIDIA H200 the numbers of {compared} were compared again: nothing" in caption


def test_a_record_of_another_kernel_is_not_shown(tmp_path):
    text = RECORD.read_text("utf-8").replace(NAIVE().source_hash, "0" * 16)
    (tmp_path / "audits.json").write_text(text, "utf-8")
    with pytest.raises(LookupError, match=r"01_naive .* has no audit here: python -m sgemm_lab"):
        audits(tmp_path / "audits.json")


def test_the_command_says_by_its_exit_code_what_was_found(capsys):
    assert main(["1", "BLOCK_X=8", "BLOCK_Y=4"]) == 0
    assert "findings in none of 10 categories" in capsys.readouterr().out
    assert main(["1", "BLOCK_X=7"]) == 2 and "Choose" in capsys.readouterr().err
    assert main(["77"]) == 2 and "there is no step 77" in capsys.readouterr().err
