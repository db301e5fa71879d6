// Step 6: 128-bit loads and stores. A thread fetches four neighbours of a row
// with one instruction, and puts those of B into Bs with one. The tiles and the
// arithmetic are those of step 5.
//
//                four at a time
//     B tile  |-------|-------|--    thread 0, 1, 2 ..: 16 bytes each
//     A tile  |-------|-------|--    the four of A go to four rows of As, which
//                                    is transposed, so they are put one by one
//
// A 128-bit load needs an address that 16 divides. Where rows of A or B are no
// multiple of four floats long, or the block reaches beyond a matrix, the same
// thread fetches the same four elements one by one and checks each.
//
// C = alpha * A * B + beta * C, row-major, any M, N, K >= 0. With beta = 0, C
// is never read.

#ifndef TILE
#define TILE 64 // rows and columns of a block's tile of C
#endif
#ifndef BK
#define BK 16 // how far the tiles of A and B reach along K
#endif
#ifndef TM
#define TM 16 // rows of C that a thread computes
#endif

static_assert(TILE % 32 == 0, "a row of the tile is whole warps");
static_assert(TM >= 1 && TILE % TM == 0 && TILE * (TILE / TM) <= 1024,
              "a block has TILE * TILE / TM threads, at most 1024");
static_assert(BK % 4 == 0 && BK * TM % (4 * TILE) == 0,
              "all threads fetch equally many times four elements");

constexpr int BM = TILE, BN = TILE;
constexpr int PAD = 4;
constexpr int THREADS = BM / TM * BN;
constexpr int A_LOADS = BM * BK / 4 / THREADS;
constexpr int B_LOADS = BK * BN / 4 / THREADS;

// This thread's share of a tile with COLS columns, four neighbours at a time.
// The tile begins at `tile`; from there the matrix has `rows` rows and `cols`
// columns left, and its rows lie `stride` apart. Outside it is 0. `fast`: the
// tile lies inside, and 16 divides the address of every four.
template <int COLS, int LOADS>
__device__ void fetch(float4 (&next)[LOADS], const float* tile, int stride,
                      int rows, int cols, bool fast, int thread) {
    if (fast) {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int i = 4 * (j * THREADS + thread);
            const int r = i / COLS, c = i % COLS;
            next[j] = *(const float4*)&tile[(size_t)r * stride + c];
        }
    } else {
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int i = 4 * (j * THREADS + thread);
            const int r = i / COLS, c = i % COLS;
            const float* four = &tile[(size_t)r * stride + c];
            next[j].x = r < rows && c + 0 < cols ? four[0] : 0.0f;
            next[j].y = r < rows && c + 1 < cols ? four[1] : 0.0f;
            next[j].z = r < rows && c + 2 < cols ? four[2] : 0.0f;
            next[j].w = r < rows && c + 3 < cols ? four[3] : 0.0f;
        }
    }
}

// Puts the shares into the tiles in shared memory.
__device__ void put(float (&As)[BK][BM + PAD], float (&Bs)[BK][BN],
                    const float4 (&a_next)[A_LOADS],
                    const float4 (&b_next)[B_LOADS], int thread) {
#pragma unroll
    for (int j = 0; j < A_LOADS; ++j) {
        const int i = 4 * (j * THREADS + thread);
        As[i % BK + 0][i / BK] = a_next[j].x;
        As[i % BK + 1][i / BK] = a_next[j].y;
        As[i % BK + 2][i / BK] = a_next[j].z;
        As[i % BK + 3][i / BK] = a_next[j].w;
    }
#pragma unroll
    for (int j = 0; j < B_LOADS; ++j) {
        const int i = 4 * (j * THREADS + thread);
        *(float4*)&Bs[i / BN][i % BN] = b_next[j];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    vectorized(int M, int N, int K, float alpha, const float* A, const float* B,
               float beta, float* C) {
    // grid.y ends at 65535; z goes on
    const unsigned block_y = blockIdx.z * gridDim.y + blockIdx.y;
    const unsigned row0 = block_y * BM;
    const unsigned col0 = blockIdx.x * BN;
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int thread = ty * BN + tx;

    const bool aligned = (K | N) % 4 == 0 && ((size_t)A | (size_t)B) % 16 == 0;
    const bool inside = row0 + BM <= M && col0 + BN <= N;

    __shared__ alignas(16) float As[BK][BM + PAD]; // [BK][BM], transposed
    __shared__ alignas(16) float Bs[BK][BN];       // [BK][BN]

    const float* A_tile = &A[(size_t)row0 * K]; // the tiles that come next
    const float* B_tile = &B[col0];
    float4 a_next[A_LOADS], b_next[B_LOADS];

    float sums[TM] = {};
    for (int left = K; left > 0; left -= BK) {
        fetch<BK>(a_next, A_tile, K, M - row0, left,
                  aligned && inside && left >= BK, thread);
        fetch<BN>(b_next, B_tile, N, left, N - col0,
                  aligned && inside && left >= BK, thread);
        A_tile += BK;
        B_tile += (size_t)BK * N;

        __syncthreads();
        put(As, Bs, a_next, b_next, thread);
        __syncthreads();

#pragma unroll
        for (int k = 0; k < BK; ++k) {
            const float b = Bs[k][tx];
#pragma unroll
            for (int m = 0; m < TM; ++m)
                sums[m] += As[k][ty * TM + m] * b;
        }
    }

#pragma unroll
    for (int m = 0; m < TM; ++m) {
        const unsigned row = row0 + ty * TM + m;
        const unsigned col = col0 + tx;
        if (row < M && col < N) {
            float* c = &C[(size_t)row * N + col]; // C: [M][N]
            *c = beta == 0.0f ? alpha * sums[m] : alpha * sums[m] + beta * *c;
        }
    }
}
