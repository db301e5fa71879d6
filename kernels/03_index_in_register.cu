// Step 3: the index in a register. Step 2 writes threadIdx.x and threadIdx.y
// wherever it needs them; here they are read into two variables, tx and ty, and
// nothing else differs. Step 3 of "How to optimize SGEMM on NVIDIA GPUs" does
// the same.
//
// LAYOUT=1 keeps Bs transposed, [col][k], as in step 2.
//
// C = alpha * A * B + beta * C, row-major, any M, N, K >= 0. With beta = 0, C
// is never read.

#ifndef TILE
#define TILE 32 // rows and columns of a tile, and of the block of threads
#endif
#ifndef ACCUMULATORS
#define ACCUMULATORS 1 // independent partial sums of a thread
#endif
#ifndef LAYOUT
#define LAYOUT 0 // Bs in shared memory: 0: [k][col]; 1: [col][k]
#endif

static_assert(TILE >= 1 && TILE * TILE <= 1024,
              "a block has TILE x TILE threads, at most 1024");
static_assert(ACCUMULATORS >= 1 && TILE % ACCUMULATORS == 0,
              "ACCUMULATORS divides TILE");
static_assert(LAYOUT == 0 || LAYOUT == 1, "LAYOUT is 0 or 1");

constexpr int THREADS = TILE * TILE;
constexpr int RESIDENT = 2048; // threads of an SM that registers should suffice
                               // for; where it holds fewer, this has no effect
// Distance in Bs between neighbours along k, and along the columns.
constexpr int BS_K = LAYOUT == 0 ? TILE : 1;
constexpr int BS_N = LAYOUT == 0 ? 1 : TILE;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    index_in_register(int M, int N, int K, float alpha, const float* A,
                      const float* B, float beta, float* C) {
    // z counts strips of gridDim.x tiles; it goes on where grid.y ends
    const unsigned strips = (N - 1) / (gridDim.x * TILE) + 1;
    const unsigned block_x = blockIdx.z % strips * gridDim.x + blockIdx.x;
    const unsigned block_y = blockIdx.z / strips * gridDim.y + blockIdx.y;
    const unsigned tx = threadIdx.x;
    const unsigned ty = threadIdx.y;
    const unsigned row = block_y * TILE + ty;
    const unsigned col = block_x * TILE + tx;

    __shared__ float As[TILE][TILE];  // [BM][BK]
    __shared__ float Bs[TILE * TILE]; // [BK][BN], or [BN][BK] with LAYOUT=1

    // What this thread fetches next
    const float* a = &A[(size_t)min(row, M - 1) * K + tx];
    const float* b = &B[(size_t)ty * N + min(col, N - 1)];

    float sums[ACCUMULATORS] = {};
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
            sums[k % ACCUMULATORS] += As[ty][k] * Bs[k * BS_K + tx * BS_N];
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i)
        sum += sums[i];

    if (row < M && col < N) {
        float* c = &C[(size_t)row * N + col]; // C: [M][N]
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
