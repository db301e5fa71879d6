// Step 1: naive. One thread computes one element of C: it walks along a row of
// A and down a column of B, multiplies pairwise and adds up. Threads share
// nothing.
//
//                      col
//              B     +--:----+  A warp is 32 consecutive threads, x fastest.
//            [K][N]  |  :    |
//                    |  :    |  COALESCED=1: x walks along the columns of C.
//                    +--:----+  At each k a full warp reads 32 neighbours of B
//         A             :       and one element of A.
//      +------+      +--:----+  COALESCED=0: x walks down the rows of C. At
//  row |......|      |..o    |  each k a full warp reads one element of B and
//      +------+      +-------+  32 of A that lie K floats apart.
//      [M][K]     C  [M][N]
//                               The sums are the same; only the memory
//                               traffic differs.
//
// C = alpha * A * B + beta * C, row-major, any M, N, K >= 0. With beta = 0, C
// is never read.

#ifndef COALESCED
#define COALESCED 1 // 1: x walks along the columns of C; 0: down its rows
#endif
#ifndef BLOCK_X
#define BLOCK_X 32 // threads of a block along x
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 32 // threads of a block along y
#endif

static_assert(COALESCED == 0 || COALESCED == 1, "COALESCED is 0 or 1");
static_assert(BLOCK_X >= 1 && BLOCK_Y >= 1, "a block has at least one thread");
static_assert(BLOCK_X * BLOCK_Y <= 1024, "a block has at most 1024 threads");

constexpr int THREADS = BLOCK_X * BLOCK_Y;

extern "C" __global__ void __launch_bounds__(THREADS)
    naive(int M, int N, int K, float alpha, const float* A, const float* B,
          float beta, float* C) {
    // grid.y ends at 65535; z goes on
    const unsigned block_y = blockIdx.z * gridDim.y + blockIdx.y;
    const unsigned x = blockIdx.x * BLOCK_X + threadIdx.x;
    const unsigned y = block_y * BLOCK_Y + threadIdx.y;
    const unsigned row = COALESCED ? y : x;
    const unsigned col = COALESCED ? x : y;

    if (row < M && col < N) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) // A: [M][K], B: [K][N]
            sum += A[(size_t)row * K + k] * B[(size_t)k * N + col];

        float* c = &C[(size_t)row * N + col]; // C: [M][N]
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
