"""Kernels as one meets them, each with a fault that its author's own test lets pass.

None is anybody's code: each is written from the description of a fault that published SGEMMs have
had. `block` and `tile` are the launch's; `faults`: category → a pattern of the audit's evidence;
`passes`: sizes (M, N, K) at which the kernel is right, as its author saw.
"""

from dataclasses import dataclass

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Wild:
    name: str
    code: str
    block: tuple[int, int]
    tile: tuple[int, int, int]
    passes: tuple[Shape, ...]
    faults: dict[str, str]


NO_TAILS = Wild(
    "tiles only, and no check of the tail",
    """
#define T 16
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float sa[T][T], sb[T][T];
    int r = blockIdx.y * T + threadIdx.y, q = blockIdx.x * T + threadIdx.x;
    float s = 0;
    for (int t = 0; t < k / T; ++t) {
        sa[threadIdx.y][threadIdx.x] = a[r * k + t * T + threadIdx.x];
        sb[threadIdx.y][threadIdx.x] = b[(t * T + threadIdx.y) * n + q];
        __syncthreads();
        for (int i = 0; i < T; ++i) s += sa[threadIdx.y][i] * sb[i][threadIdx.x];
        __syncthreads();
    }
    c[r * n + q] = s;
}""",
    (16, 16), (16, 16, 16), ((32, 48, 64), (16, 16, 16)),
    {"bounds": r"c\[", "numbers": "past its end"},
)  # fmt: skip

NAN = Wild(
    "NaN, of which abs(difference) > tolerance is false",
    """
#define T 16
extern "C" __global__ void sgemm(int M, int N, int K, const float* A, const float* B, float* C) {
    __shared__ float As[T][T], Bs[T][T];
    size_t row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K; k += T) {
        if (row < M && k + threadIdx.x < K)
            As[threadIdx.y][threadIdx.x] = A[row * K + k + threadIdx.x];
        if (k + threadIdx.y < K && col < N)
            Bs[threadIdx.y][threadIdx.x] = B[(k + threadIdx.y) * (size_t)N + col];
        __syncthreads();
        for (int i = 0; i < T; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = sum;
}""",
    (16, 16), (16, 16, 16), ((32, 48, 64),),
    {"uninitialised": "As|Bs", "numbers": "is nan and should be"},
)  # fmt: skip

BARRIER = Wild(
    "barriers that only the threads inside reach",
    """
#define T 16
extern "C" __global__ void sgemm(int M, int N, int K, float alpha, const float* A, const float* B,
                                 float beta, float* C) {
    __shared__ float As[T][T], Bs[T][T];
    size_t row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    if (row < M && col < N) {
        float sum = 0;
        for (int k = 0; k < K; k += T) {
            As[threadIdx.y][threadIdx.x] =
                k + threadIdx.x < K ? A[row * K + k + threadIdx.x] : 0;
            Bs[threadIdx.y][threadIdx.x] =
                k + threadIdx.y < K ? B[(k + threadIdx.y) * (size_t)N + col] : 0;
            __syncthreads();
            for (int i = 0; i < T; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
            __syncthreads();
        }
        float* c = &C[row * N + col];
        *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
    }
}""",
    (16, 16), (16, 16, 16), ((32, 48, 64), (16, 32, 7)),
    {"barriers": "__syncthreads"},
)  # fmt: skip

ODD_ROWS = Wild(
    "float4 where rows begin anywhere",
    """
extern "C" __global__ void sgemm(int M, int N, int K, const float* A, const float* B, float* C) {
    size_t row = blockIdx.y * blockDim.y + threadIdx.y;
    size_t col = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= M || col >= N) return;
    float4 sum = {0, 0, 0, 0};
    for (int k = 0; k < K; ++k) {
        float4 b = *reinterpret_cast<const float4*>(&B[k * (size_t)N + col]);
        float a = A[row * K + k];
        sum.x += a * b.x, sum.y += a * b.y, sum.z += a * b.z, sum.w += a * b.w;
    }
    *reinterpret_cast<float4*>(&C[row * N + col]) = sum;
}""",
    (8, 32), (32, 32, 1), ((33, 64, 65), (5, 4, 3)),
    {"bounds": "multiple of 16 bytes|past its end"},
)  # fmt: skip

LAST_BUFFER = Wild(
    "the last tile taken from the wrong buffer where their number is odd",
    """
#define T 16
extern "C" __global__ void sgemm(int M, int N, int K, const float* A, const float* B, float* C) {
    __shared__ float As[2][T][T], Bs[2][T][T];
    size_t row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    int x = threadIdx.x, y = threadIdx.y, tiles = (K + T - 1) / T;
    auto fetch = [&](int t) {
        As[t % 2][y][x] = row < M && t * T + x < K ? A[row * K + t * T + x] : 0;
        Bs[t % 2][y][x] = t * T + y < K && col < N ? B[(t * T + y) * (size_t)N + col] : 0;
    };
    float sum = 0;
    fetch(0);
    fetch(1);
    __syncthreads();
    for (int t = 0; t + 1 < tiles; ++t) {
        for (int i = 0; i < T; ++i) sum += As[t % 2][y][i] * Bs[t % 2][i][x];
        __syncthreads();
        if (t + 2 < tiles) fetch(t + 2);
        __syncthreads();
    }
    if (tiles)
        for (int i = 0; i < T; ++i) sum += As[1][y][i] * Bs[1][i][x];
    if (row < M && col < N) C[row * N + col] = sum;
}""",
    (16, 16), (16, 16, 16), ((32, 48, 64), (7, 9, 20)),
    {"numbers": r"C\["},
)  # fmt: skip

SQUARE = Wild(
    "the leading dimension of another matrix, the same in a square one",
    """
extern "C" __global__ void sgemm(int M, int N, int K, const float* A, const float* B, float* C) {
    size_t row = blockIdx.y * blockDim.y + threadIdx.y;
    size_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * N + k] * B[k * (size_t)N + col];
    C[row * N + col] = sum;
}""",
    (32, 8), (8, 32, 1), ((40, 40, 40), (33, 33, 33)),
    {"bounds": "past its end", "numbers": r"C\[|past its end"},
)  # fmt: skip

WILD = (NO_TAILS, NAN, BARRIER, ODD_ROWS, LAST_BUFFER, SQUARE)
