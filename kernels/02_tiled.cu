// Step 2: shared-memory tiles. A block computes a TILE x TILE tile of C. It
// walks along K one tile at a time: all threads load a tile of A and a tile of
// B into shared memory, wait, and each thread then takes its row of As and its
// column of Bs from there. Each element fetched from global memory is used TILE
// times.
//
//                            col
//              B        +---+-:-+---+  For each tile along K, thread (x, y)
//            [K][N]     |   | : |   |    fetches one element of A and one of B
//                       +---+-:-+---+    (neighbouring x, neighbouring
//                    k0 |   |Bs |   |    addresses);
//                       +---+-:-+---+    waits at a barrier until all are done
//         A      k0           :          with the tiles before; puts its two
//      +---+---+---+    +---+-:-+---+    elements into As and Bs; waits until
//  row |...|As |...|    |...|.o |   |    the tiles are complete;
//      +---+---+---+    +---+---+---+    adds row y of As times column x of Bs
//         [M][K]          C [M][N]       to its sums.
//
// Beyond K it puts 0, which adds nothing. Beyond the last row of A or column of
// B it reads the last one again: nobody stores what comes of that. No thread
// leaves early, so all reach every barrier.
//
// LAYOUT=1 keeps Bs transposed, [col][k], so that a warp reads and writes it at
// stride TILE: with TILE=32, 32 words in one bank. Step 2 of "How to optimize
// SGEMM on NVIDIA GPUs" does this to its As; there the matrices are
// column-major, so that As and Bs change places.
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
    tiled(int M, int N, int K, float alpha, const float* A, const float* B,
          float beta, float* C) {
    // Blocks start in the order of x, then y, then z. Here z counts strips that
    // are gridDim.x tiles wide, so that blocks that run together lie close
    // together and find more of each other's rows and columns in L2. Where
    // grid.y ends, at 65535, z goes on below.
    const unsigned strips = (N - 1) / (gridDim.x * TILE) + 1;
    const unsigned block_x = blockIdx.z % strips * gridDim.x + blockIdx.x;
    const unsigned block_y = blockIdx.z / strips * gridDim.y + blockIdx.y;
    const unsigned row = block_y * TILE + threadIdx.y;
    const unsigned col = block_x * TILE + threadIdx.x;

    __shared__ float As[TILE][TILE];  // [BM][BK]
    __shared__ float Bs[TILE * TILE]; // [BK][BN], or [BN][BK] with LAYOUT=1

    // What this thread fetches next
    const float* a = &A[(size_t)min(row, M - 1) * K + threadIdx.x];
    const float* b = &B[(size_t)threadIdx.y * N + min(col, N - 1)];

    float sums[ACCUMULATORS] = {};
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        const float a_next = k0 + threadIdx.x < K ? *a : 0.0f;
        const float b_next = k0 + threadIdx.y < K ? *b : 0.0f;
        a += TILE;
        b += (size_t)TILE * N;

        __syncthreads();
        As[threadIdx.y][threadIdx.x] = a_next;
        Bs[threadIdx.y * BS_K + threadIdx.x * BS_N] = b_next;
        __syncthreads();

#pragma unroll
        for (int k = 0; k < TILE; ++k)
            sums[k % ACCUMULATORS] +=
                As[threadIdx.y][k] * Bs[k * BS_K + threadIdx.x * BS_N];
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
