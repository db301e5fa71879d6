// Step 5: a thread computes TM elements of C, below each other. For each k it
// takes one element of Bs and TM of As into registers and multiplies: TM + 1
// loads for TM multiply-adds, where one output a thread takes two for one.
//
//             tx                 As is kept transposed, [k][row], so that the
//       Bs  +--:--+              TM elements a thread needs at each k are
//     [BK]  |  :  |              neighbours: a 128-bit load brings four.
//           +--:--+
//     As       :                 A row of As is PAD words longer than the tile,
//   +----+  +--:--+              so that the threads of a warp, which write it
//   |....|  |  o  |  ty * TM     along a column, meet fewer bank conflicts
//   |....|  |  o  |   ..         (step 4).
//   |....|  |  o  |  + TM - 1
//   +----+  +-----+              A block has fewer threads than its tiles have
//  [BM][BK]  C [BM][BN]          elements: each fetches several.
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
static_assert(BK * TM % TILE == 0, "all threads fetch equally many elements");

constexpr int BM = TILE, BN = TILE;
constexpr int PAD = 4;
constexpr int THREADS = BM / TM * BN;
constexpr int A_LOADS = BM * BK / THREADS;
constexpr int B_LOADS = BK * BN / THREADS;

// This thread's share of a tile with COLS columns. The tile begins at `tile`;
// from there the matrix has `rows` rows and `cols` columns left, and its rows
// lie `stride` apart. Outside it is 0.
template <int COLS, int LOADS>
__device__ void fetch(float (&next)[LOADS], const float* tile, int stride,
                      int rows, int cols, int thread) {
#pragma unroll
    for (int j = 0; j < LOADS; ++j) {
        const int i = j * THREADS + thread; // neighbours in a warp
        const int r = i / COLS, c = i % COLS;
        next[j] = r < rows && c < cols ? tile[(size_t)r * stride + c] : 0.0f;
    }
}

// Puts the shares into the tiles in shared memory.
__device__ void put(float (&As)[BK][BM + PAD], float (&Bs)[BK][BN],
                    const float (&a_next)[A_LOADS],
                    const float (&b_next)[B_LOADS], int thread) {
#pragma unroll
    for (int j = 0; j < A_LOADS; ++j) {
        const int i = j * THREADS + thread;
        As[i % BK][i / BK] = a_next[j];
    }
#pragma unroll
    for (int j = 0; j < B_LOADS; ++j) {
        const int i = j * THREADS + thread;
        Bs[i / BN][i % BN] = b_next[j];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    thread_tile_1d(int M, int N, int K, float alpha, const float* A,
                   const float* B, float beta, float* C) {
    // grid.y ends at 65535; z goes on
    const unsigned block_y = blockIdx.z * gridDim.y + blockIdx.y;
    const unsigned row0 = block_y * BM;
    const unsigned col0 = blockIdx.x * BN;
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int thread = ty * BN + tx;

    __shared__ alignas(16) float As[BK][BM + PAD]; // [BK][BM], transposed
    __shared__ alignas(16) float Bs[BK][BN];       // [BK][BN]

    const float* A_tile = &A[(size_t)row0 * K]; // the tiles that come next
    const float* B_tile = &B[col0];
    float a_next[A_LOADS], b_next[B_LOADS];

    float sums[TM] = {};
    for (int left = K; left > 0; left -= BK) {
        fetch<BK>(a_next, A_tile, K, M - row0, left, thread);
        fetch<BN>(b_next, B_tile, N, left, N - col0, thread);
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
