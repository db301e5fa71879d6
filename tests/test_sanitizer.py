"""Each mistake is found at its line, and the same kernel put right has no finding.

In the kernels `@1` marks the line where it goes wrong and `@2` the other line.
"""

import re

import numpy as np
import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.run.backend import ptx
from sgemm_lab.run.check import default_shapes
from sgemm_lab.run.profile import profile, profile_variant
from sgemm_lab.simt import machine, sanitizer
from sgemm_lab.simt.names import constants, number, plain

CLEAN = ()


def kernel(body, params="float* out"):
    return f'extern "C" __global__ void f({params}) {{\n{body}\n}}\n'


def line_of(code, mark):
    return next((n for n, row in enumerate(code.splitlines(), 1) if mark in row), None)


def look(code, args, *, block=(64,), grid=(1,), **more):
    return profile(code, "f", grid, block, args, **more).findings


def floats(*shape):
    return np.ones(shape, "f4")


def found(code, args=None, *, kind, says="", **more):
    """The one finding of `kind`, at the lines that the code marks."""
    findings = look(code, args or (floats(64),), **more)
    ours = [f for f in findings if (f.kind, f.line) == (kind, line_of(code, "@1"))]
    if "@2" in code:
        ours = [f for f in ours if f.other_line == line_of(code, "@2")]
    assert len(ours) == 1, findings
    assert re.search(says, ours[0].message), ours[0].message
    return ours[0]


def clean(code, args=None, **more):
    assert look(code, args or (floats(64),), **more) == CLEAN


# --- races ---------------------------------------------------------------------------------------

REVERSED = kernel("""
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = t; // @2
    __syncthreads();
    out[t] = s[63 - t]; // @1""")


def test_a_missing_barrier_is_a_race_between_both_lines():
    clean(REVERSED)
    broken = REVERSED.replace("__syncthreads();", "")
    race = found(
        broken, kind="read-write-race", says=r"reads s\[63\], which thread \(63, 0\) writes"
    )
    assert (race.threads, race.block) == (((0, 0, 0), (63, 0, 0)), (0, 0, 0))
    assert (race.element, race.address, race.count) == ("s[63]", 252, 64)
    assert "line 7 of kernel.cu" in race.message and "at line 5" in race.message
    assert "__syncthreads()" in race.message


TILED = ladder[2](TILE=16)


def tiled(source, M=40, N=35, K=50, beta=1.0):
    rng = np.random.default_rng(1)
    A, B, C = (rng.standard_normal(s).astype("f4") for s in ((M, K), (K, N), (M, N)))
    args = np.int32(M), np.int32(N), np.int32(K), np.float32(1), A, B, np.float32(beta), C
    done = profile(
        source, "tiled", TILED.grid(M, N), TILED.block, args, options=TILED.options, filename="t.cu"
    )
    return done.findings


def without(source, statement, which):
    """Drop the n-th occurrence of a statement; its line stays."""
    parts = source.split(statement)
    return statement.join(parts[: which + 1]) + " " + statement.join(parts[which + 1 :])


@pytest.mark.parametrize("dropped", [0, 1])
def test_either_barrier_of_the_tiled_kernel_is_needed(dropped):
    source = TILED.step.source
    assert tiled(source) == CLEAN
    store = line_of(source, "As[threadIdx.y][threadIdx.x] =")
    load = line_of(source, "As[threadIdx.y][k] *")
    races = tiled(without(source, "__syncthreads();", dropped))
    lines = (store, load) if dropped == 0 else (load, store)
    assert {f.kind for f in races} == {"read-write-race"}
    assert lines in {(f.line, f.other_line) for f in races}
    assert any(re.search(r" As\[\d+\]\[\d+\], which thread", f.message) for f in races)
    assert any(re.search(r" Bs\[\d+\], which thread", f.message) for f in races)


def test_a_barrier_moved_behind_the_first_reads_is_a_race():
    right = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        s[t] = t; // @2
        __syncthreads();
        float a = s[63 - t]; // @1
        out[t] = a + s[t];""")
    clean(right)
    moved = right.replace("__syncthreads();", "").replace("// @1", "__syncthreads(); // @1")
    found(moved, kind="read-write-race")


def test_a_barrier_too_few_in_a_loop_is_a_race_with_the_next_turn():
    right = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        float sum = 0;
        UNROLL
        for (int n = 0; n < 3; ++n) {
            s[t] = n + t; // @1
            __syncthreads();
            sum += s[(t + 32) % 64]; // @2
            __syncthreads(); // end
        }
        out[t] = sum;""")
    for unroll, when in (("#pragma unroll 1", ", a round before"), ("", " before that")):
        code = right.replace("UNROLL", unroll)
        clean(code)
        said = rf"writes s\[0\], which thread \(32, 0\) read at line 10{when}, and no __syncthreads"
        found(code.replace("__syncthreads(); // end", ""), kind="read-write-race", says=said)


def test_a_race_in_a_function_is_told_as_it_went():
    code = """
    __device__ void add(float* s, float* out) {
        out[threadIdx.x] += s[63 - threadIdx.x]; // @1
    }
    """ + kernel("""
        __shared__ float s[64];
        s[threadIdx.x] = 1; // @2
        add(s, out);""")
    found(code, kind="read-write-race", says=r"\(63, 0\) wrote at line \d+ before that, and no")


def test_of_a_race_the_pair_in_two_warps_is_named_which_no_syncwarp_orders():
    code = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        s[t] = t; // @2
        out[t] = s[t < 40 ? t ^ 1 : t ^ 32]; // @1""")
    race = found(code, kind="read-write-race", says=r"and no __syncthreads\(\) lies between")
    assert race.threads == ((40, 0, 0), (8, 0, 0)) and race.count == 64


def test_two_threads_that_write_one_place_race_unless_they_write_the_same():
    code = kernel("""
        __shared__ float s[64];
        s[threadIdx.x / 2] = threadIdx.x; // @1
        __syncthreads();
        out[threadIdx.x] = s[threadIdx.x / 2];""")
    race = found(code, kind="write-write-race", says="at the same line, in no order")
    assert race.other_line == race.line and race.count == 32
    clean(code.replace("= threadIdx.x; // @1", "= threadIdx.x / 2;"))
    clean(code.replace("s[threadIdx.x / 2] =", "s[threadIdx.x] ="))


def test_two_stores_to_one_place_race():
    code = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        s[t] = t; // @2
        BARRIER
        if (t < 32) s[t + 32] = -t; // @1
        __syncthreads();
        out[t] = s[t];""")
    found(code.replace("BARRIER", ""), kind="write-write-race")
    clean(code.replace("BARRIER", "__syncthreads();"))


def test_a_vector_access_overlaps_the_words_in_it():
    code = kernel("""
        __shared__ float4 s[16];
        int t = threadIdx.x;
        ((float*)s)[t] = t; // @2
        BARRIER
        float4 v = s[15 - t / 4]; // @1
        out[t] = v.x + v.w;""")
    race = found(code.replace("BARRIER", ""), kind="read-write-race")
    assert race.element.startswith("s[15].")
    clean(code.replace("BARRIER", "__syncthreads();"))


def test_threads_of_different_blocks_have_their_own_shared_memory():
    code = kernel("""
        __shared__ float s[32];
        s[threadIdx.x] = blockIdx.x;
        out[32 * blockIdx.x + threadIdx.x] = s[threadIdx.x];""")
    clean(code, (floats(320),), grid=(10,), block=(32,))


def test_global_memory_of_one_block_races_too():
    code = kernel("""
        int t = threadIdx.x;
        out[t] = t; // @2
        BARRIER
        out[t] += out[63 - t]; // @1""")
    race = found(code.replace("BARRIER", ""), kind="read-write-race", says="reads out")
    assert race.element == "out[63]"
    split = "float other = out[63 - t]; __syncthreads(); out[t] += other;"
    whole = code.replace("BARRIER", "__syncthreads();").replace("out[t] += out[63 - t];", split)
    clean(whole)


WARP = kernel("""
    __shared__ volatile float s[64];
    int t = threadIdx.x;
    s[t] = t;
    __syncthreads();
    for (int step = 16; step > 0; step /= 2) {
        float v = s[t ^ step]; // @2
        SYNC
        s[t] += v; // @1
        SYNC
    }
    out[t] = s[t];""")


@pytest.mark.parametrize("arch", ["compute_75", "compute_90"])
def test_lanes_of_a_warp_are_in_step_only_after_a_syncwarp(arch):
    clean(WARP.replace("SYNC", "__syncwarp();"), arch=arch)
    race = found(WARP.replace("SYNC", ""), kind="read-write-race", says="no __syncwarp", arch=arch)
    assert race.threads[0][0] // 32 == race.threads[1][0] // 32


@pytest.mark.parametrize("sync", ["__shfl_sync(~0u, t, 0);", "__any_sync(~0u, t);"])
def test_a_shuffle_or_a_vote_is_a_meeting_of_the_warp(sync):
    clean(WARP.replace("SYNC", f'asm volatile("" :: "r"((int){sync[:-1]}) : "memory");'))


def test_a_syncwarp_does_not_join_two_warps():
    code = WARP.replace("SYNC", "__syncwarp();").replace("step = 16", "step = 32")
    found(code, kind="read-write-race", says="no __syncthreads")


def test_a_syncwarp_joins_only_the_lanes_that_it_names():
    halves = WARP.replace("SYNC", "__syncwarp(t & 16 ? 0xFFFF0000 : 0x0000FFFF);")
    clean(halves.replace("step = 16", "step = 8"))
    found(halves, kind="read-write-race")


def test_a_syncwarp_whose_mask_leaves_the_thread_out_is_named():
    code = WARP.replace("SYNC", "__syncwarp(0xFFFF);", 1).replace("SYNC", "__syncwarp();")
    findings = look(code, (floats(64),))
    assert ("warp-mask", line_of(code, "0xFFFF")) in {(f.kind, f.line) for f in findings}


SHUFFLE = kernel("""
    int t = threadIdx.x;
    float v = t;
    if (t % 32 < HERE)
        v += __shfl_down_sync(MASK, v, 1, WIDTH); // @1
    out[t] = v;""")


@pytest.mark.parametrize("here, mask, width, lost", [
    (32, "~0u", 32, None), (16, "0xffff", 16, None), (12, "0xfff", 4, None),
    (12, "~0u", 32, 11), (12, "0xfff", 8, 11), (16, "0xffff", 32, 15),
])  # fmt: skip
def test_a_shuffle_from_a_lane_that_is_not_there_is_named(here, mask, width, lost):
    code = SHUFFLE
    for name, value in (("HERE", here), ("MASK", mask), ("WIDTH", width)):
        code = code.replace(name, str(value))
    code = code.replace("out[t] = v;", "else return;\nout[t] = v;")
    if lost is None:
        return clean(code)
    shuffle = found(
        code, kind="warp-mask", says=rf"the value of lane {lost + 1} of its warp, which"
    )
    assert shuffle.threads == ((lost, 0, 0),) and shuffle.count == 2


def test_a_named_barrier_orders_the_threads_that_meet_there():
    code = kernel("""
        __shared__ float s[128];
        int t = threadIdx.x;
        s[t] = t; // @2
        if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
        else asm volatile("bar.sync 2, 64;" ::: "memory");
        out[t] = s[t ^ 32]; // @1""")
    clean(code, (floats(128),), block=(128,))
    found(code.replace("t ^ 32", "t ^ 64"), (floats(128),), kind="read-write-race", block=(128,))


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses():
    code = kernel("""
        __shared__ int s;
        if (threadIdx.x == 0) s = 0;
        __syncthreads();
        atomicAdd(&s, 2); // @2
        BARRIER
        out[threadIdx.x] = s; // @1""", "int* out")  # fmt: skip
    out = np.zeros(64, "i4")
    clean(code.replace("BARRIER", "__syncthreads();"), (out,))
    found(code.replace("BARRIER", ""), (out,), kind="read-write-race", says="updates")


# --- asynchronous copies -------------------------------------------------------------------------

COPY = """
extern "C" __global__ void f(const float4* in, float4* out) {
    __shared__ float4 s[2][32];
    int t = threadIdx.x;
    for (int g = 0; g < 2; ++g) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[g][t]);
        const float4* from = &in[32 * g + t];
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from)); // @2
        asm volatile("cp.async.commit_group;");
    }
    asm volatile("cp.async.wait_group WAIT;" ::: "memory");
    BARRIER
    out[t] = s[READ]; // @1
}"""


def copying(wait, barrier, read):
    code = COPY.replace("WAIT", str(wait)).replace("BARRIER", barrier).replace("READ", read)
    return code, (floats(64, 4), floats(32, 4)), dict(block=(32,), arch="compute_80")


@pytest.mark.parametrize("wait, stage", [(0, 0), (0, 1), (1, 0)])
def test_copied_data_is_there_after_a_wait_and_a_barrier(wait, stage):
    code, args, more = copying(wait, "__syncthreads();", f"{stage}][31 - t")
    clean(code, args, **more)


def test_a_wait_one_group_too_weak_leaves_the_copy_unfinished():
    code, args, more = copying(1, "__syncthreads();", "1][31 - t")
    copy = found(code, args, kind="unfinished-copy", says="may still be on its way", **more)
    assert copy.element == "s[1][31].x" and "thread (31, 0)'s cp.async" in copy.message
    code, args, more = copying(1, "__syncthreads();", "1][t")
    found(code, args, kind="unfinished-copy", says="its own cp.async", **more)


def test_a_wait_without_a_barrier_shows_the_data_to_the_copying_thread_only():
    code, args, more = copying(0, "", "1][t")
    clean(code, args, **more)
    code, args, more = copying(0, "", "1][31 - t")
    found(code, args, kind="read-write-race", says="for others only after a barrier", **more)


def test_copying_over_a_tile_that_others_still_read_is_a_race():
    code = """
extern "C" __global__ void f(const float* in, float* out) {
    __shared__ float s[32];
    int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
    float sum = 0;
    for (int g = 0; g < 3; ++g) {
        const float* from = &in[32 * g + t];
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from)); // @1
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        sum += s[31 - t]; // @2
        END
    }
    out[t] = sum;
}"""
    args, more = (floats(96), floats(32)), dict(block=(32,), arch="compute_80")
    clean(code.replace("END", "__syncthreads();"), args, **more)
    found(code.replace("END", ""), args, kind="read-write-race", says="copies to", **more)


# --- memory nobody wrote -------------------------------------------------------------------------


def test_shared_memory_nobody_wrote_is_named_by_its_element():
    code = """
    #define ROWS 4
    constexpr int COLUMNS = ROWS * 4 + 1;
    """ + kernel("""
        __shared__ float other[8], tile[ROWS][COLUMNS];
        int t = threadIdx.x;
        other[t % 8] = 1;
        if (t < LIMIT) tile[t / 16][t % 16] = t;
        __syncthreads();
        out[t] = tile[t / 16][t % 16] + other[t % 8]; // @1""")
    clean(code.replace("LIMIT", "64"))
    read = found(
        code.replace("LIMIT", "50"), kind="uninitialised-read", says="no thread of the block"
    )
    assert (read.element, read.threads, read.count) == ("tile[3][2]", ((50, 0, 0),), 14)


def test_what_another_block_wrote_in_its_shared_memory_does_not_count():
    code = kernel("""
        __shared__ float s[32];
        if (blockIdx.x) s[threadIdx.x] = 1;
        out[32 * blockIdx.x + threadIdx.x] = s[threadIdx.x]; // @1""")
    read = found(code, (floats(64),), kind="uninitialised-read", grid=(2,), block=(32,))
    assert (read.block, read.count) == ((0, 0, 0), 32)


SUM = kernel("out[threadIdx.x] = a[threadIdx.x] + 1; // @1", "const float* a, float* out")


def test_an_array_from_empty_is_unwritten_until_someone_writes_it():
    a = ptx.empty((8, 8), np.float32)
    read = found(SUM, (a, floats(64)), kind="uninitialised-read", says="cp.empty")
    assert read.element == "a[0, 0]" and read.count == 64
    a[:7] = 2
    assert found(SUM, (a, floats(64)), kind="uninitialised-read").element == "a[7, 0]"
    a[7] = np.nan
    clean(SUM, (a, floats(64)))
    clean(SUM, (np.full(64, np.nan, "f4"), floats(64)))


def test_what_the_kernel_writes_itself_it_may_read():
    code = kernel("out[threadIdx.x] = 1; out[threadIdx.x] += 1;")
    clean(code, (ptx.empty(64, np.float32),))
    clean(kernel("out[threadIdx.x] = -1;", "int* out"), (ptx.empty(64, np.int32),))


def test_whole_numbers_are_unwritten_only_while_the_whole_array_is():
    code = kernel("out[threadIdx.x] = a[threadIdx.x]; // @1", "const int* a, int* out")
    a, out = ptx.empty(64, np.int32), np.zeros(64, "i4")
    found(code, (a, out), kind="uninitialised-read")
    a[0] = 0
    clean(code, (a, out))


def test_beta_0_must_not_read_c():
    broken = TILED.step.source.replace("beta == 0.0f ? alpha * sum : ", "")
    variant = type(TILED.step)(**{**vars(TILED.step), "text": broken})
    findings = profile_variant(variant(TILE=16), 20, 20, 20).findings
    assert [(f.kind, f.line) for f in findings] == [("uninitialised-read", line_of(broken, "*c ="))]


# --- blocks --------------------------------------------------------------------------------------


def test_two_blocks_on_one_tile_are_found():
    source = TILED.step.source
    broken = source.replace("col = block_x * TILE", "col = block_x / 2 * TILE")
    kinds = {(f.kind, f.line) for f in tiled(broken, beta=0)}
    assert ("two-blocks-write", line_of(source, "*c =")) in kinds
    assert any("block (1, 0)" in f.message for f in tiled(broken, beta=0))


@pytest.mark.parametrize("lanes", [64, 1 << 15])
def test_two_blocks_that_write_one_element_are_found_in_one_batch_and_across(lanes, monkeypatch):
    monkeypatch.setattr(machine.Launch.__init__, "__kwdefaults__",
                        {**machine.Launch.__init__.__kwdefaults__, "lanes": lanes})  # fmt: skip
    code = kernel("out[blockIdx.x * STEP + threadIdx.x] = blockIdx.x; // @1")
    args, more = (floats(640),), dict(grid=(10,), block=(64,))
    clean(code.replace("STEP", "64"), args, **more)
    both = found(code.replace("STEP", "63"), args, kind="two-blocks-write", **more)
    assert (
        both.count == 9
        and both.element == "out[63]"
        and re.search(r"which block \([01], 0\) writes too in", both.message)
    )


@pytest.mark.parametrize("lanes", [64, 1 << 15])
@pytest.mark.parametrize("shift", [-64, 64])
def test_a_block_that_reads_what_another_writes_is_found_in_either_order(lanes, shift, monkeypatch):
    monkeypatch.setattr(machine.Launch.__init__, "__kwdefaults__",
                        {**machine.Launch.__init__.__kwdefaults__, "lanes": lanes})  # fmt: skip
    code = kernel("""
        int i = blockIdx.x * 64 + threadIdx.x;
        float v = i + SHIFT >= 0 && i + SHIFT < 256 ? out[i + SHIFT] : 0; // read
        out[i] = v + 1; // write""")
    args, more = (floats(256),), dict(grid=(4,), block=(64,))
    clean(code.replace("SHIFT", "0"), args, **more)
    findings = look(code.replace("SHIFT", str(shift)), args, **more)
    lines = {line_of(code, "// read"), line_of(code, "// write")}
    assert {f.kind for f in findings} == {"cross-block-read"}
    assert all({f.line, f.other_line} == lines for f in findings)


def test_atomics_of_many_blocks_on_one_element_are_no_finding():
    code = kernel("atomicAdd(&out[threadIdx.x % 4], 1);", "int* out")
    clean(code, (np.zeros(4, "i4"),), grid=(5,))


# --- barriers ------------------------------------------------------------------------------------


def test_leaving_before_a_barrier_is_found_at_the_barrier_and_where_the_threads_part():
    code = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        s[t] = t;
        if (t >= LIMIT) return; // @2
        __syncthreads(); // @1
        out[t] = s[t];""")
    gone = found(code.replace("LIMIT", "40"), kind="exit-before-barrier", says="never reaches")
    assert gone.threads == ((0, 0, 0), (40, 0, 0)) and gone.count == 24
    clean(code.replace("LIMIT", "64"))


def test_a_block_that_leaves_as_a_whole_leaves_no_barrier_behind():
    code = kernel("""
        if (blockIdx.x > 1) return;
        __syncthreads();
        out[64 * blockIdx.x + threadIdx.x] = 1;""")
    clean(code, (floats(128),), grid=(5,))


def test_a_barrier_under_a_condition_is_found():
    code = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        s[t] = t;
        if (t % 2 == 0) // @2
            __syncthreads(); // @1
        out[t] = s[t];""")
    found(code, kind="exit-before-barrier")
    clean(code.replace("t % 2 == 0", "t >= 0"))


def test_threads_at_two_different_barriers_are_found():
    code = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        if (t < 40) { s[t] = 1; __syncthreads(); } // @1
        else { s[t] = 2; __syncthreads(); } // @2
        out[t] = s[t];""")
    found(code, kind="divergent-barrier", says="waits at another, at line")
    clean(code.replace("t < 40", "blockIdx.x < 40"))


def test_a_loop_whose_trip_count_differs_by_thread_brings_threads_to_different_barriers():
    code = kernel("""
        __shared__ float s[64];
        int t = threadIdx.x;
        for (int i = FIRST; i < 130; i += 64) {
            s[t] = i;
            __syncthreads(); // @1
        }
        __syncthreads(); // @2
        out[t] = s[t];""")
    findings = look(code.replace("FIRST", "t"), (floats(64),))
    lines = {line_of(code, "@1"), line_of(code, "@2")}
    assert ("divergent-barrier", lines) in [(f.kind, {f.line, f.other_line}) for f in findings]
    clean(code.replace("FIRST", "0"))


def test_a_deadlock_is_a_finding_with_both_lines():
    code = kernel("""
        if (threadIdx.x < 32)
            asm volatile("bar.sync 1;"); // @1
        else
            asm volatile("bar.sync 2;"); // @2
        out[threadIdx.x] = 1;""")
    found(code, kind="deadlock", says="32 of 64 threads")


# --- faults --------------------------------------------------------------------------------------


def test_an_access_outside_is_a_finding_and_the_counts_are_those_until_then():
    code = kernel("""
        int i = blockIdx.x * 64 + threadIdx.x;
        out[i] = 1;
        out[i + 1] = 2; // @1""")
    done = profile(code, "f", (1,), (64,), (floats(64),))
    fault = next(f for f in done.findings if f.kind == "out-of-bounds")
    assert fault.line == line_of(code, "@1") and fault.element == "out[64]"
    assert (fault.threads, fault.block) == (((63, 0, 0),), (0, 0, 0))
    assert done.counters.global_store_requests == 2
    with pytest.raises(machine.Fault, match="past its end"):
        profile(code, "f", (1,), (64,), (floats(64),), sanitize=False)


def test_an_access_outside_shared_memory_is_a_finding():
    code = kernel("""
        __shared__ float s[64];
        s[threadIdx.x + SHIFT] = 1; // @1
        out[threadIdx.x] = s[threadIdx.x + SHIFT];""")
    found(code.replace("SHIFT", "4"), kind="out-of-bounds", says="shared memory, past its end")
    clean(code.replace("SHIFT", "0"))


def test_a_misaligned_access_is_a_finding():
    code = kernel("""
        float4 v = ((const float4*)(a + OFF))[threadIdx.x]; // @1
        out[threadIdx.x] = v.x + v.y + v.z + v.w;""", "const float* a, float* out")  # fmt: skip
    args = (floats(300), floats(64))
    found(code.replace("OFF", "3"), args, kind="misaligned", says="16 bytes")
    clean(code.replace("OFF", "4"), args)


# --- the order of warps --------------------------------------------------------------------------


def test_a_sum_by_atomics_depends_on_the_order_unless_its_numbers_are_whole():
    code = kernel("atomicAdd(out, a[threadIdx.x]); // @1", "const TYPE* a, TYPE* out")
    rng = np.random.default_rng(3)
    a, out = rng.standard_normal(256).astype("f4"), np.zeros(1, "f4")
    order = found(code.replace("TYPE", "float"), (a, out), kind="order-dependent", block=(256,))
    assert order.element == "out[0]" and abs(out[0] - a.sum()) < 1e-4
    ints = rng.integers(0, 99, 256).astype("i4")
    out = np.zeros(1, "i4")
    clean(code.replace("TYPE", "int"), (ints, out), block=(256,))
    assert out[0] == ints.sum()


def test_places_given_out_by_a_counter_depend_on_the_order_of_warps():
    code = """
    __device__ int next;
    """ + kernel("out[atomicAdd(&next, 1)] = threadIdx.x; // @1")
    found(code, (floats(128),), kind="order-dependent", block=(128,))
    clean(code.replace("= threadIdx.x", "= 1"), (floats(128),), block=(128,))


def test_a_fault_that_only_another_order_brings_is_a_finding_and_the_first_result_stays():
    code = """
    __device__ int next;
    """ + kernel("""
        int place = atomicAdd(&next, 1);
        if (place == 0 && threadIdx.x == 0) out[0] = 1;
        if (place == 0 && threadIdx.x != 0) out[64] = 1; // @1""")
    out = np.zeros(64, "f4")
    found(code, (out,), kind="out-of-bounds", says="in another order")
    assert out.tolist() == [1] + [0] * 63


@pytest.mark.parametrize("code, line", [
    ("out[threadIdx.x] = 1;", None),
    ("atomicAdd(&out[0], 1.0f);", 2),
    ("atomicMax((int*)out, 1);", None),
    ("out[0] = atomicMax((int*)out + 1, 1);", 2),
    ("__threadfence(); out[0] = 1;", 2),
    ("__threadfence_block(); out[0] = 1;", None),
])  # fmt: skip
def test_which_kernels_may_depend_on_the_order_is_told_from_their_text(code, line):
    from sgemm_lab.run.nvrtc import compile_ptx
    from sgemm_lab.simt import host

    text = kernel(code)
    program = host.load(compile_ptx(text).text, text, "kernel.cu").program("f")
    assert sanitizer.order_sensitive(program) == line


# --- variables nobody set ------------------------------------------------------------------------


@pytest.mark.parametrize("declared, body", [
    ("float s;", "for (int j = 0; j < n; ++j) s += x[64 * j + t]; // @1"),
    ("float s[2];", "for (int j = 0; j < n; ++j) s[j & 1] += x[64 * j + t]; // @1\ns[0] += s[1];"),
    ("float s[9];", "for (int j = 0; j < n; ++j) s[(t + j) % 9] += x[64 * j + t]; // @1"),
    ("float s;", "for (int j = 0; j < n; ++j) s = fmaxf(s, x[64 * j + t]); // @1"),
    ("float s;", "for (int j = 0; j < n; ++j) s = fminf(s, x[64 * j + t]); // @1"),
    ("int s;", "for (int j = 0; j < n; ++j) s += j; // @1\nx[s % 64] = 2;"),
    ("int s;", "for (int j = 0; j < n; ++j) s += j; // @1\nif (s > 9) x[1 << 20] = 2;"),
    ("int s;", "for (int j = 0; j < n; ++j) s += j; // @1\nif (s < 9) x[1 << 20] = 2;"),
])  # fmt: skip
def test_a_variable_nobody_set_is_found_where_it_matters(declared, body):
    code = kernel(f"int t = threadIdx.x; {declared}\n{body}\n__syncthreads(); x[t] = *(float*)&s;",
                  "int n, float* x")  # fmt: skip
    x = np.arange(320, dtype="f4") - 99
    args = np.int32(5), x
    found(code, args, kind="uninitialised-read", says="before anything is put there")
    right = code.replace("float s;", "float s = 0;").replace("int s;", "int s = 0;")
    clean(re.sub(r"(s\[\d\]);", r"\1 = {};", right).replace("x[1 << 20]", "x[0]"), args)


@pytest.mark.parametrize("body", [
    "float s; if (n > 3) s = x[t];\n__syncthreads(); if (n > 3) x[t + 64] = s;",
    "float s; for (int j = 0; j < n; ++j) { if (j) x[64 * j + t] = s; s = x[64 * j + t]; }",
    'float s; asm volatile("mov.f32 %0, %1;" : "=f"(s) : "f"(s)); x[t] = 1;',
    "float s; if (t < 9) s = x[t]; __syncwarp(); x[t] = t < 9 ? s : 0;",
])  # fmt: skip
def test_one_that_is_carried_about_and_never_needed_is_none(body):
    code = kernel(f"int t = threadIdx.x;\n{body}", "int n, float* x")
    clean(code, (np.int32(4), np.arange(320, dtype="f4")))


def test_looking_for_them_leaves_the_arrays_as_the_first_run_did():
    code = kernel("float s;\nfor (int j = 0; j < n; ++j) s += x[j];\nx[threadIdx.x] = s;",
                  "int n, float* x")  # fmt: skip
    x = floats(64)
    assert look(code, (np.int32(4), x)) and np.isnan(x).all()


@pytest.mark.parametrize("mangled, name", [
    ("f", "f"), ("_Z5tiledILi16EEviPKf", "tiled"), ("_ZN4mine5tiledILi16EEvi", "tiled"),
    ("_ZN12_GLOBAL__N_11fEi", "f"), ("_Zombie", "_Zombie"), ("_Z", "_Z"),
])  # fmt: skip
def test_a_kernel_is_called_as_it_was_written(mangled, name):
    assert plain(mangled) == name


# --- reports -------------------------------------------------------------------------------------


def test_a_finding_is_reported_once_and_shown_in_words():
    broken = REVERSED.replace("__syncthreads();", "")
    done = profile(broken, "f", (50,), (64,), (floats(64),), filename="mine.cu")
    races = [f for f in done.findings if f.kind == "read-write-race"]
    assert [f.count for f in races if "s[" in f.element] == [50 * 64]
    assert "line 7 of mine.cu" in repr(done) and "(3,200 times)" in repr(done)
    assert "<li>read-write-race: " in done._repr_html_()
    assert "no findings" in repr(profile(REVERSED, "f", (1,), (64,), (floats(64),)))
    assert "findings" not in repr(
        profile(REVERSED, "f", (1,), (64,), (floats(64),), sanitize=False)
    )


def test_watching_changes_neither_results_nor_counts():
    A, B = (np.random.default_rng(4).standard_normal((48, 48)).astype("f4") for _ in "AB")
    results = []
    for sanitize in (True, False):
        C, n = np.zeros((48, 48), "f4"), np.int32(48)
        args = n, n, n, np.float32(1), A, B, np.float32(0), C
        done = profile(TILED.step.source, "tiled", (3, 3), (16, 16), args,
                       options=TILED.options, sanitize=sanitize)  # fmt: skip
        results.append((C.tobytes(), done.counters))
    assert results[0] == results[1]


STEPS = [step for step in ladder if step.function]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_the_books_kernels_have_no_finding(step):
    variant, *_ = step.variants()
    for shape in default_shapes(variant):
        if 0 not in variant.grid(*shape[:2]):
            assert profile_variant(variant, *shape).findings == CLEAN, (variant.key, shape)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_no_variant_of_the_books_kernels_has_a_finding(step):
    for variant in step.variants():
        for shape in default_shapes(variant):
            if 0 not in variant.grid(*shape[:2]):
                assert profile_variant(variant, *shape).findings == CLEAN, (variant.key, shape)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression, value", [
    ("TILE", 16), ("TILE * TILE + 1", 257), ("HALF", 8), ("(1 << 3) % 5", 3), 
    ("TILE ? 1 : 2", None), ("unknown", None), ("LOOP", None),
])  # fmt: skip
def test_constant_expressions_of_the_source_are_worked_out(expression, value):
    source = """
    #ifndef TILE
    #define TILE 32 // overridden
    #endif
    #define LOOP LOOP
    constexpr int HALF = TILE / 2;
    """
    assert number(expression, constants(source, ("-DTILE=16", "-std=c++17"))) == value


@pytest.mark.parametrize("declared, name", [
    ("__shared__ float s[8][8 + 1]", "s[3][4]"),
    ("__shared__ float s[SIZE][9]", "s[3][4]"),
    ("__shared__ float s[PLACES]", "s[31]"),
    ("__shared__ float s[F(8)][F(9)]", "byte 124 of s"),
])  # fmt: skip
def test_an_element_is_named_where_its_declaration_can_be_read(declared, name):
    code = "#define F(x) (x)\nenum { SIZE = 8, PLACES = 72 };\n" + kernel(
        f"{declared};\nout[threadIdx.x] = ((float*)s)[threadIdx.x + 31];"
    )
    (read,) = look(code, (floats(8),), block=(8,))
    assert read.element == name
