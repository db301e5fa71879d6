// Step 8: a larger thread tile, in fours. With 8 x 8 a thread takes 16 loads
// for 64 multiply-adds, twice as many for each load as with 4 x 4.
//
//            4 tx        64 + 4 tx       Eight neighbouring columns would put
//      Bs  +--||||--------||||---+       threads of a warp 8 words apart: their
//    [BK]  +--||||--------||||---+       128-bit loads would meet half of the
//          |  oooo        oooo   | 4 ty  banks, each twice. So a thread's
//     As   |  oooo        oooo   |       columns are two fours, and each four
//          |                     |       lies beside that of the next thread.
//          |  oooo        oooo   | 64 +  Its rows likewise.
//          |  oooo        oooo   | 4 ty
//          +---------------------+
//           C [BM][BN]
//
// C = alpha * A * B + beta * C, row-major, any M, N, K >= 0. With beta = 0, C
// is never read.

#ifndef TILE
#define TILE 128 // rows and columns of a block's tile of C
#endif
#ifndef BK
#define BK 8 // how far the tiles of A and B reach along K
#endif
#ifndef TM
#define TM 8 // rows of C that a thread computes, and columns: TN = TM
#endif

static_assert(TM % 4 == 0, "a thread takes its rows and columns in fours");
static_assert(TILE % TM == 0 && TILE / TM * (TILE / TM) <= 1024,
              "a block has (TILE / TM) * (TILE / TM) threads, at most 1024");
static_assert(BK % 4 == 0 && TILE * BK % (4 * (TILE / TM) * (TILE / TM)) == 0,
              "all threads fetch equally many times four elements");

constexpr int BM = TILE, BN = TILE, TN = TM;
constexpr int PAD = 4;
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int RESIDENT = TM < 8 ? 1024 : 512; // threads of an SM that registers
                                              // should suffice for: at most 64,
                                              // or 128 registers a thread
constexpr int MIN_BLOCKS = RESIDENT > THREADS ? RESIDENT / THREADS : 1;
constexpr int A_LOADS = BM * BK / 4 / THREADS;
constexpr int B_LOADS = BK * BN / 4 / THREADS;

// Row m and column n of a thread's tile, as those of the block's tile: fours of
// neighbours, and the fours of all threads side by side.
__device__ int row_of(int ty, int m) {
    return m / 4 * (BM / TM * 4) + ty * 4 + m % 4;
}
__device__ int col_of(int tx, int n) {
    return n / 4 * (BN / TN * 4) + tx * 4 + n % 4;
}

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

// Four neighbours of a row of C, which has `left` columns from the first on.
// `fast`: it has all four, and 16 divides their address.
__device__ void store(float* c, const float* sums, float alpha, float beta,
                      int left, bool fast) {
    if (fast) {
        float4 four = make_float4(alpha * sums[0], alpha * sums[1],
                                  alpha * sums[2], alpha * sums[3]);
        if (beta != 0.0f) {
            const float4 old = *(const float4*)c;
            four.x += beta * old.x;
            four.y += beta * old.y;
            four.z += beta * old.z;
            four.w += beta * old.w;
        }
        *(float4*)c = four;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i < left)
                c[i] = beta == 0.0f ? alpha * sums[i]
                                    : alpha * sums[i] + beta * c[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    thread_tile_8x8(int M, int N, int K, float alpha, const float* A,
                    const float* B, float beta, float* C) {
    // grid.y ends at 65535; z goes on
    const unsigned block_y = blockIdx.z * gridDim.y + blockIdx.y;
    const unsigned row0 = block_y * BM;
    const unsigned col0 = blockIdx.x * BN;
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int thread = ty * (BN / TN) + tx;

    const bool aligned =
        (K | N) % 4 == 0 && ((size_t)A | (size_t)B | (size_t)C) % 16 == 0;
    const bool inside = row0 + BM <= M && col0 + BN <= N;

    __shared__ alignas(16) float As[BK][BM + PAD]; // [BK][BM], transposed
    __shared__ alignas(16) float Bs[BK][BN];       // [BK][BN]

    const float* A_tile = &A[(size_t)row0 * K]; // the tiles that come next
    const float* B_tile = &B[col0];
    float4 a_next[A_LOADS], b_next[B_LOADS];

    float sums[TM][TN] = {};
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
            float a[TM], b[TN];
#pragma unroll
            for (int m = 0; m < TM; ++m)
                a[m] = As[k][row_of(ty, m)];
#pragma unroll
            for (int n = 0; n < TN; ++n)
                b[n] = Bs[k][col_of(tx, n)];
            // Down one column and up the next: every multiply-add shares a
            // factor with the one before, which need not be read again.
#pragma unroll
            for (int n = 0; n < TN; ++n)
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    const int m = n % 2 ? TM - 1 - i : i;
                    sums[m][n] += a[m] * b[n];
                }
        }
    }

#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < TN; n += 4) {
            const unsigned row = row0 + row_of(ty, m);
            const unsigned col = col0 + col_of(tx, n);
            if (row < M)
                store(&C[(size_t)row * N + col], &sums[m][n], alpha, beta,
                      N - col, aligned && inside); // C: [M][N]
        }
}
