"""Planted bugs: right kernels, each with one mistake put in, and where the mistake must be found.

A `Base` is a right kernel: those of the book with small tiles, and five written here for what the
book's lack (cp.async, work inside a warp, atomics) or do in another way (float4, two buffers). A
`Mutant` is a base with some text replaced; every replaced text stands in the base exactly once.
`kinds` are the findings that are right for it, any of them will do; `at` are texts of the broken
kernel, at whose lines the finding must stand (as its line or its other line). "wrong-result" is a
mistake that breaks no rule of CUDA: only comparing numbers finds it (run/check.py). A mutant with a
`proof` does nothing wrong: it computes the same numbers as its base, and must have no finding.

tests/test_mutants.py runs this table on the PTX machine, benchmarks/compute_sanitizer.py on a GPU.
"""

from dataclasses import dataclass, replace

import numpy as np

from sgemm_lab.ladder import Step, Variant, ladder

Shape = tuple[int, int, int]
WRONG = ("wrong-result",)
SHAPE = 19, 21, 22  # M, N, K: several tiles each way, none of them whole
APART = 67, 70, 22  # the same for tiles of 64; rows of A and B are no multiples of 16 bytes
FOURS = 68, 72, 20  # the same, and they are


@dataclass(frozen=True)
class Base:
    """A right kernel; with `slices`, launched in so many layers of blocks that all add to one C."""

    variant: Variant
    arch: str = "compute_75"
    slices: int = 1
    shape: Shape = SHAPE

    @property
    def name(self) -> str:
        return self.variant.step.stem

    def launch(self, shape: Shape | None = None, beta: float = 0.0) -> "Launch":
        return Launch(self.variant, self.arch, shape or self.shape, beta, self.slices)


@dataclass(frozen=True)
class Mutant:
    """A base with a mistake: `edits` are (text, text instead); the rest as the module says."""

    name: str
    base: Base
    edits: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    shape: Shape | None = None
    beta: float = 0.0
    slices: int | None = None
    offsets: Shape = (0, 0, 0)
    proof: str = ""

    @property
    def variant(self) -> Variant:
        """The broken kernel as a variant, for `check`."""
        step = self.base.variant.step
        for old, new in self.edits:
            step = step.edited(old, new)
        return replace(self.base.variant, step=step)

    @property
    def lines(self) -> set[int]:
        """Where it must be found: the lines of `at`, else of the text put in first; a mistake in
        numbers only, or none, has no line."""
        if self.proof or self.kinds == WRONG:
            return set()
        source = self.variant.step.source
        places = [_place(text, source) for text in self.at or (self.edits[0][1],)]
        return {source[:place].count("\n") + 1 for place in places}

    @property
    def launch(self) -> "Launch":
        return self.at_shape(self.shape or self.base.shape)

    def at_shape(self, shape: Shape) -> "Launch":
        slices = self.slices or self.base.slices
        return Launch(self.variant, self.base.arch, shape, self.beta, slices, self.offsets)


@dataclass(frozen=True)
class Launch:
    """All that a launch needs but the arrays; the same here and on a GPU. A, B and C begin so many
    floats after the start of an allocation as `offsets` say."""

    variant: Variant
    arch: str
    shape: Shape
    beta: float = 0.0
    slices: int = 1
    offsets: Shape = (0, 0, 0)

    @property
    def grid(self) -> tuple[int, ...]:
        M, N, _ = self.shape
        grid = self.variant.grid(M, N)
        return grid if self.slices == 1 else (*grid, self.slices)

    def arguments(self, asarray, empty) -> tuple:
        """For the kernel. C is zero for slices to add to, `empty` where beta is 0, else random."""
        M, N, K = self.shape
        rng = np.random.default_rng(0)
        A, B, C = (rng.standard_normal(s, dtype=np.float32) for s in ((M, K), (K, N), (M, N)))
        if self.slices > 1:
            C = np.zeros_like(C)
        unwritten = self.slices == 1 and not self.beta
        A, B, C = (
            (empty(n + X.size, np.float32) if X is C and unwritten else
             asarray(np.concatenate([np.zeros(n, np.float32), X.reshape(-1)])))[n:].reshape(X.shape)
            for X, n in zip((A, B, C), self.offsets, strict=True)
        )  # fmt: skip
        sizes = np.int32(M), np.int32(N), np.int32(K)
        return *sizes, np.float32(1), A, B, np.float32(self.beta), C

    def run(self) -> tuple:
        """On the PTX machine: the findings, and C."""
        from sgemm_lab.run.backend import ptx  # not at the top: a GPU's launches do without
        from sgemm_lab.run.profile import profile

        variant, arguments = self.variant, self.arguments(np.asarray, ptx.empty)
        done = profile(
            variant.step.source, variant.step.function, self.grid, variant.block, arguments,
            options=variant.options, arch=self.arch,
        )  # fmt: skip
        return done.findings, arguments[-1]


def _place(text: str, source: str) -> int:
    """Where a text stands in a source; it must stand there once."""
    if source.count(text) != 1:
        raise ValueError(f"{text!r} stands {source.count(text)} times in the kernel")
    return source.index(text)


# --- the right kernels ---------------------------------------------------------------------------


def _written(stem: str, text: str, tile: Shape, block: tuple[int, int], capability=(7, 5)):
    step = Step(
        number=0,
        stem=stem,
        title=stem,
        summary="",
        function=stem,
        block=lambda m: block,
        tile=lambda m: tile,
        min_capability=capability,
        text=text,
    )
    return step()


NAIVE = Base(ladder[1](BLOCK_X=8, BLOCK_Y=4))
TILED = Base(ladder[2](TILE=8))
BANKS = Base(ladder[4](TILE=8))
COLUMN = Base(ladder[5](TILE=32, BK=16, TM=4), shape=APART)
FOUR_LOADS = Base(ladder[6](TILE=32, BK=16, TM=8), shape=APART)
SQUARE = Base(ladder[7](TILE=64, BK=16, TM=4), shape=APART)
LARGE_SQUARE = Base(ladder[8](TILE=64, BK=8, TM=8), shape=APART)
WARP_TILE = Base(ladder[9](TILE=64, BK=8, TM=8), shape=APART)
PREFETCH = Base(ladder[10](TILE=64, BK=8, TM=8), shape=APART)
BUFFERS = Base(ladder[11](TILE=64, BK=8, TM=8), shape=APART)
BOOK = (NAIVE, TILED, BANKS, COLUMN, FOUR_LOADS, SQUARE, LARGE_SQUARE, WARP_TILE, PREFETCH, BUFFERS)

VECTOR = """\
// A block of 4 x 16 threads computes a 16 x 16 tile of C. A thread moves four
// neighbours at once, where the rows of the matrix begin at multiples of 16
// bytes; elsewhere one by one.

constexpr int TILE = 16;

__device__ __forceinline__ float4 load4(const float* X, int rows, int cols,
                                        unsigned row, unsigned col) {
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    const float* x = &X[(size_t)row * cols + col];
    if (row < rows && col + 3 < cols && cols % 4 == 0)
        v = *(const float4*)x;
    else if (row < rows) {
        if (col < cols)
            v.x = x[0];
        if (col + 1 < cols)
            v.y = x[1];
        if (col + 2 < cols)
            v.z = x[2];
        if (col + 3 < cols)
            v.w = x[3];
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(4 * TILE)
    vector(int M, int N, int K, float alpha, const float* A, const float* B,
           float beta, float* C) {
    const unsigned tx = 4 * threadIdx.x;
    const unsigned ty = threadIdx.y;
    const unsigned row = blockIdx.y * TILE + ty;
    const unsigned col = blockIdx.x * TILE + tx;

    __shared__ __align__(16) float As[TILE][TILE];
    __shared__ __align__(16) float Bs[TILE][TILE];

    float sums[4] = {};
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        *(float4*)&As[ty][tx] = load4(A, M, K, row, k0 + tx);
        *(float4*)&Bs[ty][tx] = load4(B, K, N, k0 + ty, col);
        __syncthreads(); // tiles complete

        for (int k = 0; k < TILE; ++k) {
            float a = As[ty][k];
            float4 b = *(const float4*)&Bs[k][tx];
            sums[0] += a * b.x;
            sums[1] += a * b.y;
            sums[2] += a * b.z;
            sums[3] += a * b.w;
        }
        __syncthreads(); // tiles used up
    }

    if (row >= M)
        return;
    float* c = &C[(size_t)row * N + col];
    if (beta == 0.0f && col + 3 < N && N % 4 == 0)
        *(float4*)c = make_float4(alpha * sums[0], alpha * sums[1],
                                  alpha * sums[2], alpha * sums[3]);
    else
        for (int i = 0; i < 4; ++i)
            if (col + i < N)
                c[i] = beta == 0.0f ? alpha * sums[i]
                                    : alpha * sums[i] + beta * c[i];
}
"""
VECTOR = Base(_written("vector", VECTOR, (16, 16, 16), (4, 16)))

DOUBLE = """\
// Two buffers: while a block computes with one tile it fetches the next into
// registers, and writes it to the other buffer. One barrier per tile is enough.

constexpr int TILE = 8;

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    doubled(int M, int N, int K, float alpha, const float* A, const float* B,
            float beta, float* C) {
    const unsigned tx = threadIdx.x;
    const unsigned ty = threadIdx.y;
    const unsigned row = blockIdx.y * TILE + ty;
    const unsigned col = blockIdx.x * TILE + tx;

    __shared__ float As[2][TILE][TILE];
    __shared__ float Bs[2][TILE][TILE];

    As[0][ty][tx] = row < M && tx < K ? A[(size_t)row * K + tx] : 0.0f;
    Bs[0][ty][tx] = ty < K && col < N ? B[(size_t)ty * N + col] : 0.0f;
    __syncthreads(); // first tiles complete

    float sum = 0.0f;
    int stage = 0;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        const unsigned ka = k0 + TILE + tx;
        const unsigned kb = k0 + TILE + ty;
        float a = row < M && ka < K ? A[(size_t)row * K + ka] : 0.0f;
        float b = kb < K && col < N ? B[(size_t)kb * N + col] : 0.0f;

        for (int k = 0; k < TILE; ++k)
            sum += As[stage][ty][k] * Bs[stage][k][tx];

        As[stage ^ 1][ty][tx] = a;
        Bs[stage ^ 1][ty][tx] = b;
        __syncthreads(); // next tiles complete, these used up
        stage ^= 1;
    }

    if (row < M && col < N) {
        float* c = &C[(size_t)row * N + col];
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
"""
DOUBLE = Base(_written("doubled", DOUBLE, (8, 8, 8), (8, 8)))

ASYNC = """\
// Two stages filled by cp.async: the next tiles are on their way while a block
// computes with these. Outside the matrix nothing is read and 0 is written.

constexpr int TILE = 8;

__device__ __forceinline__ void copy(float* to, const float* X, int rows,
                                     int cols, unsigned row, unsigned col) {
    const bool inside = row < rows && col < cols;
    const float* from = inside ? &X[(size_t)row * cols + col] : X;
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    int bytes = inside ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes));
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    async(int M, int N, int K, float alpha, const float* A, const float* B,
          float beta, float* C) {
    const unsigned tx = threadIdx.x;
    const unsigned ty = threadIdx.y;
    const unsigned row = blockIdx.y * TILE + ty;
    const unsigned col = blockIdx.x * TILE + tx;

    __shared__ float As[2][TILE][TILE];
    __shared__ float Bs[2][TILE][TILE];

    copy(&As[0][ty][tx], A, M, K, row, tx);
    copy(&Bs[0][ty][tx], B, K, N, ty, col);
    asm volatile("cp.async.commit_group; // first");

    float sum = 0.0f;
    int stage = 0;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        const int other = stage ^ 1;
        copy(&As[other][ty][tx], A, M, K, row, k0 + TILE + tx);
        copy(&Bs[other][ty][tx], B, K, N, k0 + TILE + ty, col);
        asm volatile("cp.async.commit_group; // next");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads(); // tiles complete

        for (int k = 0; k < TILE; ++k)
            sum += As[stage][ty][k] * Bs[stage][k][tx];
        __syncthreads(); // tiles used up
        stage = other;
    }

    if (row < M && col < N) {
        float* c = &C[(size_t)row * N + col];
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
"""
ASYNC = Base(_written("async", ASYNC, (8, 8, 8), (8, 8), (8, 0)), arch="compute_80")

WARP = """\
// A warp computes one element of C: its lanes share out K, and add their sums
// in shared memory by halves.

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    warps(int M, int N, int K, float alpha, const float* A, const float* B,
          float beta, float* C) {
    const unsigned lane = threadIdx.x;
    const unsigned warp = threadIdx.y;
    const unsigned row = blockIdx.y * WARPS + warp;
    const unsigned col = blockIdx.x;

    __shared__ float part[WARPS][32];

    float sum = 0.0f;
    if (row < M)
        for (unsigned k = lane; k < K; k += 32)
            sum += A[(size_t)row * K + k] * B[(size_t)k * N + col];

    part[warp][lane] = sum;
    __syncwarp(); // sums there
    for (unsigned step = 16; step > 0; step /= 2) {
        if (lane < step)
            part[warp][lane] += part[warp][lane + step];
        __syncwarp(); // halved
    }

    if (lane == 0 && row < M) {
        float* c = &C[(size_t)row * N + col];
        sum = part[warp][0];
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
"""
WARP = Base(_written("warps", WARP, (4, 1, 32), (32, 4)))

SPLIT = """\
// Split K: two layers of blocks, each with its half of K, add to the same C,
// which holds zeros before. Two numbers and a zero have one sum in any order.

constexpr int TILE = 8;

extern "C" __global__ void __launch_bounds__(TILE * TILE)
    split(int M, int N, int K, float alpha, const float* A, const float* B,
          float beta, float* C) {
    const unsigned col = blockIdx.x * TILE + threadIdx.x;
    const unsigned row = blockIdx.y * TILE + threadIdx.y;
    const unsigned part = (K + gridDim.z - 1) / gridDim.z;
    const unsigned begin = blockIdx.z * part;
    const unsigned end = begin + part < K ? begin + part : K;

    if (row < M && col < N) {
        float sum = 0.0f;
        for (unsigned k = begin; k < end; ++k)
            sum += A[(size_t)row * K + k] * B[(size_t)k * N + col];
        atomicAdd(&C[(size_t)row * N + col], alpha * sum);
    }
}
"""
SPLIT = Base(_written("split", SPLIT, (8, 8, 1), (8, 8)), slices=2)

BASES = (*BOOK, VECTOR, DOUBLE, ASYNC, WARP, SPLIT)

# --- the mistakes --------------------------------------------------------------------------------

OUTSIDE = ("out-of-bounds",)
RACE = ("read-write-race",)
BOTH_WRITE = ("write-write-race",)
TWO_BLOCKS = ("two-blocks-write",)
UNWRITTEN = ("uninitialised-read",)
UNFINISHED = ("unfinished-copy",)
ODD = ("misaligned",)
SOME = ("divergent-barrier", "exit-before-barrier")

WHOLE = (16, 24, 32)  # multiples of every tile


def _of(base: Base):
    """A function that makes mutants of a base; `also`: further edits."""

    def mutant(name, old, new, kinds=(), *at, also=(), **more):
        return Mutant(f"{base.name}: {name}", base, ((old, new), *also), kinds, at, **more)

    return mutant


_naive = _of(NAIVE)
_AB = "sum += A["  # the naive kernel's loads

IN_NAIVE = (
    _naive("no edge check on columns", "row < M && col < N", "row < M", OUTSIDE, _AB),
    _naive("no edge check on rows", "row < M && col < N", "col < N", OUTSIDE, _AB),
    _naive("<= for < on rows", "row < M", "row <= M", OUTSIDE, _AB),
    _naive("<= for < on columns", "col < N", "col <= N", OUTSIDE, _AB),
    _naive("<= for < along K", "k < K", "k <= K", OUTSIDE, _AB),
    _naive("index one too high", "row * K + k]", "row * K + k + 1]", OUTSIDE),
    _naive("index one too low, negative", "row * K + k]", "row * K + k - 1]", OUTSIDE),
    _naive("B read transposed", "(size_t)k * N + col]", "(size_t)col * N + k]", OUTSIDE,
           shape=(19, 30, 22)),
    _naive("rows of A as long as B's", "row * K + k", "row * N + k", OUTSIDE, shape=(19, 30, 22)),
    _naive("C written transposed, leading dimension kept", "row * N + col];", "col * N + row];",
           OUTSIDE, "*c = beta"),
    _naive("C written transposed", "row * N + col];", "col * M + row];", WRONG),
    _naive("C read although beta is 0", "beta == 0.0f ? alpha * sum : ", "", UNWRITTEN, "*c = "),
    _naive("beta forgotten", "alpha * sum + beta * *c", "alpha * sum", WRONG),
    _naive("blockDim.y for blockDim.x", "blockIdx.x * BLOCK_X", "blockIdx.x * blockDim.y",
           TWO_BLOCKS, "*c = beta"),
    _naive("two blocks on one tile", "+ blockIdx.y;", "+ blockIdx.y / 2;", TWO_BLOCKS,
           "*c = beta"),
    _naive("tiles of C overlap", "blockIdx.x * BLOCK_X", "blockIdx.x * (BLOCK_X - 1)", TWO_BLOCKS,
           "*c = beta"),
)  # fmt: skip


_tiled = _of(TILED)
_STORE_A = "As[threadIdx.y][threadIdx.x] ="
_STORE_B = "Bs[threadIdx.y * BS_K + threadIdx.x * BS_N] ="
_LOAD_A, _LOAD_B = "k0 + threadIdx.x < K ? *a : 0.0f", "k0 + threadIdx.y < K ? *b : 0.0f"
_USE = "* Bs[k * BS_K"
_FIRST = "__syncthreads();\n        As["
_SECOND = "__syncthreads();\n\n#pragma"

IN_TILED = (
    _tiled("first barrier dropped", _FIRST, "As[", RACE, _STORE_A, _USE),
    _tiled("second barrier dropped", _SECOND, "\n#pragma", RACE, _STORE_A, _USE,
           shape=(19, 21, 8)),
    _tiled("first barrier moved out of the loop", _FIRST, "As[", RACE, _STORE_B, _USE,
           also=(("float sums[", "__syncthreads();\n    float sums["),)),
    _tiled("first barrier moved between the stores", _STORE_B,
           f"__syncthreads();\n        {_STORE_B}", RACE, _STORE_A, _USE, also=((_FIRST, "As["),)),
    _tiled("second barrier moved between the stores", _STORE_B,
           f"__syncthreads();\n        {_STORE_B}", RACE, _STORE_B, _USE,
           also=((_SECOND, "\n#pragma"),)),
    _tiled("first barrier for threads inside C only", _FIRST,
           "if (row < M) __syncthreads();\n        As[", SOME),
    _tiled("second barrier for some lanes only", _SECOND,
           "if (threadIdx.x != 7) __syncthreads();\n\n#pragma", SOME),
    _tiled("barrier of the warp for the block's", _SECOND, "__syncwarp();\n\n#pragma", RACE,
           _STORE_B, _USE),
    _tiled("early return before the barriers", "float sums[",
           "if (row >= M || col >= N)\n        return;\n    float sums[",
           ("exit-before-barrier",), _FIRST),
    _tiled("early return between the barriers", _FIRST,
           "__syncthreads();\n        if (row >= M)\n            return;\n        As[",
           ("exit-before-barrier",), _SECOND),
    _tiled("loop left by threads past K", _FIRST,
           f"if (k0 + threadIdx.x >= K)\n            break;\n        {_FIRST}",
           ("exit-before-barrier", "divergent-barrier"), _FIRST),
    _tiled("rows not kept inside A", "min(row, M - 1)", "row", OUTSIDE, "a_next ="),
    _tiled("columns not kept inside B", "min(col, N - 1)", "col", OUTSIDE, "b_next ="),
    _tiled("no edge check on A along K", _LOAD_A, "*a", OUTSIDE, "a_next ="),
    _tiled("no edge check on B along K", _LOAD_B, "*b", OUTSIDE, "b_next ="),
    _tiled("no edge check on the store", "if (row < M && col < N) {", "{", OUTSIDE, "*c = beta"),
    _tiled("columns unchecked on the store", "if (row < M && col < N) {", "if (row < M) {",
           (*TWO_BLOCKS, *BOTH_WRITE, *OUTSIDE), "*c = beta"),
    _tiled("<= for < on the store", "if (row < M &&", "if (row <= M &&", OUTSIDE, "*c = beta"),
    _tiled("<= for < on A along K", "k0 + threadIdx.x < K ?", "k0 + threadIdx.x <= K ?", OUTSIDE),
    _tiled("<= for < in the loop over a tile", "k < TILE", "k <= TILE", OUTSIDE, _USE),
    _tiled("row of Bs one too far", "Bs[k * BS_K", "Bs[(k + 1) * BS_K", OUTSIDE),
    _tiled("column of As one too far", "As[threadIdx.y][k] *", "As[threadIdx.y][k + 1] *", WRONG),
    _tiled("As too small", "As[TILE][TILE]", "As[TILE][TILE - 1]", BOTH_WRITE, _STORE_A),
    _tiled("Bs too small", "Bs[TILE * TILE]", "Bs[TILE * TILE - TILE]", OUTSIDE, _STORE_B),
    _tiled("element before the row", "M - 1) * K + threadIdx.x]", "M - 1) * K + threadIdx.x - 1]",
           OUTSIDE, "a_next ="),
    _tiled("rows of B as long as A's", "threadIdx.y * N + min", "threadIdx.y * K + min", OUTSIDE,
           "b_next =", shape=(19, 14, 30)),
    _tiled("A read transposed", "min(row, M - 1) * K + threadIdx.x]",
           "threadIdx.x * K + min(row, M - 1)]", OUTSIDE, "a_next =",
           also=(("a += TILE;", "a += TILE * K;"),), shape=(11, 14, 30)),
    _tiled("uninitialised tail of As", _STORE_A,
           f"if (k0 + threadIdx.x < K)\n            {_STORE_A}", UNWRITTEN, _USE,
           shape=(19, 21, 5)),
    _tiled("uninitialised tail of Bs", _STORE_B,
           f"if (k0 + threadIdx.y < K)\n            {_STORE_B}", UNWRITTEN, _USE,
           shape=(19, 21, 5)),
    _tiled("As written by all columns of threads to one", _STORE_A, "As[threadIdx.y][0] =",
           BOTH_WRITE),
    _tiled("Bs written by all rows of threads to one", _STORE_B, "Bs[threadIdx.x * BS_N] =",
           BOTH_WRITE),
    _tiled("As shifted by one", _STORE_A, "As[threadIdx.y][threadIdx.x + 1] =",
           (*BOTH_WRITE, *UNWRITTEN)),
    _tiled("As written transposed", _STORE_A, "As[threadIdx.x][threadIdx.y] =", WRONG),
    _tiled("As for Bs", "* Bs[k * BS_K + threadIdx.x * BS_N]", "* As[k][threadIdx.x]", WRONG),
    _tiled("tiles of A overlap", "a += TILE;", "a += TILE - 1;", WRONG),
    _tiled("tiles of B taken once", "b += (size_t)TILE * N;", "", WRONG),
    _tiled("two blocks on one tile", "col = block_x * TILE", "col = block_x / 2 * TILE",
           TWO_BLOCKS, "*c = beta"),
    _tiled("tiles of C overlap", "row = block_y * TILE", "row = block_y * (TILE - 1)", TWO_BLOCKS,
           "*c = beta"),
    _tiled("blocks of z on those of y", "blockIdx.z / strips * gridDim.y + blockIdx.y",
           "blockIdx.z", TWO_BLOCKS, "*c = beta"),
    _tiled("strips overlap", "% strips * gridDim.x", "% strips * (gridDim.x - 1)", TWO_BLOCKS,
           "*c = beta", shape=(9, 150, 5)),
    _tiled("C read although beta is 0", "beta == 0.0f ? alpha * sum : ", "", UNWRITTEN, "*c = "),
    _tiled("one more turn of the loop", "k0 < K;", "k0 <= K;", shape=WHOLE, proof=(
        "If TILE does not divide K, both conditions hold for the same k0. Else there is one more "
        "turn, k0 = K: all threads take it, so all reach its barriers; both loads are guarded by "
        "k0 + … < K, so it reads nothing and fills both tiles with +0. It then adds +0·+0 to the "
        "sums: that changes no number, only a −0 (left by a product that underflowed) to +0."
    )),
)  # fmt: skip


_banks = _of(BANKS)
IN_BANKS = (
    _banks("pad forgotten in the array", "Bs[TILE * (TILE + PAD)]", "Bs[TILE * TILE]", OUTSIDE,
           "Bs[ty * BS_K + tx * BS_N] ="),
    _banks("pad of the rows that are read only", "BS_K + tx * BS_N] = b", "BS_K + tx * TILE] = b",
           (*BOTH_WRITE, *UNWRITTEN), "* Bs[k * BS_K"),
)  # fmt: skip


# What steps 5 and up have in common: fetch, put, store.
_PUT_A, _PUT_B = "As[i % BK][i / BK] =", "Bs[i / BN][i % BN] ="
_PUT_X, _PUT_FOUR = "As[i % BK + 0][i / BK] =", "*(float4*)&Bs[i / BN]"
_FETCH_FOUR = "next[j] = *(const float4*)"
_SUM = "sums[m] += As["
_TAKE_A, _TAKE_B = "a[m] = As[", "b[n] = Bs["
_BEFORE = "__syncthreads();\n        put("
_AFTER = "b_next, thread);\n        __syncthreads();"
_GUARDED = "c[i] = beta == 0.0f ?"
_STORE_FOUR = "*(float4*)c = four"

_column = _of(COLUMN)
IN_COLUMN = (
    _column("barrier before the stores dropped", _BEFORE, "put(", RACE, _PUT_A, _SUM),
    _column("barrier after the stores dropped", _AFTER, "b_next, thread);", RACE, _PUT_A, _SUM),
    _column("no edge check along a row", "r < rows && c < cols ?", "r < rows ?", OUTSIDE),
    _column("no edge check down a column", "r < rows && c < cols ?", "c < cols ?", OUTSIDE),
    _column("rows left counted from the matrix", "M - row0, left", "M, left", OUTSIDE,
            "next[j] = r < rows"),
    _column("tiles of B as far apart as A's rows are long", "(size_t)BK * N;", "(size_t)BK * K;",
            OUTSIDE, "next[j] = r < rows", shape=(35, 20, 70)),
    _column("As put as it lies in A", _PUT_A, "As[i / BK][i % BK] =", OUTSIDE),
    _column("rows of threads overlap", "row0 + ty * TM + m;", "row0 + ty + m;",
            (*BOTH_WRITE, *RACE), "*c = beta"),
    _column("last row of a thread unchecked", "row < M && col < N", "row - m < M && col < N",
            OUTSIDE, "*c = beta"),
    _column("last tile left out", "left > 0; left -= BK", "left > BK; left -= BK", WRONG),
)  # fmt: skip


_fours = _of(FOUR_LOADS)
_FAST_A = "M - row0, left,\n                  aligned && inside && left >= BK"

IN_FOUR_LOADS = (
    _fours("128-bit loads of rows of any length", "(K | N) % 4 == 0 && ", "", ODD, _FETCH_FOUR),
    _fours("128-bit loads by the length of A's rows only", "(K | N) % 4", "K % 4", ODD,
           _FETCH_FOUR, shape=(67, 70, 20)),
    _fours("128-bit loads wherever B begins", "((size_t)A | (size_t)B) % 16", "(size_t)A % 16", ODD,
           _FETCH_FOUR, shape=FOURS, offsets=(0, 1, 0)),
    _fours("128-bit loads wherever A begins", "((size_t)A | (size_t)B) % 16", "(size_t)B % 16", ODD,
           _FETCH_FOUR, shape=FOURS, offsets=(2, 0, 0)),
    _fours("128-bit loads past the end of a row", " && col0 + BN <= N", "", OUTSIDE, _FETCH_FOUR,
           shape=(64, 72, 16)),
    _fours("128-bit loads past the last row", "row0 + BM <= M && ", "", OUTSIDE, _FETCH_FOUR,
           shape=FOURS),
    _fours("128-bit loads past K", _FAST_A, _FAST_A.removesuffix(" && left >= BK"), OUTSIDE,
           _FETCH_FOUR, shape=(64, 64, 20)),
    _fours("fourth of four unchecked", "c + 3 < cols ?", "c < cols ?", OUTSIDE),
    _fours("first of four unchecked down a column", "next[j].x = r < rows &&", "next[j].x =",
           OUTSIDE),
    _fours("two of four put in one place", "As[i % BK + 1]", "As[i % BK]", UNWRITTEN, _SUM),
    _fours("pad that breaks the alignment", "alignas(16) float Bs[BK][BN];",
           "alignas(16) float Bs[BK][BN + 1];", ODD, _PUT_FOUR,
           also=(("(&Bs)[BK][BN],", "(&Bs)[BK][BN + 1],"),)),
    _fours("threads two apart", "i = 4 * (j * THREADS + thread);\n        *(float4*)",
           "i = 2 * (j * THREADS + thread);\n        *(float4*)", ODD, _PUT_FOUR),
)  # fmt: skip


_square = _of(SQUARE)
IN_SQUARE = (
    _square("barrier before the stores dropped", _BEFORE, "put(", RACE, _PUT_FOUR, _TAKE_B),
    _square("barrier after the stores dropped", _AFTER, "b_next, thread);", RACE, _PUT_FOUR,
            _TAKE_B),
    _square("128-bit stores past the right edge", "N - col, aligned && inside", "N - col, aligned",
            (*TWO_BLOCKS, *BOTH_WRITE, *OUTSIDE), _STORE_FOUR, shape=FOURS),
    _square("128-bit stores wherever C begins", " | (size_t)C) % 16", ") % 16", ODD, _STORE_FOUR,
            shape=FOURS, offsets=(0, 0, 1)),
    _square("128-bit loads by the length of B's rows only", "(K | N) % 4", "N % 4", ODD,
            _FETCH_FOUR, shape=(67, 72, 22)),
    _square("single stores past the right edge", "if (i < left)", "if (0 < left)",
            (*TWO_BLOCKS, *BOTH_WRITE, *OUTSIDE), _GUARDED),
    _square("a row below C", "if (row < M)", "if (row <= M)", OUTSIDE, _GUARDED),
    _square("C read although beta is 0", "if (beta != 0.0f) {", "{", UNWRITTEN, "float4 old =",
            shape=FOURS),
    _square("C read one by one although beta is 0",
            "beta == 0.0f ? alpha * sums[i]\n                                    : ", "",
            UNWRITTEN, "c[i] ="),
    _square("beta forgotten for one of four", "four.z += beta * old.z;", "", WRONG, shape=FOURS),
    _square("As put as it lies in A", _PUT_X, "As[i / BK][i % BK + 0] =", OUTSIDE),
    _square("rows and columns of threads mixed up", "As[k][ty * TM + m]", "As[k][tx * TM + m]",
            WRONG),
)  # fmt: skip


_large = _of(LARGE_SQUARE)
IN_LARGE_SQUARE = (
    _large("second four beside the first in C only", "col0 + col_of(tx, n)", "col0 + tx * TN + n",
           WRONG),
    _large("fours of the rows overlap", "m / 4 * (BM / TM * 4)", "m / 4 * 4", WRONG),
    _large("last tile only if it is whole", "left > 0; left -= BK", "left >= BK; left -= BK",
           WRONG),
)  # fmt: skip


_warp_tile = _of(WARP_TILE)
IN_WARP_TILE = (
    _warp_tile("two lanes on one place", "lane / 2 % 8", "lane % 8", WRONG),
    _warp_tile("all warps on one tile", "warp / (BN / WN) * WM", "warp % (BN / WN) * WM", WRONG),
)  # fmt: skip


_prefetch = _of(PREFETCH)
_FETCH_NEXT_A = "            fetch<BK>(a_next, A_tile, K, M - row0, left,"
_FETCH_NEXT_B = "            fetch<BN>(b_next, B_tile, N, left, N - col0,"

IN_PREFETCH = (
    _prefetch("barrier before the stores dropped", _BEFORE, "put(", RACE, _PUT_FOUR, _TAKE_B),
    _prefetch("barrier after the stores dropped", _AFTER, "b_next, thread);", RACE, _PUT_FOUR,
              _TAKE_B),
    _prefetch("next tile of A counted as the last", _FETCH_NEXT_A,
              _FETCH_NEXT_A.replace("left", "left + BK"), OUTSIDE, "next[j].z ="),
    _prefetch("next tile of B counted as the last", _FETCH_NEXT_B,
              _FETCH_NEXT_B.replace("left", "left + BK"), OUTSIDE, "next[j].x ="),
    _prefetch("the same tile fetched again", "A_tile += BK;", "", WRONG),
    _prefetch("next tile fetched if a whole one is left",
              "if (left > 0) {\n            fetch", "if (left >= BK) {\n            fetch", WRONG),
)  # fmt: skip


_buffers = _of(BUFFERS)
_THE_BARRIER = "__syncthreads();"

IN_BUFFERS = (
    _buffers("barrier dropped", _THE_BARRIER, "", RACE, _PUT_FOUR, _TAKE_B),
    _buffers("barrier only while tiles come", _THE_BARRIER, f"if (left > 0) {_THE_BARRIER}", RACE,
             _PUT_FOUR, _TAKE_B),
    _buffers("puts into the buffer in use", "put(As[now ^ 1], Bs[now ^ 1]",
             "put(As[now], Bs[now]", RACE, _PUT_FOUR, _TAKE_B),
    _buffers("never changes the buffer", "now ^= 1", "now ^= 0", WRONG),
    _buffers("first tile of B into the other buffer", "put(As[0], Bs[0]", "put(As[0], Bs[1]",
             UNWRITTEN, _TAKE_B),
    _buffers("one buffer only", "Bs[2][BK][BN]", "Bs[1][BK][BN]", OUTSIDE, _PUT_FOUR),
    _buffers("last tile put only if it is whole", "if (left > 0)\n            put",
             "if (left >= BK)\n            put", WRONG),
    _buffers("last of an odd number of tiles left out", "left > 0; now ^= 1",
             "left > (now ? 0 : BK); now ^= 1", WRONG),
    _buffers("threads below C leave early", "int left = K;",
             "if (row0 + row_of(at, 0) >= M)\n        return;\n    int left = K;",
             ("exit-before-barrier",), _THE_BARRIER),
)  # fmt: skip


_vector = _of(VECTOR)
IN_VECTOR = (
    _vector("float4 load on an odd row", " && cols % 4 == 0", "", ODD, "*(const float4*)x"),
    _vector("float4 store on an odd row", " && N % 4 == 0", "", ODD, "*(float4*)c"),
    _vector("float4 past the edge of the matrix", "row < rows && col + 3", "col + 3", OUTSIDE,
            "*(const float4*)x", shape=(19, 24, 24)),
    _vector("tail one too long", "if (col + 1 < cols)", "if (col < cols)", OUTSIDE, "v.y = x[1]"),
    _vector("tail without the row's check", "else if (row < rows) {", "else {", OUTSIDE,
            "v.x = x[0]"),
    _vector("float4 store although the row ends", "col + 3 < N && ", "", TWO_BLOCKS + OUTSIDE,
            "*(float4*)c", shape=(19, 20, 24)),
    _vector("padding that breaks the alignment", "float As[TILE][TILE];",
            "float As[TILE][TILE + 1];", ODD, "*(float4*)&As"),
    _vector("threads three apart", "tx = 4 * threadIdx.x", "tx = 3 * threadIdx.x", ODD,
            "*(float4*)&As", shape=(20, 21, 22)),
    _vector("first barrier dropped", "__syncthreads(); // tiles complete", "", RACE,
            "*(float4*)&Bs[ty]", "float4 b ="),
    _vector("second barrier dropped", "__syncthreads(); // tiles used up", "", RACE,
            "*(float4*)&As", "float a ="),
    _vector("checks the first of the four only", "col + 3 < cols &&", "col < cols &&", proof=(
        "The term is evaluated only together with cols % 4 == 0, and every call passes a col that "
        "is a multiple of 4 (k0 and blockIdx.x * TILE are multiples of 16, tx of 4). Among "
        "multiples of 4, col < cols means col + 4 <= cols, which is col + 3 < cols. Where "
        "cols % 4 != 0 the condition is false either way."
    ), shape=(19, 20, 24)),
)  # fmt: skip


_double = _of(DOUBLE)
_BUFFER = "sum += As[stage][ty][k] * Bs[stage][k][tx];"

IN_DOUBLE = (
    _double("first barrier dropped", "__syncthreads(); // first tiles complete", "", RACE,
            "As[0][ty][tx] =", _BUFFER),
    _double("barrier of the loop dropped", "__syncthreads(); // next tiles complete, these used up",
            "", RACE, "As[stage ^ 1][ty][tx] = a", _BUFFER),
    _double("writes the buffer in use", "As[stage ^ 1][ty][tx]", "As[stage][ty][tx]", RACE,
            "As[stage][ty][tx] = a", _BUFFER),
    _double("never changes the buffer", "stage ^= 1;", "", WRONG),
    _double("first tile into the other buffer", "Bs[0][ty][tx]", "Bs[1][ty][tx]", UNWRITTEN,
            _BUFFER),
    _double("one buffer only", "Bs[2][TILE][TILE]", "Bs[1][TILE][TILE]", OUTSIDE,
            "Bs[stage ^ 1][ty][tx] = b"),
    _double("next buffer counted up", "Bs[stage ^ 1]", "Bs[stage + 1]", OUTSIDE,
            "Bs[stage + 1][ty][tx] = b"),
    _double("next tile unchecked along K", "row < M && ka < K", "row < M", OUTSIDE,
            "float a = row < M ?"),
    _double("next tile one too far", "ka = k0 + TILE + tx", "ka = k0 + TILE + tx + 1", WRONG),
    _double("barrier left out after the last tile", "__syncthreads(); // next tiles complete",
            "if (k0 + TILE < K) __syncthreads(); // next tiles complete", proof=(
        "k0 and K are the same for all threads, so all or none of a block skip the barrier, and "
        "only in the last turn. After it a thread touches no shared memory; within it the reads "
        "of [stage] and the writes of [stage ^ 1] are to different buffers, and the earlier reads "
        "of [stage ^ 1] are parted from them by the barrier of the turn before (or, in the only "
        "turn, do not exist). So the barrier parted nothing."
    )),
)  # fmt: skip


_async = _of(ASYNC)
_COPY = "cp.async.ca"
_WAIT = 'asm volatile("cp.async.wait_group 1;" ::: "memory");'
_COMPLETE = "__syncthreads(); // tiles complete"

IN_ASYNC = (
    _async("wait one group too weak", "wait_group 1", "wait_group 2", UNFINISHED, _COPY, _BUFFER),
    _async("no wait", _WAIT, "", UNFINISHED, _COPY, _BUFFER),
    _async("wait of some threads only", _WAIT, "if (ty < 4) " + _WAIT, UNFINISHED, _COPY, _BUFFER),
    _async("first commit missing", 'asm volatile("cp.async.commit_group; // first");', "",
           UNFINISHED, _COPY, _BUFFER),
    _async("next commit missing", 'asm volatile("cp.async.commit_group; // next");', "",
           UNFINISHED, _COPY, _BUFFER),
    _async("barrier missing after the wait", _COMPLETE, "", RACE, _COPY, _BUFFER),
    _async("wait after the barrier", f"{_WAIT}\n        {_COMPLETE}",
           f"__syncthreads();\n        {_WAIT}", RACE, _COPY, _BUFFER),
    _async("last barrier dropped", "__syncthreads(); // tiles used up", "", (*RACE, *UNFINISHED),
           _COPY, _BUFFER),
    _async("copies into the stage in use", "other = stage ^ 1", "other = stage",
           (*RACE, *UNFINISHED), _COPY, _BUFFER),
    _async("copies outside the matrix, too", "bytes = inside ? 4 : 0;",
           "bytes = 4;\n    from = &X[(size_t)row * cols + col];", OUTSIDE, _COPY),
    _async("copies of 8 bytes from odd places", "[%1], 4, %2", "[%1], 8, %2", ODD),
    _async("tile of A shifted by one", "A, M, K, row, tx)", "A, M, K, row, tx + 1)", WRONG),
)  # fmt: skip


_warp = _of(WARP)
_HALVE = "part[warp][lane] += part[warp][lane + step]"

IN_WARP = (
    _warp("first __syncwarp missing", "__syncwarp(); // sums there", "", RACE,
          "part[warp][lane] = sum", _HALVE),
    _warp("__syncwarp of the loop missing", "__syncwarp(); // halved", "", RACE, _HALVE),
    _warp("__syncwarp of half of the lanes", "__syncwarp(); // halved", "__syncwarp(0xffff);",
          ("warp-mask",)),
    _warp("all lanes add", "if (lane < step)", "", (*RACE, *OUTSIDE), _HALVE),
    _warp("first step over the next warp", "step = 16", "step = 32", (*RACE, *OUTSIDE), _HALVE),
    _warp("part too small", "part[WARPS][32]", "part[WARPS][31]", (*BOTH_WRITE, *OUTSIDE),
          "part[warp][lane] = sum"),
    _warp("all lanes store", "if (lane == 0 && row < M)", "if (row < M)", (*RACE, *BOTH_WRITE),
          "*c = beta", beta=0.5),
    _warp("no edge check on the store", "lane == 0 && row < M", "lane == 0", OUTSIDE, "*c = beta"),
)  # fmt: skip


_split = _of(SPLIT)
_ATOMIC = "atomicAdd(&C[(size_t)row * N + col], alpha * sum);"

IN_SPLIT = (
    _split("no atomic", _ATOMIC, "C[(size_t)row * N + col] += alpha * sum;",
           (*TWO_BLOCKS, "cross-block-read")),
    _split("first slice stores", _ATOMIC,
           f"if (blockIdx.z == 0)\n            C[(size_t)row * N + col] = alpha * sum;\n"
           f"        else\n            {_ATOMIC}", TWO_BLOCKS,
           "C[(size_t)row * N + col] = alpha", _ATOMIC),
    _split("three slices, rounded in any order", "two layers", "three layers",
           ("order-dependent",), _ATOMIC, slices=3),
    _split("no edge check on columns", "row < M && col < N", "row < M", OUTSIDE, "sum += A["),
    _split("last slice past K", "begin + part < K ? begin + part : K", "begin + part", OUTSIDE,
           "sum += A[", shape=(19, 21, 23)),
)  # fmt: skip

IN_BOOK = (
    *IN_NAIVE, *IN_TILED, *IN_BANKS, *IN_COLUMN, *IN_FOUR_LOADS, *IN_SQUARE, *IN_LARGE_SQUARE,
    *IN_WARP_TILE, *IN_PREFETCH, *IN_BUFFERS,
)  # fmt: skip
MUTANTS = (*IN_BOOK, *IN_VECTOR, *IN_DOUBLE, *IN_ASYNC, *IN_WARP, *IN_SPLIT)
