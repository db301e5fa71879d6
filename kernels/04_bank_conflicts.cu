// Step 4: no bank conflicts. Shared memory has 32 banks; words 32 apart share
// one. A warp that reads a column of a tile 32 words wide meets one bank 32
// times. Two cures:
//
//   LAYOUT=0 packs the tile as it lies in B, [k][col]: the warp reads a row;
//   PAD adds words to the end of every row of LAYOUT=1, so that neighbours in
//   a column lie in different banks:
//
//      k in bank   0  1  2 .. 31      k in bank   0  1  2 .. 31
//      column 0    0  1  2 .. 31      column 0    0  1  2 .. 31
//      column 1    0  1  2 .. 31      column 1   31  0  1 .. 30
//      column 2    0  1  2 .. 31      column 2   30 31  0 .. 29
//              PAD=0                          PAD=1
//
// With PAD=1 the rows no longer start at multiples of 16 bytes, so that four
// neighbours can't be read at once; with PAD=4 they do.
//
// C = alpha * A * B + beta * C, row-major, any M, N, K >= 0. With beta = 0, C
// is never read.

#ifndef TILE
#define TILE 32 // rows and columns of a tile, and of the block of threads
#endif
#ifndef LAYOUT
#define LAYOUT 1 // Bs in shared memory: 0: [k][col]; 1: [col][k]
#endif
#ifndef PAD
#define PAD 1 // words that fill up every row of Bs
#endif

static_assert(TILE >= 1 && TILE * TILE <= 1024,
              "a block has TILE x TILE threads, at most 1024");
static_assert(LAYOUT == 0 || LAYOUT == 1, "LAYOUT is 0 or 1");
static_assert(PAD >= 0, "PAD is no negative number");

constexpr int THREADS = TILE * TILE;
constexpr int RESIDENT = 2048; // threads of an SM that registers should suffice
                               // for; where it holds fewer, this has no effect
// Distance in Bs between neighbours along k, and along the columns.
constexpr int BS_K = LAYOUT == 0 ? TILE + PAD : 1;
constexpr int BS_N = LAYOUT == 0 ? 1 : TILE + PAD;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    bank_conflicts(int M, int N, int K, float alpha, const float* A,
                   const float* B, float beta, float* C) {
    // z counts strips of gridDim.x tiles; it goes on where grid.y ends
    const unsigned strips = (N - 1) / (gridDim.x * TILE) + 1;
    const unsigned block_x = blockIdx.z % strips * gridDim.x + blockIdx.x;
    const unsigned block_y = blockIdx.z / strips * gridDim.y + blockIdx.y;
    const unsigned tx = threadIdx.x;
    const unsigned ty = threadIdx.y;
    const unsigned row = block_y * TILE + ty;
    const unsigned col = block_x * TILE + tx;

    __shared__ float As[TILE][TILE];          // [BM][BK]
    __shared__ float Bs[TILE * (TILE + PAD)]; // [BK][BN], or [BN][BK]

    // What this thread fetches next
    const float* a = &A[(size_t)min(row, M - 1) * K + tx];
    const float* b = &B[(size_t)ty * N + min(col, N - 1)];

    float sum = 0.0f;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        const float a_next = k0 + tx < K ? *a : 0.0f;
        const float b_next = k0 + ty < K ? *b : 0.0f;
        a += TILE;
        b += (size_t)TILE * N;

        __syncthreads();
        As[ty][tx] = a_next;
        Bs[ty * BS_K + tx * BS_N] = b_next;
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[k * BS_K + tx * BS_N];
    }

    if (row < M && col < N) {
        float* c = &C[(size_t)row * N + col]; // C: [M][N]
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
