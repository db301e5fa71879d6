// What an SM does in a cycle and how long it waits: loops of one kind of
// instruction, timed by the SM's own clock. Every kernel runs its loop n times;
// thread 0 of a block notes the block's cycles and nanoseconds in `spent`.
// WORDS: 4-byte words that a lane loads or stores at a time, 1, 2 or 4.

#pragma nv_diag_suppress 550 // what is loaded is not always used

#ifndef WORDS
#define WORDS 4
#endif

#if WORDS == 1
#define LOAD(how, v, at)                                                       \
    asm volatile(how ".u32 %0, [%1];" : "=r"((v)[0]) : "l"(at))
#define STORE(how, at, v)                                                      \
    asm volatile(how ".u32 [%0], %1;" ::"l"(at), "r"((v)[0]))
#elif WORDS == 2
#define LOAD(how, v, at)                                                       \
    asm volatile(how ".v2.u32 {%0, %1}, [%2];"                                 \
                 : "=r"((v)[0]), "=r"((v)[1])                                  \
                 : "l"(at))
#define STORE(how, at, v)                                                      \
    asm volatile(how ".v2.u32 [%0], {%1, %2};" ::"l"(at), "r"((v)[0]),         \
                 "r"((v)[1]))
#else
#define LOAD(how, v, at)                                                       \
    asm volatile(how ".v4.u32 {%0, %1, %2, %3}, [%4];"                         \
                 : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3])      \
                 : "l"(at))
#define STORE(how, at, v)                                                      \
    asm volatile(how ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"((v)[0]), \
                 "r"((v)[1]), "r"((v)[2]), "r"((v)[3]))
#endif

__device__ long long nanoseconds() {
    long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

struct Stopwatch {
    long long cycles, ns;

    __device__ Stopwatch() {
        __syncthreads();
        ns = nanoseconds();
        cycles = clock64();
    }

    __device__ void note(long long* spent) { // [blocks][2]
        __syncthreads();
        long long stop = clock64();
        if (threadIdx.x == 0) {
            spent[2 * blockIdx.x] = stop - cycles;
            spent[2 * blockIdx.x + 1] = nanoseconds() - ns;
        }
    }
};

__device__ unsigned any(const unsigned* v) {
    unsigned all = 0;
    for (int word = 0; word < WORDS; ++word)
        all ^= v[word];
    return all;
}

// ---------------------------------------------------------------- arithmetic

// One register and a constant: no two operands compete for a register bank.
__device__ void step_on(float& s) {
    s = fmaf(s, -0.001f, s);
}

template <int CHAINS>
__device__ void ffma(int n, long long* spent, unsigned* out) {
    float s[CHAINS];
    for (int c = 0; c < CHAINS; ++c)
        s[c] = threadIdx.x + c;
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 256; ++j)
            step_on(s[j % CHAINS]);
    }
    watch.note(spent);
    float sum = 0;
    for (int c = 0; c < CHAINS; ++c)
        sum += s[c];
    if (sum == 0.5f)
        *out = 1; // never: but the compiler cannot know
}

KERNEL ffma_independent(int n, long long* spent, unsigned* out) {
    ffma<16>(n, spent, out);
}

KERNEL ffma_dependent(int n, long long* spent, unsigned* out) {
    ffma<1>(n, spent, out);
}

// -------------------------------------------------------------- shared memory

// `lanes`: the byte at which each lane of a warp reads or writes.

KERNEL shared_load(int n, long long* spent, unsigned* out, const int* lanes) {
    __shared__ uint4 s[256];
    s[threadIdx.x % 256] = make_uint4(0, 0, 0, 0);
    size_t at = __cvta_generic_to_shared(s) + lanes[threadIdx.x % 32];
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            unsigned v[WORDS];
            LOAD("ld.volatile.shared", v, at);
        }
    }
    watch.note(spent);
}

KERNEL shared_store(int n, long long* spent, unsigned* out, const int* lanes) {
    __shared__ uint4 s[256];
    size_t at = __cvta_generic_to_shared(s) + lanes[threadIdx.x % 32];
    unsigned v[4] = {threadIdx.x, 1, 2, 3};
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 32; ++j)
            STORE("st.volatile.shared", at, v);
    }
    watch.note(spent);
}

// 16 multiply-adds for each load: do the two get in each other's way?
KERNEL shared_load_ffma(int n, long long* spent, unsigned* out,
                        const int* lanes) {
    __shared__ uint4 s[256];
    s[threadIdx.x % 256] = make_uint4(0, 0, 0, 0);
    size_t at = __cvta_generic_to_shared(s) + lanes[threadIdx.x % 32];
    float sums[8];
    for (int c = 0; c < 8; ++c)
        sums[c] = threadIdx.x + c;
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            unsigned v[WORDS];
            LOAD("ld.volatile.shared", v, at);
#pragma unroll
            for (int c = 0; c < 16; ++c)
                step_on(sums[c % 8]);
        }
    }
    watch.note(spent);
    float sum = 0;
    for (int c = 0; c < 8; ++c)
        sum += sums[c];
    if (sum == 0.5f)
        *out = 1;
}

KERNEL shared_chase(int n, long long* spent, unsigned* out) {
    __shared__ unsigned s[32];
    unsigned at = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x % 32]);
    s[threadIdx.x % 32] = at; // every lane's word holds its own address
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 64; ++j)
            asm volatile("ld.volatile.shared.u32 %0, [%0];" : "+r"(at));
    }
    watch.note(spent);
    if (at == 1)
        *out = 1;
}

// ------------------------------------------------------------------- barriers

KERNEL barrier(int n, long long* spent, unsigned* out) {
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 64; ++j)
            asm volatile("bar.sync 0;" ::: "memory");
    }
    watch.note(spent);
}

// A value goes from warp to warp: store, barrier, load, and on with what came.
KERNEL handoff(int n, long long* spent, unsigned* out) {
    __shared__ volatile unsigned s[2][1024];
    unsigned v = threadIdx.x, other = (threadIdx.x + 32) % blockDim.x;
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            s[j % 2][threadIdx.x] = v;
            __syncthreads();
            v = s[j % 2][other];
        }
    }
    watch.note(spent);
    if (v == ~0u)
        *out = 1;
}

// -------------------------------------------------------------- global memory

// Hits in L1: 8 places, 4 KiB apart, over and over. step is 0, unknown to the
// compiler: each turn's addresses are new to it.
KERNEL global_load(int n, long long* spent, unsigned* out, const int* lanes,
                   const char* data, int step) {
    const char* at = data + lanes[threadIdx.x % 32];
    unsigned sum = 0;
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
        unsigned v[8][WORDS];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            LOAD("ld.global", v[j], at + 4096 * j);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            sum ^= any(v[j]);
        at += step;
    }
    watch.note(spent);
    if (sum == ~0u)
        *out = sum;
}

// data: addresses that lead from one to the next, in a ring; first n steps that
// are not timed if `warm`.
#define CHASE(name, how)                                                       \
    KERNEL name(int n, long long* spent, unsigned* out, const long long* data, \
                int warm) {                                                    \
        long long at = (long long)data;                                        \
        for (int i = 0; i < n * warm; ++i)                                     \
            asm volatile(how ".u64 %0, [%0];" : "+l"(at));                     \
        Stopwatch watch;                                                       \
        for (int i = 0; i < n; ++i)                                            \
            asm volatile(how ".u64 %0, [%0];" : "+l"(at));                     \
        watch.note(spent);                                                     \
        if (at == 1)                                                           \
            *out = 1;                                                          \
    }
CHASE(chase_l1, "ld.global")
CHASE(chase_l2, "ld.global.cg")

#if WORDS == 4
// Each block reads n chunks of 8 × blockDim.x × 16 bytes, past L1. Block b
// begins at chunk b · spread / blocks and goes on by `step`, round and round.
KERNEL stream(int n, long long* spent, unsigned* out, const uint4* data,
              int chunks, int spread, int step) {
    int chunk = (long long)blockIdx.x * spread / gridDim.x % chunks;
    unsigned sum = 0;
    Stopwatch watch;
    for (int i = 0; i < n; ++i) {
        const uint4* at = data + (size_t)chunk * 8 * blockDim.x + threadIdx.x;
        unsigned v[8][4];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            LOAD("ld.global.cg", v[j], at + j * blockDim.x);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            sum ^= any(v[j]);
        chunk = (chunk + step) % chunks;
    }
    watch.note(spent);
    if (sum == ~0u)
        *out = sum;
}
#endif
