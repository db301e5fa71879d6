"""The PTX machine runs what NVRTC emits: control flow, memory spaces, warps, faults."""

import numpy as np
import pytest

from sgemm_lab.run.nvrtc import compile_ptx
from sgemm_lab.simt import host
from sgemm_lab.simt.counters import Tally
from sgemm_lab.simt.machine import Fault, Launch, budget
from sgemm_lab.simt.ptx import PtxError

ARCHS = ("compute_75", "compute_80", "compute_90")


def run(code, grid, block, args, *, arch="compute_75", name="f", shared_mem=0, lanes=None):
    """Compile `extern "C" __global__ void f(…)` and run it; returns the launch."""
    loaded = host.load(compile_ptx(code, (), arch, "test.cu").text, code, "test.cu")
    launch = loaded.launch(name, grid, block, args, shared_mem=shared_mem)
    if lanes:
        launch.batch = max(1, lanes // 32)
    launch.run()
    return launch


def kernel(body, params="int* out"):
    return f'extern "C" __global__ void f({params}) {{\n{body}\n}}'


INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("lanes", [32, 1 << 15])
def test_branches_and_loops_that_differ_by_lane(arch, lanes):
    code = kernel(
        INDEX
        + """
        int steps = 0;
        unsigned x = i + 1;
        while (x != 1) { x = x & 1 ? 3 * x + 1 : x / 2; ++steps; if (steps > 90) break; }
        if (i % 3 == 0) steps = -steps; else if (i % 5 == 0) { steps += 1000; if (i % 2) return; }
        out[i] = steps;"""
    )
    out = np.full(300, -7, np.int32)
    run(code, (3,), (100,), (out,), arch=arch, lanes=lanes)

    def expected(i):
        x, steps = i + 1, 0
        while x != 1:
            x, steps = (3 * x + 1 if x & 1 else x // 2), steps + 1
            if steps > 90:
                break
        if i % 3 == 0:
            return -steps
        if i % 5 == 0:
            return -7 if i % 2 else steps + 1000
        return steps

    assert out.tolist() == [expected(i) for i in range(300)]


@pytest.mark.parametrize("block", [(1,), (33,), (8, 4, 3), (16, 16), (1024,)])
def test_every_thread_finds_its_own_coordinates_in_blocks_of_any_shape(block):
    code = kernel("""
        int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        out[b * blockDim.x * blockDim.y * blockDim.z + t] += 1 + b * 10000 + t;""")
    threads = int(np.prod(block))
    out = np.zeros(12 * threads, np.int32)
    run(code, (2, 3, 2), block, (out,), lanes=64)
    want = 1 + 10000 * np.arange(12)[:, None] + np.arange(threads)
    assert np.array_equal(out, want.reshape(-1))


def test_a_barrier_makes_all_of_a_blocks_writes_visible():
    code = kernel(
        INDEX
        + """
        __shared__ int s[96];
        int t = threadIdx.x;
        s[t] = i;
        for (int step = 1; step < 96; step *= 2) {
            __syncthreads();
            int v = t >= step ? s[t - step] : 0;
            __syncthreads();
            s[t] += v;
        }
        out[i] = s[t];"""
    )
    out = np.zeros(480, np.int32)
    run(code, (5,), (96,), (out,))
    assert np.array_equal(out.reshape(5, 96), np.cumsum(np.arange(480).reshape(5, 96), axis=1))


def test_threads_that_returned_are_not_waited_for_and_unequal_paths_meet_at_one_barrier():
    code = kernel("""
        __shared__ int s[64];
        int t = threadIdx.x;
        if (t >= 50) return;
        s[t] = t;
        if (t % 2) { s[t] += 100; __syncthreads(); } else { s[t] += 200; __syncthreads(); }
        out[t] = s[49 - t];""")
    out = np.zeros(50, np.int32)
    run(code, (1,), (64,), (out,))
    assert out.tolist() == [49 - t + (100 if (49 - t) % 2 else 200) for t in range(50)]


def test_a_barrier_that_some_threads_never_reach_is_named():
    code = kernel("""
        __shared__ int s[64];
        s[threadIdx.x] = 1;
        if (threadIdx.x < 32)
            asm volatile("bar.sync 1;");
        else
            asm volatile("bar.sync 2;");
        out[threadIdx.x] = s[threadIdx.x];""")
    with pytest.raises(Fault, match="barrier 1: 32 of 64 threads") as error:
        run(code, (1,), (64,), (np.zeros(64, np.int32),))
    assert (error.value.kind, error.value.line) == ("deadlock", 6)


def test_named_barriers_with_a_count_join_some_warps():
    code = kernel("""
        __shared__ int s[128];
        int t = threadIdx.x;
        if (t < 64) { s[t] = t; asm volatile("bar.sync 1, 64;"); out[t] = s[63 - t]; }
        else { s[t] = -t; asm volatile("bar.sync 2, 64;"); out[t] = s[191 - t]; }""")
    out = np.zeros(128, np.int32)
    run(code, (1,), (128,), (out,))
    assert out.tolist() == [63 - t for t in range(64)] + [-(191 - t) for t in range(64, 128)]


def test_arrays_that_do_not_fit_registers_live_in_local_memory():
    code = kernel(
        INDEX
        + """
        int a[16];
        for (int n = 0; n < 16; ++n) a[(n * 7 + i) & 15] = n * i;
        int sum = 0;
        for (int n = 0; n < count; ++n) sum = sum * 3 + a[(n + i) & 15];
        out[i] = sum;""",
        "int* out, int count",
    )
    out = np.zeros(64, np.int32)
    run(code, (2,), (32,), (out, np.int32(9)))
    for i in range(64):
        a = [0] * 16
        for n in range(16):
            a[n * 7 + i & 15] = n * i
        total = 0
        for n in range(9):
            total = total * 3 + a[n + i & 15]
        assert out[i] == np.int64(total).astype(np.int32)


def test_vectors_bytes_halves_doubles_and_constants_are_loaded_and_stored():
    code = """
    __constant__ short table[4] = {-3, 5, -7, 11};
    __device__ int calls;
    extern "C" __global__ void f(
        float4* v, signed char* b, unsigned short* h, double* d, float2* o) {
        int i = threadIdx.x;
        float4 x = v[i];
        o[i] = make_float2(x.x + x.y * x.z, x.w + b[i]);
        b[i] = b[i] / 2 + table[i & 3];
        h[i] = h[i] * 3;
        d[i] = d[i] / 3.0 + calls;
        v[31 - i] = make_float4(x.w, x.z, x.y, x.x);
    }"""
    rng = np.random.default_rng(5)
    v = rng.standard_normal((32, 4)).astype("f4")
    b = rng.integers(-60, 60, 32).astype("i1")
    h = rng.integers(0, 60000, 32).astype("u2")
    d, o = rng.standard_normal(32), np.zeros((32, 2), "f4")
    before = [x.copy() for x in (v, b, h, d)]
    run(code, (1,), (32,), (v, b, h, d, o))
    v0, b0, h0, d0 = before
    exact = v0[:, 0].astype("f8") + v0[:, 1].astype("f8") * v0[:, 2]
    assert np.array_equal(o[:, 0], exact.astype("f4")) and np.array_equal(o[:, 1], v0[:, 3] + b0)
    assert np.array_equal(v, v0[::-1, ::-1])
    assert b.tolist() == [int(x / 2) + [-3, 5, -7, 11][i & 3] for i, x in enumerate(b0.tolist())]
    assert np.array_equal(h, h0 * np.uint16(3)) and np.array_equal(d, d0 / 3.0)


def test_a_pointer_may_point_at_shared_or_global_memory():
    code = kernel(
        INDEX
        + """
        __shared__ int s[32];
        s[threadIdx.x] = 100 + i;
        __syncthreads();
        int* p = which ? s : out;
        out[i] = p[31 - threadIdx.x];""",
        "int* out, int which",
    )
    for which, first in ((1, 131), (0, 31)):
        out = np.arange(32, dtype=np.int32)
        run(code, (1,), (32,), (out, np.int32(which)))
        assert out[0] == first


@pytest.mark.parametrize("arch", ARCHS)
def test_shuffles_and_votes_exchange_within_a_warp(arch):
    code = kernel("""
        int t = threadIdx.x, n = blockDim.x;
        int v = t * t;
        out[t] = __shfl_sync(~0u, v, 5);
        out[n + t] = __shfl_up_sync(~0u, v, 3);
        out[2 * n + t] = __shfl_down_sync(~0u, v, 3, 16);
        out[3 * n + t] = __shfl_xor_sync(~0u, v, 9);
        out[4 * n + t] = __ballot_sync(~0u, t % 3 == 0);
        out[5 * n + t] = __any_sync(~0u, t == 40) + 2 * __all_sync(~0u, t < 40);
        if (t % 2) out[6 * n + t] = __ballot_sync(0xAAAAAAAA, t < 8);""")
    out = np.zeros((7, 64), np.int32)
    run(code, (1,), (64,), (out,), arch=arch)
    t = np.arange(64)
    w, lane = t // 32 * 32, t % 32
    sq = t * t
    assert out[0].tolist() == sq[w + 5].tolist()
    assert out[1].tolist() == sq[np.where(lane >= 3, t - 3, t)].tolist()
    assert out[2].tolist() == sq[np.where(t % 16 + 3 < 16, t + 3, t)].tolist()
    assert out[3].tolist() == sq[w + (lane ^ 9)].tolist()
    ballot = [sum(1 << k for k in range(32) if (base + k) % 3 == 0) for base in (0, 32)]
    assert out[4].view("u4").tolist() == [ballot[x // 32] for x in range(64)]
    assert out[5].tolist() == [2] * 32 + [1] * 32
    assert out[6].tolist() == [(0xAA if x < 32 else 0) if x % 2 else 0 for x in range(64)]


def test_a_shuffle_waits_in_vain_for_lanes_that_wait_elsewhere():
    code = kernel(
        "if (threadIdx.x < 7)\n out[threadIdx.x] = __shfl_sync(~0u, 1, 0);\n__syncthreads();"
    )
    with pytest.raises(Fault, match=r"waits for ever at shfl.*never arrive") as error:
        run(code, (1,), (32,), (np.zeros(32, np.int32),))
    assert (error.value.kind, error.value.line) == ("warp-mask", 3)


def test_lanes_that_took_different_ways_wait_for_each_other_at_syncwarp():
    code = kernel(
        """
        __shared__ int s[32];
        int t = threadIdx.x;
        s[t] = -1;
        __syncthreads();
        if (t < 16) { s[t] = t + 1; __syncwarp(); out[t] = s[t + 16] * 3; }
        else {
            int a = t;
            for (int i = 0; i < count; i++) a = a * 5 + i;
            s[t] = a & 255; __syncwarp(); out[t] = s[t - 16] - 7;
        }""",
        "int* out, int count",
    )
    out = np.zeros(32, np.int32)
    run(code, (1,), (32,), (out, np.int32(3)))
    late = [((t * 5 * 5 + 1) * 5 + 2) & 255 for t in range(16, 32)]
    assert out.tolist() == [3 * x for x in late] + [t + 1 - 7 for t in range(16)]


def test_a_shuffle_after_a_switch_finds_all_lanes_wherever_the_cases_were_put():
    cases = "".join(f"case {n}: for (int k = 0; k <= i; ++k) x = x * {n + 2} + k; break;\n"
                    for n in range(7))  # fmt: skip
    code = kernel(
        f"{INDEX} int x = i; switch (i % 9) {{ {cases} case 7: x = -1; break; }}\n"
        "out[i] = __shfl_xor_sync(~0u, x, 1);"
    )
    out = np.zeros(64, np.int32)
    run(code, (1,), (64,), (out,))

    def value(i):
        x = i
        if i % 9 < 7:
            for k in range(i + 1):
                x = x * (i % 9 + 2) + k
        return np.int64(-1 if i % 9 == 7 else (x + 2**31) % 2**32 - 2**31)

    assert out.tolist() == [value(i ^ 1) for i in range(64)]


def test_atomics_on_one_address_are_all_counted_and_return_distinct_values():
    code = kernel("""
        __shared__ int s;
        if (threadIdx.x == 0) s = 0;
        __syncthreads();
        int mine = atomicAdd(&s, 1);
        atomicAdd(&out[blockIdx.x], mine);
        atomicMax(&out[4], mine);
        atomicCAS(&out[5], 0, 77);
        __syncthreads();
        if (threadIdx.x == 0) out[6 + blockIdx.x] = s;""")
    out = np.zeros(10, np.int32)
    run(code, (4,), (50,), (out,))
    assert out.tolist() == [49 * 50 // 2] * 4 + [49, 77] + [50] * 4


def test_a_switch_becomes_a_jump_table_or_a_tree_and_takes_every_case():
    cases = "".join(f"case {n}: x = x * {n + 2} + {7 * n}; break;\n" for n in range(12))
    code = kernel(f"{INDEX} int x = i; switch (i % 13) {{ {cases} default: x = -1; }} out[i] = x;")
    out = np.zeros(64, np.int32)
    run(code, (1,), (64,), (out,))
    assert out.tolist() == [
        -1 if i % 13 == 12 else i * (i % 13 + 2) + 7 * (i % 13) for i in range(64)
    ]


COPY = """
extern "C" __global__ void f(const float4* in, float4* out, int n) {
    __shared__ float4 s[3][32];
    int t = threadIdx.x;
    for (int g = 0; g < 3; ++g) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[g][t]);
        int bytes = 32 * g + t < n ? 16 : 0;
        const float4* from = bytes ? &in[32 * g + t] : in;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(bytes));
        asm volatile("cp.async.commit_group;");
    }
    asm volatile("cp.async.wait_group WAIT;");
    __syncthreads();
    for (int g = 0; g < 3; ++g) out[32 * g + t] = s[g][31 - t];
}"""


@pytest.mark.parametrize("wait, landed", [(0, 3), (1, 2), (2, 1)])
def test_an_asynchronous_copy_is_there_after_the_wait_that_covers_it_and_not_before(wait, landed):
    data = np.random.default_rng(6).standard_normal((96, 4)).astype("f4")
    out = np.zeros((96, 4), "f4")
    code = COPY.replace("WAIT", str(wait))
    run(code, (1,), (32,), (data, out, np.int32(90)), arch="compute_80")
    whole = data.copy()
    whole[90:] = 0
    expected = whole.reshape(3, 32, 4)[:, ::-1]
    assert np.array_equal(out.reshape(3, 32, 4)[:landed], expected[:landed])
    assert np.isnan(out.reshape(3, 32, 4)[landed:]).all()


def test_dynamic_shared_memory_has_the_size_of_the_launch():
    code = kernel("extern __shared__ int s[]; s[threadIdx.x * 2 + 1] = 3; out[threadIdx.x] = s[1];")
    out = np.zeros(16, np.int32)
    run(code, (1,), (16,), (out,), shared_mem=128)
    assert out[3] == 3
    with pytest.raises(Fault, match="byte 124 of shared memory, past its end: the block has 124"):
        run(code, (1,), (16,), (out,), shared_mem=124)


def test_memory_nobody_wrote_is_nan_so_that_it_shows():
    code = kernel("__shared__ float s[64]; if (threadIdx.x > 70) s[0] = 1; "
                  "out[threadIdx.x] = s[threadIdx.x];", "float* out")  # fmt: skip
    out = np.zeros(32, "f4")
    run(code, (1,), (32,), (out,))
    assert np.isnan(out).all()


# --- faults --------------------------------------------------------------------------------------

STEP = """
extern "C" __global__ void f(int M, const float* A, const float4* B, float* C) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < M)
        C[i] = A[i + 1]
             + B[i / 4].x;
}"""


def fault(code=STEP, grid=(2,), block=(64,), args=None, **more):
    with pytest.raises(Fault) as error:
        run(code, grid, block, args, **more)
    return error.value


def floats(*shape):
    return np.ones(shape, "f4")


def test_a_read_past_an_array_names_array_element_shape_thread_block_and_line():
    found = fault(args=(np.int32(100), floats(10, 10), floats(25, 4), floats(100)))
    assert str(found) == (
        "f, line 5 of test.cu: thread (35, 0) of block (1, 0) reads A[10, 0] (or A[9, 10], the "
        "same place), past its end: A has shape (10, 10)"
    )
    assert (found.kind, found.line, found.block, found.thread) == (
        "out-of-bounds", 5, (1, 0, 0), (35, 0, 0),
    )  # fmt: skip


ONE = kernel("out[0] = A[INDEX];", "const float* A, float* out")


@pytest.mark.parametrize("shape, index, says", [
    ((3, 5), 15, "reads A[3, 0] (or A[2, 5], the same place), past its end: A has shape (3, 5)"),
    ((3, 5), 19, "reads A[3, 4] (or A[2, 9], the same place), past its end: A has shape (3, 5)"),
    ((3, 5), 20, "reads A[4, 0], past its end: A has shape (3, 5)"),
    ((3, 5), -1, "reads A[-1, 4], before its beginning: A has shape (3, 5)"),
    ((2, 3, 5), 30, "reads A[2, 0, 0], past its end: A has shape (2, 3, 5)"),
    ((3, 0), 0, "reads A[0, 0], past its end: A has shape (3, 0)"),
    ((1,), 1, "reads A[1], past its end: A has 1 element"),
])  # fmt: skip
def test_a_row_after_the_last_may_be_a_column_too_far(shape, index, says):
    found = fault(ONE.replace("INDEX", str(index)), (1,), (1,), (floats(*shape), floats(1)))
    assert str(found).endswith(says)
    assert says.startswith(f"reads {found.element}")


@pytest.mark.parametrize("first, says", [
    (4, "reads 16 bytes at A[4], of which the last 8 lie past its end: A has 6 elements"),
    (8, "reads A[8], past its end: A has 6 elements"),
    (-4, "reads A[-4], before its beginning: A has 6 elements"),
])  # fmt: skip
def test_of_a_wide_access_the_part_outside_is_told(first, says):
    code = kernel(f"out[0] = ((const float4*)A)[{first // 4}];", "const float* A, float4* out")
    found = fault(code, (1,), (1,), (floats(6), floats(1, 4)))
    assert str(found).endswith(says)


def test_a_read_before_an_array_is_not_its_neighbours():
    code = STEP.replace("A[i + 1]", "A[i - 1]")
    found = fault(code, args=(np.int32(100), floats(200), floats(25, 4), floats(100)))
    assert "reads A[-1], before its beginning: A has 200 elements" in str(found)


def test_a_write_far_past_an_array_never_lands_in_a_neighbour():
    code = STEP.replace("C[i] =", "C[i + 1000000000] =")
    others = floats(200), floats(25, 4), floats(100)
    found = fault(code, args=(np.int32(100), *others))
    assert "writes C[1000000000], past its end" in str(found)
    assert all((x == 1).all() for x in others)


def test_a_misaligned_vector_is_named():
    code = kernel(
        INDEX + "float4 v = *(const float4*)(B + 4 * i + 1);\nout[i] = v.x + v.y + v.z + v.w;",
        "const float* B, float* out",
    )
    found = fault(code, args=(floats(8, 25), floats(64)), grid=(1,), block=(32,))
    assert (found.kind, found.line, found.thread) == ("misaligned", 2, (0, 0, 0))
    assert "reads 16 bytes at B[0, 1], which is not a multiple of 16 bytes" in str(found)


@pytest.mark.parametrize("first", [1, 2, 3, 4, 63, 64, 65])
def test_a_view_begins_off_an_alignment_as_far_as_in_the_array_that_it_is_part_of(first):
    code = kernel(
        "out[0] = (size_t)A % 256;\n*(float4*)A = make_float4(1, 2, 3, 4);", "int* out, float* A"
    )
    out, view = np.zeros(1, np.int32), floats(100)[first : first + 32]
    if first % 4 == 0:
        run(code, (1,), (1,), (out, view))
    else:
        found = fault(code, args=(out, view), grid=(1,), block=(1,))
        assert "writes 16 bytes at A[0], which is not a multiple of 16 bytes" in str(found)
    assert out[0] == 4 * first % 256


def test_a_view_that_begins_between_two_doubles_is_read_and_written_as_doubles():
    code = kernel(INDEX + "((double*)(A + 1))[i] = 2 * ((double*)(A + 1))[i];", "float* A")
    whole = np.zeros(20, np.float32)
    whole[2:18].view(np.float64)[:] = np.arange(8)
    run(code, (1,), (8,), (whole[1:19],))
    assert whole[2:18].view(np.float64).tolist() == [2.0 * n for n in range(8)]
    assert not whole[:2].any() and not whole[18:].any()


def test_an_address_from_nowhere_is_named():
    code = STEP.replace("A[i + 1]", "*(const float*)(size_t)(8 * i + 8)")
    found = fault(code, args=(np.int32(10), floats(200), floats(25, 4), floats(100)))
    assert "reads address 0x8, which belongs to no array" in str(found)


def test_a_read_past_shared_memory_is_named():
    code = kernel("__shared__ float s[32]; s[threadIdx.x] = 1; __syncthreads();\n"
                  "out[threadIdx.x] = s[threadIdx.x + 2];", "float* out")  # fmt: skip
    found = fault(code, grid=(1,), block=(32,), args=(floats(32),))
    assert "byte 128 of shared memory" in str(found) and found.thread == (30, 0, 0)


def test_an_empty_array_has_no_element():
    found = fault(args=(np.int32(1), floats(0), floats(1, 4), floats(1)), grid=(1,), block=(1,))
    assert "reads A[1], past its end: A has 0 elements" in str(found)


def test_an_unknown_opcode_is_named_with_its_line():
    code = kernel('out[0] = 1;\nasm volatile("griddepcontrol.wait;" ::: "memory");')
    with pytest.raises(PtxError, match=r"does not know `griddepcontrol.wait` \(line 3"):
        run(code, (1,), (1,), (np.zeros(1, np.int32),), arch="compute_90")


def test_an_access_by_a_lane_that_is_switched_off_is_no_access():
    out = np.zeros(40, np.int32)
    run(kernel(INDEX + "if (i < 40) out[i] = out[39 - i] + 1;"), (2,), (32,), (out,))
    assert (out >= 1).all()


# --- arguments -----------------------------------------------------------------------------------

GOOD = dict(M=np.int32(4), A=np.ones((4, 4), "f4"), B=np.ones((1, 4), "f4"), C=np.ones(4, "f4"))


@pytest.mark.parametrize("change, error, says", [
    ({"A": np.ones((4, 4))}, TypeError, "A points at float32 and was given an array of float64"),
    ({"A": np.ones((4, 8), "f4")[:, ::2]}, ValueError, "A is not C-contiguous"),
    ({"A": np.ones((4, 3), "f4", order="F")}, ValueError, "ascontiguousarray"),
    ({"M": 4.0}, TypeError, "M is a whole number and was given 4.0"),
    ({"M": 2**33}, ValueError, "does not fit the 32 bits"),
    ({"M": np.ones(3, "i4")}, TypeError, "M is a scalar parameter"),
    ({"A": [[1.0]]}, TypeError, r"A was given a list; pass an array: cp\.asarray\(A, dtype=cp\.f"),
    ({"M": np.float32(4)}, TypeError, "M is a whole number"),
    ({"M": np.True_}, TypeError, "M has 4 bytes and was given np.True_ of 1"),
    ({"M": np.uint32(3 * 10**9)}, ValueError, "int: -2147483648 to 2147483647"),
    ({"A": None}, TypeError, "A is a pointer and was given None.*write 0"),
    ({"A": np.float64(1)}, TypeError, "A is a pointer and was given .*Pass an array"),
    ({"A": np.ma.ones((4, 4), "f4")}, TypeError, "A is a masked array"),
    ({"A": np.array(1.0)}, TypeError, "A points at float32 and was given an array of float64"),
    ({"C": 3}, ValueError, None),
])  # fmt: skip
def test_an_argument_that_cupy_would_pass_on_unseen_is_refused(change, error, says):
    loaded = host.load(compile_ptx(STEP, (), "compute_75", "test.cu").text, STEP, "test.cu")
    if says is None:  # a number for a pointer is a legal launch; its first use is the fault
        with pytest.raises(Fault, match="belongs to no array"):
            loaded.launch("f", (1,), (4,), tuple({**GOOD, **change}.values())).run()
        return
    with pytest.raises(error, match=says):
        loaded.launch("f", (1,), (4,), tuple({**GOOD, **change}.values()))


@pytest.mark.parametrize("grid, block, says", [
    ((1,), (1025,), "block.x = 1025"), ((1,), (64, 32), "2048 threads"), ((0,), (4,), "grid.x = 0"),
    ((1, 65536), (4,), "grid.y = 65536"), (4, (4,), "not a tuple"), ((1,), (4.0,), "block.x = 4.0"),
    ((True,), (4,), "grid.x = True"),
])  # fmt: skip
def test_a_launch_beyond_the_hardwares_limits_is_refused(grid, block, says):
    loaded = host.load(compile_ptx(STEP, (), "compute_75", "test.cu").text, STEP, "test.cu")
    with pytest.raises(ValueError, match=says):
        loaded.launch("f", grid, block, tuple(GOOD.values()))


def test_too_few_arguments_are_counted_and_named():
    loaded = host.load(compile_ptx(STEP, (), "compute_75", "test.cu").text, STEP, "test.cu")
    with pytest.raises(TypeError, match=r"takes 4 arguments \(M, A, B, C\); 3 were given"):
        loaded.launch("f", (1,), (4,), tuple(GOOD.values())[:3])


def test_a_python_float_for_a_float_is_refused_with_the_way_out():
    code = kernel("out[0] = x;", "float* out, float x")
    out = np.zeros(1, "f4")
    with pytest.raises(TypeError, match=r"np\.float32\(1\.5\)"):
        run(code, (1,), (1,), (out, 1.5))
    run(code, (1,), (1,), (out, np.float32(1.5)))
    assert out[0] == 1.5


def test_only_the_chosen_blocks_run():
    code = kernel(INDEX + "out[i] = 1;")
    loaded = host.load(compile_ptx(code).text, code, "test.cu")
    out = np.zeros(128, np.int32)
    launch = loaded.launch("f", (4,), (32,), (out,), blocks=np.array([1, 3]))
    assert isinstance(launch, Launch)
    launch.run()
    assert out.reshape(4, 32).sum(axis=1).tolist() == [0, 32, 0, 32]


@pytest.mark.parametrize("kind, good, bad", [
    ("double2*", np.ones(4), np.ones(4, "f4")),
    ("float2*", np.ones(4, "c8"), np.ones(4)),
    ("long long*", np.ones(4, "i8"), np.ones(4, "f4")),
    ("unsigned char*", np.ones(4, "u1"), np.ones(4, "i4")),
    ("const short* __restrict__", np.ones(4, "i2"), np.ones(4, ">i2")),
    ("float a[], int", np.ones(4, "f4"), np.ones(4)),
    ("int**", np.ones(4, "i8"), np.ones(4, object)),
    ("Floats", np.ones(4, "f4"), 1.0),
    ("unsigned", 3 * 10**9, -1), ("size_t", 2**63, np.ones(4)), ("short", -(2**15), 2**15),
    ("float2", np.complex64(1j), 5), ("double", 1.5, np.float32(1.5)), ("bool", True, 1.0),
])  # fmt: skip
def test_an_argument_is_checked_against_the_type_that_the_source_declares(kind, good, bad):
    names = f"{kind} b" if "[]" in kind or "*" not in kind else kind  # an unnamed parameter
    code = "typedef float* Floats;\n" + kernel("", names)
    rest = (np.int32(1),) if "," in kind else ()
    run(code, (1,), (1,), (good, *rest))
    with pytest.raises((TypeError, ValueError)):
        run(code, (1,), (1,), (bad, *rest))


def test_of_two_definitions_only_what_they_agree_in_is_known():
    code = f"""
    #if 0
    {kernel("", "double* out, int n")}
    #else
    {kernel("out[0] = n;", "float* out, int n")}
    #endif"""
    out = np.zeros(1, "f4")
    run(code, (1,), (1,), (out, 7))
    assert out[0] == 7
    with pytest.raises(TypeError, match="n is a whole number"):
        run(code, (1,), (1,), (out, 7.0))


def test_sizes_are_whole_numbers_of_any_size():
    out = np.zeros(1, np.int32)
    code = kernel("atomicAdd(out, 1);")
    run(code, (np.uint8(128), np.uint8(2)), (np.uint8(16), np.uint8(16)), (out,))
    assert out[0] == 256 * 256


@pytest.mark.parametrize("size", [-4, 4.0, True])
def test_a_size_of_shared_memory_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match=r"shared_mem = .*whole number of bytes"):
        run(kernel("out[0] = 1;"), (1,), (1,), (np.zeros(1, "i4"),), shared_mem=size)


def test_a_launch_takes_no_memory_for_blocks_that_are_still_to_run():
    loaded = host.load(compile_ptx(STEP).text, STEP, "test.cu")
    launch = loaded.launch("f", (2**31 - 1, 65535, 65535), (4,), tuple(GOOD.values()))
    assert len(launch.numbers) == (2**31 - 1) * 65535**2


def test_a_batch_is_bounded_by_the_memory_of_its_blocks():
    code = kernel("int a[16384]; for (int n = 0; n < 2; ++n) a[n * out[0] & 16383] = n;\n"
                  "out[threadIdx.x] = a[out[1]];")  # fmt: skip
    loaded = host.load(compile_ptx(code).text, code, "test.cu")
    launch = loaded.launch("f", (64,), (1024,), (np.zeros(1024, "i4"),))
    assert launch.batch == (1 << 28) // (1024 * 65536)


def test_modules_of_one_source_have_variables_of_their_own_and_functions_of_one_share_them():
    code = "__device__ int calls;\n" + kernel("out[0] = calls; calls += 5;")
    out = np.ones(1, np.int32)
    for _ in range(2):
        loaded = host.load(compile_ptx(code).text, code, "test.cu")
        for expected in (0, 5):
            loaded.launch("f", (1,), (1,), (out,)).run()
            assert out[0] == expected


# --- what a careful reader of the PTX manual asks -------------------------------------------------


def test_of_lanes_that_store_to_one_address_the_last_stays():
    out = np.zeros(2, np.int32)
    run(
        kernel("out[0] = threadIdx.x; if (threadIdx.x < 9) out[1] = threadIdx.x;"),
        (1,),
        (32,),
        (out,),
    )
    assert out.tolist() == [31, 8]


def test_a_guarded_trap_stops_only_if_a_lane_executes_it():
    trap = 'asm volatile("{.reg .pred p; setp.gt.s32 p, %0, LIMIT; @p trap;}" :: "r"(i));'
    out = np.zeros(32, np.int32)
    run(kernel(INDEX + trap.replace("LIMIT", "31") + "out[i] = 7;"), (1,), (32,), (out,))
    assert (out == 7).all()
    found = fault(kernel(INDEX + trap.replace("LIMIT", "30")), (1,), (32,), (out,))
    assert found.kind == "trap" and "thread (31, 0) of block (0, 0) executes a trap" in str(found)


def test_a_loop_without_an_end_stops_where_the_budget_does():
    code = kernel(INDEX + "while (out[i] >= 0) out[i] = 1 - out[i];")
    with budget(20_000):
        found = fault(code, (1,), (32,), (np.zeros(32, np.int32),))
    assert found.kind == "endless" and found.line == code[: code.index("while")].count("\n") + 1
    assert "(0, 0) is still running after 20,000 instructions" in str(found)
    empty = kernel("while (out) ;")  # the compiler leaves a jump to itself, without a line
    with budget(20_000):
        assert fault(empty, (1,), (32,), (np.zeros(32, np.int32),)).kind == "endless"


def test_a_budget_holds_for_each_launch_and_no_longer_than_its_block():
    code, out = kernel(INDEX + "for (int n = 0; n < 500; ++n) out[i] ^= n;"), np.zeros(32, np.int32)
    with budget(20_000):
        for _ in range(10):
            run(code, (1,), (32,), (out,))
        with budget(100):
            assert fault(code, (1,), (32,), (out,)).kind == "endless"
        run(code, (1,), (32,), (out,))
    with budget(100), pytest.raises(Fault):
        run(code, (1,), (32,), (out,))
    run(code, (1,), (32,), (out,))


def test_inline_assembly_may_reuse_names_in_its_scopes():
    code = kernel(INDEX + """
        int r = 0;
        asm volatile("{.reg .pred p; L: add.s32 %0, %0, 1;"
                     " setp.lt.s32 p, %0, 5; @p bra L;}" : "+r"(r));
        r += 100;
        asm volatile("{.reg .b32 p; mov.b32 p, %0; {.reg .pred p; L: add.s32 %0, %0, 10;"
                     " setp.lt.s32 p, %0, 150; @p bra L;} sub.s32 %0, %0, p;}" : "+r"(r));
        out[i] = r;""")  # fmt: skip
    out = np.zeros(32, np.int32)
    run(code, (1,), (32,), (out,))
    assert (out == 50).all()


@pytest.mark.parametrize("mode, expected", [
    ("down", lambda t: t + 1 if t < 31 else t), ("xor", lambda t: t ^ 1),
    ("up", lambda t: t - 1 if t else t),
])  # fmt: skip
def test_a_shuffle_takes_the_low_five_bits_of_its_distance(mode, expected):
    code = kernel(f"int t = threadIdx.x; out[t] = __shfl_{mode}_sync(~0u, t, 33 + out[0]);")
    out = np.zeros(32, np.int32)
    run(code, (1,), (32,), (out,))
    assert out.tolist() == [expected(t) for t in range(32)]


def test_a_vote_counts_the_lanes_of_its_own_mask():
    code = kernel("""
        int t = threadIdx.x;
        unsigned half = t < 16 ? 0xffff : 0xffff0000;
        out[t] = __ballot_sync(half, t % 3 == 0);
        out[32 + t] = __any_sync(half, t == 20) + 2 * __all_sync(half, t < 16);""")
    out = np.zeros(64, np.int32)
    run(code, (1,), (32,), (out,))
    low, high = (sum(1 << t for t in range(n, n + 16) if t % 3 == 0) for n in (0, 16))
    assert out[:32].view("u4").tolist() == [low] * 16 + [high] * 16
    assert out[32:].tolist() == [2] * 16 + [1] * 16


def test_a_warp_reduces_whole_numbers_in_one_instruction():
    code = kernel("""
        int t = threadIdx.x, v = 5 - t;
        out[t] = __reduce_add_sync(~0u, v);
        out[32 + t] = __reduce_min_sync(~0u, v);
        out[64 + t] = __reduce_max_sync(~0u, (unsigned)v);
        out[96 + t] = __reduce_xor_sync(~0u, v);
        if (t < 7) out[128 + t] = __reduce_and_sync(0x7f, 96 + t);""")
    out = np.zeros(160, np.int32)
    run(code, (1,), (32,), (out,), arch="compute_80")
    v = 5 - np.arange(32)
    expected = [v.sum(), v.min(), -1, np.bitwise_xor.reduce(v), 96]
    assert out.reshape(5, 32)[:, 3].tolist() == expected


SEVERAL = kernel("int t = threadIdx.x; const int* p = t % 2 ? a : b; out[t] = p[t / 2];",
                 "const int* a, const int* b, int* out")  # fmt: skip


def test_lanes_of_one_instruction_may_address_several_arrays_and_count_as_one_access():
    a, b, out = np.arange(32, dtype="i4"), -np.arange(32, dtype="i4"), np.zeros(64, "i4")
    loaded, tally = host.load(compile_ptx(SEVERAL).text, SEVERAL, "test.cu"), Tally()
    launch = loaded.launch("f", (1,), (64,), (a, b, out), watch=tally)
    launch.run()
    assert out.reshape(32, 2).tolist() == [[-n, n] for n in range(32)]
    counters = tally.result(launch.program)
    assert (counters.global_load_requests, counters.global_load_sectors) == (2, 2 * 2 * 2)


def test_a_fault_in_one_of_several_arrays_is_named():
    args = np.zeros(32, "i4"), np.zeros(9, "i4"), np.zeros(64, "i4")
    found = fault(SEVERAL, (1,), (64,), args)
    assert "thread (18, 0) of block (0, 0) reads b[9], past its end" in str(found)


def test_a_pointer_may_differ_by_lane_between_shared_and_own_memory():
    code = kernel("""
        __shared__ int s[32];
        int own[4] = {1, 2, 3, (int)threadIdx.x}, t = threadIdx.x;
        s[t] = 5;
        int* p = t & 1 ? s : own;
        p[out[40] + 3] += 10;
        out[t] = p[3 + out[41]];""")
    out = np.zeros(64, np.int32)
    run(code, (1,), (32,), (out,))
    assert out[:32].tolist() == [15 if t % 2 else t + 10 for t in range(32)]


BARRIER = kernel("""
    __shared__ int s[128];
    int t = threadIdx.x;
    s[t] = t;
    asm volatile("bar.sync %0, 32;" :: "r"(t / WIDTH + 1) : "memory");
    out[t] = s[t ^ 1];""")


def test_each_warp_may_use_a_barrier_of_its_own():
    out = np.zeros(128, np.int32)
    run(BARRIER.replace("WIDTH", "32"), (1,), (128,), (out,))
    assert out.tolist() == [t ^ 1 for t in range(128)]


def test_a_warp_whose_threads_are_at_different_barriers_is_refused():
    with pytest.raises(PtxError, match=r"line 6 .*threads of one warp are at different barriers"):
        run(BARRIER.replace("WIDTH", "16"), (1,), (128,), (np.zeros(128, np.int32),))


def test_a_barrier_lets_go_when_more_threads_arrive_than_it_waits_for():
    out = np.zeros(128, np.int32)
    run(kernel('asm volatile("bar.sync 1, 64;"); out[threadIdx.x] = 1;'), (1,), (128,), (out,))
    assert out.all()


TAIL = """
extern "C" __global__ void f(const float* in, float* out, int n) {
    __shared__ float4 s[32];
    int t = threadIdx.x, left = n - 4 * t, bytes = left > 4 ? 16 : left > 0 ? 4 * left : 0;
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(in + (bytes ? 4 * t : 0)), "r"(bytes));
    asm volatile("cp.async.wait_all;");
    for (int n = 0; n < 4; ++n) out[4 * t + n] = ((float*)s)[4 * t + n];
}"""


@pytest.mark.parametrize("n", [1, 30, 126, 127])
def test_an_asynchronous_copy_reads_only_as_many_bytes_as_it_is_told(n):
    data, out = np.arange(1, n + 1, dtype="f4"), np.zeros(128, "f4")
    run(TAIL, (1,), (32,), (data, out, np.int32(n)), arch="compute_80")
    assert out.tolist() == [*range(1, n + 1)] + [0] * (128 - n)
    with pytest.raises(
        Fault, match=rf"copies \d+ bytes at in\[{n // 4 * 4}\], of which the last 4 lie past"
    ):
        run(TAIL, (1,), (32,), (data, out, np.int32(n + 1)), arch="compute_80")


@pytest.mark.parametrize("body, args, says", [
    ("__shared__ int s[32]; s[(int)threadIdx.x - 1] = 1; out[0] = s[out[0]];", 1,
     "writes byte -4 of shared memory, before its beginning"),
    ("out[threadIdx.x] = ((int*)table)[threadIdx.x];", 1,
     r"reads table\[2, 0\] \(or table\[1, 3\], the same place\), past its end: table has shape"),
    ("out[0] = 1;", 0, "writes out.0., but out is read-only"),
])  # fmt: skip
def test_a_fault_says_what_was_meant(body, args, says):
    out = np.zeros(64, np.int32)
    out.setflags(write=bool(args))
    code = "__constant__ int table[2][3] = {1, 2, 3, 4, 5, 6};\n" + kernel(body)
    with pytest.raises(Fault, match=says):
        run(code, (1,), (32,), (out,))


def test_memory_passed_as_read_only_and_writeable_is_writeable():
    out = np.zeros(4, np.int32)
    view = out.view()
    view.setflags(write=False)
    run(kernel("out[0] = 5;", "const int* in, int* out"), (1,), (1,), (view, out))
    assert out[0] == 5


def test_a_vector_load_may_leave_out_what_it_does_not_need():
    code = kernel("""
        int y; asm volatile("ld.global.v2.u32 {_, %0}, [%1];" : "=r"(y) : "l"(out));
        asm volatile("ld.global.v2.u32 {_, _}, [%0];" :: "l"(out)); out[0] = y;""")
    out = np.array([1, 2], np.int32)
    run(code, (1,), (1,), (out,))
    assert out.tolist() == [2, 2]


@pytest.mark.parametrize("threads", [50, 64])
def test_a_barrier_may_count_votes_and_is_one_instruction(threads):
    code = kernel("""
        int t = threadIdx.x, b = blockIdx.x;
        if (t % 2) out[t] = 7;
        for (int n = 0; n < 2; ++n) out[t + 64 * b] = __syncthreads_count(t % 3 == n + b);
        out[128 + t + 64 * b] = __syncthreads_or(t == 40 + b) + 2 * __syncthreads_and(t < 60);""")
    out = np.zeros(256, np.int32)
    loaded, tally = host.load(compile_ptx(code).text, code, "test.cu"), Tally()
    launch = loaded.launch("f", (2,), (threads,), (out,), watch=tally)
    launch.run()
    for block in range(2):
        here = out[64 * block : 64 * block + threads]
        assert set(here.tolist()) == {sum(t % 3 == 1 + block for t in range(threads))}
        assert (out[128 + 64 * block : 128 + 64 * block + threads] == 1 + 2 * (threads < 60)).all()
    assert tally.result(launch.program).barriers == 2 * 2 * 4
