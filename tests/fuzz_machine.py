# ruff: noqa: E501
"""Differential fuzzing of the PTX machine: random CUDA C++ kernels against the same text under g++.

One source, two compilers. Under NVRTC (-fmad=false) the kernel becomes PTX for the machine; under
g++ (-O1 -ffp-contract=off) every thread is a fiber, and barriers and shuffles switch between them.
Every result must be bitwise equal, whatever the batch size; NaNs are equal to one another.

    python tests/fuzz_machine.py [--first SEED] [--count N] [--arch compute_75] [--reduce]
    python tests/fuzz_machine.py --show SEED

A seed is a program: `Program(seed)` is the same everywhere.
"""

import argparse
import ctypes
import hashlib
import os
import random
import subprocess
import sys
import tempfile

import numpy as np

# --- what both compilers see before a kernel -----------------------------------------------------

PRELUDE = r"""
typedef signed char i8; typedef unsigned char u8; typedef unsigned short u16; typedef unsigned u32;
typedef long long i64; typedef unsigned long long u64;
#ifdef __CUDACC_RTC__
#define HD static __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void name
#define SHARED(T, n, k) __shared__ T n[k]
#define DYNAMIC(T, n) extern __shared__ __align__(8) T n[]
#define CONST __constant__
#define BAR() __syncthreads()
#define FULL 0xffffffffu
#define shfl(v, l, w) __shfl_sync(FULL, v, l, w)
#define shfl_up(v, l, w) __shfl_up_sync(FULL, v, l, w)
#define shfl_down(v, l, w) __shfl_down_sync(FULL, v, l, w)
#define shfl_xor(v, l, w) __shfl_xor_sync(FULL, v, l, w)
#define ballot(p) __ballot_sync(FULL, p)
#define any(p) __any_sync(FULL, p)
#define all(p) __all_sync(FULL, p)
HD u32 fbits(float x) { return x != x ? 0x7fffffffu : __float_as_uint(x); }
HD u64 dbits(double x) { return x != x ? 0x7fffffffffffffffull : (u64)__double_as_longlong(x); }
HD float bitsf(u32 x) { return __uint_as_float(x); }
HD double bitsd(u64 x) { return __longlong_as_double((i64)x); }
#define F2I(name, T, F) HD T name##_rz(F x) { return __##name##_rz(x); } \
  HD T name##_rn(F x) { return __##name##_rn(x); } HD T name##_rd(F x) { return __##name##_rd(x); } \
  HD T name##_ru(F x) { return __##name##_ru(x); }
#else
#include <cmath>
#include <cstring>
#include <cstdint>
#define HD static inline
#define KERNEL(name) extern "C" void body_##name
#define SHARED(T, n, k) static T n[k]
#define DYNAMIC(T, n) T* n = (T*)dynamic_memory
#define CONST static const
#define __restrict__ __restrict
struct dim3_ { u32 x, y, z; };
static dim3_ threadIdx, blockIdx, blockDim, gridDim;
alignas(16) static char dynamic_memory[49152];
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) double2 { double x, y; };
HD int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
HD float2 make_float2(float x, float y) { return {x, y}; }
HD double2 make_double2(double x, double y) { return {x, y}; }
extern void BAR(); extern u64 exchange(u64 mine, int from); extern int lane_id();
template <class T> T swap(T v, int from) {
  u64 raw = 0; memcpy(&raw, &v, sizeof v); raw = exchange(raw, from); memcpy(&v, &raw, sizeof v);
  return v; }
template <class T> T shfl(T v, int l, int w) { int a = lane_id(); return swap(v, (a & ~(w - 1)) | (l & (w - 1))); }
template <class T> T shfl_up(T v, u32 l, int w) { int a = lane_id(); int j = a - (int)l; return swap(v, j < (a & ~(w - 1)) ? a : j); }
template <class T> T shfl_down(T v, u32 l, int w) { int a = lane_id(); int j = a + (int)l; return swap(v, j > (a | (w - 1)) ? a : j); }
template <class T> T shfl_xor(T v, int l, int w) { int a = lane_id(); int j = a ^ l; return swap(v, j > (a | (w - 1)) ? a : j); }
extern u32 ballot(int p);
static inline int any(int p) { return ballot(p) != 0; }
extern int all(int p);
HD u32 fbits(float x) { u32 r; memcpy(&r, &x, 4); return x != x ? 0x7fffffffu : r; }
HD u64 dbits(double x) { u64 r; memcpy(&r, &x, 8); return x != x ? 0x7fffffffffffffffull : r; }
HD float bitsf(u32 x) { float r; memcpy(&r, &x, 4); return r; }
HD double bitsd(u64 x) { double r; memcpy(&r, &x, 8); return r; }
template <class T, class F> T to_int(F x, bool nan_is_zero) {  // x is whole already
  const T high = (T)-1 < 0 ? (T)(((u64)1 << (8 * sizeof(T) - 1)) - 1) : (T)-1;
  const T low = (T)-1 < 0 ? (T)(-high - 1) : 0;
  if (x != x) return nan_is_zero ? 0 : (T)((u64)1 << (8 * sizeof(T) - 1));
  const double edge = std::ldexp(1.0, 8 * (int)sizeof(T) - ((T)-1 < 0));
  if ((double)x >= edge) return high;
  if ((double)x <= ((T)-1 < 0 ? -edge : 0.0)) return low;
  return (T)x; }
#define F2I(name, T, F) HD T name##_rz(F x) { return to_int<T>(std::trunc(x), sizeof(F) == 4 && sizeof(T) == 4); } \
  HD T name##_rn(F x) { return to_int<T>(std::nearbyint(x), sizeof(F) == 4 && sizeof(T) == 4); } \
  HD T name##_rd(F x) { return to_int<T>(std::floor(x), sizeof(F) == 4 && sizeof(T) == 4); } \
  HD T name##_ru(F x) { return to_int<T>(std::ceil(x), sizeof(F) == 4 && sizeof(T) == 4); }
HD u32 __umulhi(u32 a, u32 b) { return (u64)a * b >> 32; }
HD int __mulhi(int a, int b) { return (i64)a * b >> 32; }
HD u64 __umul64hi(u64 a, u64 b) { return (unsigned __int128)a * b >> 64; }
HD i64 __mul64hi(i64 a, i64 b) { return (__int128)a * b >> 64; }
HD int __popc(u32 a) { return __builtin_popcount(a); }
HD int __popcll(u64 a) { return __builtin_popcountll(a); }
HD int __clz(int a) { return a ? __builtin_clz(a) : 32; }
HD int __clzll(i64 a) { return a ? __builtin_clzll(a) : 64; }
HD int __ffs(int a) { return __builtin_ffs(a); }
HD u64 __brevll(u64 a) { u64 r = 0; for (int i = 0; i < 64; ++i) r |= (a >> i & 1) << (63 - i); return r; }
HD u32 __brev(u32 a) { return __brevll(a) >> 32; }
HD u32 __byte_perm(u32 a, u32 b, u32 s) { u64 v = (u64)b << 32 | a; u32 r = 0;
  for (int i = 0; i < 4; ++i) r |= (u32)(v >> 8 * (s >> 4 * i & 7) & 255) << 8 * i; return r; }
HD u32 __funnelshift_l(u32 l, u32 h, u32 n) { return ((u64)h << 32 | l) << (n & 31) >> 32; }
HD u32 __funnelshift_r(u32 l, u32 h, u32 n) { return ((u64)h << 32 | l) >> (n & 31); }
HD u32 __funnelshift_lc(u32 l, u32 h, u32 n) { n = n > 32 ? 32 : n; return n == 32 ? l : __funnelshift_l(l, h, n); }
HD u32 __funnelshift_rc(u32 l, u32 h, u32 n) { n = n > 32 ? 32 : n; return n == 32 ? h : __funnelshift_r(l, h, n); }
template <class T> void atomicAdd(T* p, T v) { *p = (T)((u64)*p + (u64)v); }
template <class T> void atomicMin(T* p, T v) { if (v < *p) *p = v; }
template <class T> void atomicMax(T* p, T v) { if (v > *p) *p = v; }
template <class T> void atomicAnd(T* p, T v) { *p &= v; }
template <class T> void atomicOr(T* p, T v) { *p |= v; }
template <class T> void atomicXor(T* p, T v) { *p ^= v; }
using std::fmaf; using std::fma;
// PTX: -0 < +0, a number beats NaN
template <class F> F least(F a, F b) { if (a != a) return b; if (b != b) return a; if (a == b) return std::signbit(a) ? a : b; return a < b ? a : b; }
template <class F> F most(F a, F b) { if (a != a) return b; if (b != b) return a; if (a == b) return std::signbit(a) ? b : a; return a > b ? a : b; }
#define fminf least<float>
#define fmaxf most<float>
#define fmin least<double>
#define fmax most<double>
#endif
F2I(float2int, int, float) F2I(float2uint, u32, float) F2I(float2ll, i64, float) F2I(float2ull, u64, float)
F2I(double2int, int, double) F2I(double2uint, u32, double) F2I(double2ll, i64, double) F2I(double2ull, u64, double)
#define OPS(T, U, s) \
HD T add_##s(T a, T b) { return (T)((U)a + (U)b); } HD T sub_##s(T a, T b) { return (T)((U)a - (U)b); } \
HD T mul_##s(T a, T b) { return (T)((U)a * (U)b); } HD T neg_##s(T a) { return (T)(0 - (U)a); } \
HD T div_##s(T a, T b) { return b == 0 ? (T)77 : b == (T)-1 && (T)-1 < 0 ? neg_##s(a) : (T)(a / b); } \
HD T rem_##s(T a, T b) { return b == 0 ? a : b == (T)-1 && (T)-1 < 0 ? (T)0 : (T)(a % b); } \
HD T shl_##s(T a, u32 n) { return (T)((U)a << (n & (8 * sizeof(T) - 1))); } \
HD T shr_##s(T a, u32 n) { return a >> (n & (8 * sizeof(T) - 1)); } \
HD T min_##s(T a, T b) { return a < b ? a : b; } HD T max_##s(T a, T b) { return a > b ? a : b; } \
HD T abs_##s(T a) { return a < 0 ? neg_##s(a) : a; } HD T not_##s(T a) { return ~a; } \
HD T and_##s(T a, T b) { return a & b; } HD T or_##s(T a, T b) { return a | b; } HD T xor_##s(T a, T b) { return a ^ b; }
OPS(int, u32, i) OPS(u32, u32, u) OPS(i64, u64, l) OPS(u64, u64, U)
struct Extra { int a; double b; short c[3]; float d; };
CONST int table_i[16] = {0, 1, -1, 7, 2147483647, (int)0x80000000, 12345, -99, 31, 32, 33, 255, 256, 65535, -65536, 5};
CONST double table_d[8] = {0.0, -0.0, 1.5, -2.25, 1e300, 1e-310, 3.0, 0.1};
"""

RUNTIME = r"""
#include <ucontext.h>
#include <cstdlib>
#include <vector>
typedef unsigned u32; typedef unsigned long long u64;
enum { STACK = 65536 };
static ucontext_t home, fiber[1024];
static char* stacks;
static int now, threads, living, arrived, era;
static bool done[1024];
static u64 slot[1024], seen[1024];
static int here[32], turn[32], size_[32];
static void (*entry)();
static void yield_() { swapcontext(&fiber[now], &home); }
static void start() { entry(); }
extern int lane_id();
int lane_id() { return now & 31; }
void BAR() { int mine = era; if (++arrived == living) { arrived = 0; ++era; } else while (era == mine) yield_(); }
static void warp() { int w = now >> 5, mine = turn[w]; if (++here[w] == size_[w]) { here[w] = 0; ++turn[w]; } else while (turn[w] == mine) yield_(); }
u64 exchange(u64 v, int from) { slot[now] = v; warp(); u64 r = slot[(now & ~31) + from]; warp(); return r; }
u32 ballot(int p) { slot[now] = p != 0; warp(); u32 r = 0; int w = now >> 5;
  for (int i = 0; i < size_[w]; ++i) r |= (u32)slot[w * 32 + i] << i; warp(); return r; }
int all(int p) { u32 r = ballot(!p); return r == 0; }
static void run_block(int count, void (*body)(), void (*place)(int)) {
  if (!stacks) stacks = (char*)malloc((size_t)STACK * 1024);
  threads = living = count; arrived = 0; entry = body;
  for (int w = 0; w < 32; ++w) { here[w] = 0; size_[w] = count - 32 * w < 32 ? count - 32 * w : 32; }
  for (int t = 0; t < count; ++t) { done[t] = false; getcontext(&fiber[t]);
    fiber[t].uc_stack.ss_sp = stacks + (size_t)STACK * t; fiber[t].uc_stack.ss_size = STACK;
    fiber[t].uc_link = &home; makecontext(&fiber[t], start, 0); }
  int left = count;
  while (left) for (int t = 0; t < count; ++t) if (!done[t]) {
    now = t; place(t); int before = -1; (void)before;
    extern bool finished; finished = false; swapcontext(&home, &fiber[t]);
    if (finished) { done[t] = true; --left; --living; if (living && arrived == living) { arrived = 0; ++era; } } }
}
bool finished;
"""

PARAMS = [
    ("const int* __restrict__", "in_i"), ("const u32*", "in_u"), ("const i64*", "in_l"),
    ("const float* __restrict__", "in_f"), ("const double*", "in_d"), ("const int4*", "in_v"),
    ("const i8*", "in_c"), ("const u16*", "in_w"), ("int", "p_i"), ("u32", "p_u"), ("i64", "p_l"),
    ("float", "p_f"), ("double", "p_d"), ("short", "p_s"), ("u8", "p_b"), ("Extra", "extra"),
    ("u64*", "out_U"), ("float*", "out_f"), ("double*", "out_d"), ("i8*", "out_c"),
    ("u16*", "out_w"), ("int4*", "out_v"), ("u32*", "acc_u"), ("u64*", "acc_U"), ("int*", "acc_i"),
]  # fmt: skip
N_IN = 61  # elements of each input array
EXTRA = np.dtype([("a", "i4"), ("b", "f8"), ("c", "i2", 3), ("d", "f4")], align=True)
TYPES = {"i": "int", "u": "u32", "l": "i64", "U": "u64", "f": "float", "d": "double"}
EDGES = {
    "i": ["0", "1", "-1", "2", "7", "31", "32", "2147483647", "(int)0x80000000", "255", "-128"],
    "u": ["0u", "1u", "2u", "31u", "32u", "33u", "0xffffffffu", "0x80000000u", "0x12345678u"],
    "l": ["0ll", "1ll", "-1ll", "63ll", "0x7fffffffffffffffll", "(i64)0x8000000000000000ull",
          "4294967296ll", "-4294967295ll"],
    "U": ["0ull", "1ull", "64ull", "0xffffffffffffffffull", "0x8000000000000000ull",
          "0x100000000ull", "0xdeadbeefcafef00dull"],
    "f": ["0.0f", "-0.0f", "1.0f", "-1.5f", "0.1f", "3e38f", "1e-45f", "1e-40f", "16777218.0f",
          "2147483648.0f", "4294967296.0f", "1e10f", "0.5f", "2.5f"],
    "d": ["0.0", "-0.0", "1.0", "-1.5", "0.1", "1e308", "5e-324", "9007199254740994.0",
          "2147483647.5", "9.3e18", "0.5", "1e-20"],
}  # fmt: skip


class Program:
    """A random kernel: `body` is a tree of statements, so that it can be cut down."""

    def __init__(self, seed: int):
        self.seed = seed
        self.r = r = random.Random(seed)
        self.block = r.choice([(1,), (7, 5), (33,), (32,), (64,), (8, 8), (16, 3, 2), (5, 13),
                               (96,), (31, 2), (4, 4, 4), (128,)])  # fmt: skip
        self.grid = r.choice([(1,), (3,), (2, 2), (5,), (2, 1, 2), (1, 3)])
        self.threads = int(np.prod(self.block))
        self.warps = self.threads % 32 == 0
        self.early = not self.warps and r.random() < 0.4  # an early return
        self.depth = self.loops = self.names = 0
        self.uniform = True  # all threads of the block run this statement alike
        self.vars = {k: [] for k in TYPES}
        self.shared = {}
        self.local = None
        self.body = self.make()

    # expressions

    def leaf(self, t):
        r = self.r
        options = [r.choice(EDGES[t])] + self.vars[t] * 2
        if t in "iu":
            options.append(f"({TYPES[t]})t")
            options.append("({})threadIdx.{}".format(TYPES[t], r.choice("xyz")))
            options.append("({})blockIdx.{}".format(TYPES[t], r.choice("xy")))
        options.append({"i": "p_i", "u": "p_u", "l": "p_l", "U": "(u64)p_l", "f": "p_f",
                        "d": "p_d"}[t])  # fmt: skip
        options.append({"i": "extra.a", "u": "(u32)p_b", "l": "(i64)p_s", "U": "(u64)p_b",
                        "f": "extra.d", "d": "extra.b"}[t])  # fmt: skip
        return r.choice(options)

    def index(self, n):
        return f"(int)({self.expr('u')} % {n}u)"

    def expr(self, t):
        r = self.r
        self.depth += 1
        try:
            if self.depth > 4 or r.random() < 0.2:
                return self.leaf(t)
            return r.choice(self.forms(t))()
        finally:
            self.depth -= 1

    def forms(self, t):
        r, e = self.r, self.expr
        two = lambda name: f"{name}_{t}({e(t)}, {e(t)})"  # noqa: E731
        forms = [
            lambda: f"({self.cond()} ? {e(t)} : {e(t)})",
            lambda: f"({TYPES[t]})({e(r.choice([k for k in 'iulU' if k != t]))})",
        ]
        if t in "iulU":
            forms += [
                lambda: two(r.choice(["add", "sub", "mul", "and", "or", "xor", "min", "max"]))
            ] * 5
            forms += [
                lambda: two(r.choice(["div", "rem"])),
                lambda: f"{r.choice(['shl', 'shr'])}_{t}({e(t)}, {e('u')})",
                lambda: f"{r.choice(['neg', 'not'] + ['abs'] * (t in 'il'))}_{t}({e(t)})",
                lambda: (
                    f"({TYPES[t]})({r.choice(['i8', 'u8', 'short', 'u16'])})({e(r.choice('iulU'))})"
                ),
                lambda: f"({TYPES[t]})({self.cond()})",
                lambda: self.float_to_int(t),
            ]
        if t == "i":
            forms += [
                lambda: f"in_i[{self.index(N_IN)}]",
                lambda: f"table_i[{self.index(16)}]",
                lambda: f"(int)in_c[{self.index(N_IN)}]",
                lambda: f"(int)extra.c[{r.randrange(3)}]",
                lambda: f"__mulhi({e('i')}, {e('i')})",
                lambda: f"in_v[{self.index(N_IN)}].{r.choice('xyzw')}",
                lambda: r.choice([f"__popc({e('u')})", f"__clz({e('i')})", f"__ffs({e('i')})",
                                  f"__popcll({e('U')})", f"__clzll({e('l')})"]),
            ]  # fmt: skip
        if t == "u":
            forms += [
                lambda: f"in_u[{self.index(N_IN)}]",
                lambda: f"(u32)in_w[{self.index(N_IN)}]",
                lambda: f"__umulhi({e('u')}, {e('u')})",
                lambda: f"__brev({e('u')})",
                lambda: f"__byte_perm({e('u')}, {e('u')}, {e('u')} & 0x7777u)",
                lambda: (
                    f"__funnelshift_{r.choice(['l', 'r', 'lc', 'rc'])}({e('u')}, {e('u')}, {e('u')})"
                ),
                lambda: f"fbits({e('f')})",
            ]
        if t == "l":
            forms += [lambda: f"in_l[{self.index(N_IN)}]", lambda: f"__mul64hi({e('l')}, {e('l')})",
                      lambda: f"(i64){e('i')} * (i64){e('i')}"]  # fmt: skip
        if t == "U":
            forms += [lambda: f"__umul64hi({e('U')}, {e('U')})", lambda: f"__brevll({e('U')})",
                      lambda: f"(u64){e('u')} * (u64){e('u')}", lambda: f"dbits({e('d')})"]  # fmt: skip
        if t in "fd":
            s = "f" if t == "f" else ""
            forms += [lambda: f"({e(t)} {r.choice('+-*/')} {e(t)})"] * 5
            forms += [
                lambda: f"in_{t}[{self.index(N_IN)}]",
                lambda: f"({TYPES[t]})({e(r.choice('iulU'))})",
                lambda: f"({TYPES[t]})({e('d' if t == 'f' else 'f')})",
                lambda: (
                    f"{r.choice(['sqrt', 'fabs', 'floor', 'ceil', 'trunc', 'rint'])}{s}({e(t)})"
                ),
                lambda: f"{r.choice(['fmin', 'fmax'])}{s}({e(t)}, {e(t)})",
                lambda: (
                    f"copysign{s}({e(t)}, {e(t)} == {e(t)} ? {r.choice(['1', '-1'])}.0{s} : -2.0{s})"
                ),
                lambda: f"fma{s}({e(t)}, {e(t)}, {e(t)})",
                lambda: f"(- {e(t)})",
                (lambda: f"bitsf({e('u')})") if t == "f" else (lambda: f"bitsd({e('U')})"),
            ]
            if t == "d":
                forms.append(lambda: f"table_d[{self.index(8)}]")
        if self.local and self.local[0] == t:
            forms += [lambda: f"la[{self.index(self.local[1])}]"] * 3
        return forms

    def float_to_int(self, t):
        f = self.r.choice("fd")
        name = (
            ("float" if f == "f" else "double")
            + "2"
            + {"i": "int", "u": "uint", "l": "ll", "U": "ull"}[t]
        )
        return f"{name}_{self.r.choice(['rz', 'rn', 'rd', 'ru'])}({self.expr(f)})"

    def cond(self):
        r = self.r
        t = r.choice("iulUfd")
        one = f"{self.expr(t)} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {self.expr(t)}"
        roll = r.random()
        if roll < 0.1 and self.depth < 4:
            return f"(({one}) {r.choice(['&&', '||', '!='])} ({self.cond()}))"
        return f"(!({one}))" if roll < 0.2 else f"({one})"

    # statements: text, or [head, [statements], tail] for a block

    def assign(self):
        t = self.r.choice("iiuulUfd")
        if self.local and self.local[0] == t and self.r.random() < 0.4:
            return f"la[{self.index(self.local[1])}] = {self.expr(t)};"
        v = self.r.choice(self.vars[t])
        return f"{v} = {self.expr(t)};"

    def divergent(self, make):
        was, self.uniform = self.uniform, False
        try:
            return make()
        finally:
            self.uniform = was

    def statements(self, n):
        return [self.statement() for _ in range(n)]

    def statement(self):
        r = self.r
        self.loops += 1
        try:
            if self.loops > 4 or r.random() < 0.4:
                return self.assign()
            kind = r.choice(["if", "if", "ifelse", "while", "for", "switch", "atomic", "phase", "phase",
                             "warp", "uloop", "loopif", "scope", "return", "bytes"])  # fmt: skip
            return getattr(self, "s_" + kind)()
        finally:
            self.loops -= 1

    def s_if(self):
        return self.divergent(
            lambda: [f"if ({self.cond()}) {{", self.statements(self.r.randint(1, 3)), "}"]
        )

    def s_ifelse(self):
        def make():
            a, c, b = self.statements(2), self.cond(), self.statements(2)
            return ["{", [[f"if ({c}) {{", a, "} else {"], ["", b, "}"]], "}"]

        return self.divergent(make)

    def s_scope(self):
        return ["{", self.statements(2), "}"]

    def name(self):
        self.names += 1
        return f"g{self.names}"

    def s_while(self):
        g, r = self.name(), self.r
        limit = r.choice([f"({self.expr('u')} & {r.choice([3, 7])})", str(r.randint(1, 6))])
        how = r.choice([f"while ({g} < (int){limit} && {self.cond()}) {{ ++{g};",
                        f"while ({g} < (int){limit}) {{ ++{g};"])  # fmt: skip

        def make():
            inside = self.statements(r.randint(1, 3))
            if r.random() < 0.6:
                inside.insert(
                    r.randrange(len(inside) + 1),
                    f"if ({self.cond()}) {r.choice(['break', 'continue'])};",
                )
            return inside

        # (a limit that is an expression is evaluated anew each time round; 8 rounds at most)
        return ["{", [f"int {g} = 0;", [how, self.divergent(make), "}"]], "}"]

    def s_for(self):
        g = self.name()
        body = self.divergent(lambda: self.statements(self.r.randint(1, 3)))
        return [f"for (int {g} = 0; {g} < {self.r.randint(1, 5)}; ++{g}) {{", body, "}"]

    def s_loopif(self):
        g = self.name()
        body = self.divergent(lambda: self.statements(2))
        return [
            "{",
            [
                f"int {g} = 0;",
                ["do {", [*body, f"if (++{g} > 5) break;"], f"}} while ({self.cond()});"],
            ],
            "}",
        ]

    def s_switch(self):
        r = self.r
        n = r.randint(3, 9)
        labels = list(range(n)) if r.random() < 0.7 else r.sample(range(40), n)

        def make():
            cases = []
            for label in labels:
                cases.append(
                    [
                        f"case {label}: {{",
                        [self.assign()],
                        "} " + ("" if r.random() < 0.2 else "break;"),
                    ]
                )
            cases.append(["default: {", [self.assign()], "}"])
            return cases

        return [
            f"switch ((u32)({self.expr('u')}) % {max(labels) + r.randint(1, 3)}u) {{",
            self.divergent(make),
            "}",
        ]

    def s_atomic(self):
        r = self.r
        t = r.choice("uUi")
        op = r.choice(["Add", "Min", "Max", "And", "Or", "Xor"][: 1 if t == "U" else 6])
        # one operation an element, so that the order does not matter
        return f"atomic{op}(&acc_{t}[{ {'Add': 0, 'Min': 4, 'Max': 8, 'And': 12, 'Or': 16, 'Xor': 20}[op] } + {self.index(4)}], {self.expr(t)});"

    def s_bytes(self):
        r = self.r
        return r.choice([f"out_c[tid] = (i8)({self.expr('i')});", f"out_w[tid] = (u16)({self.expr('U')});",
                         f"out_v[tid] = make_int4({self.expr('i')}, {self.expr('i')}, t, {self.expr('i')});"])  # fmt: skip

    def s_phase(self):
        if not self.uniform:
            return self.assign()
        t, r = self.r.choice("iuUfd"), self.r
        n = self.threads
        s = self.shared.setdefault(t, f"s_{t}")
        v = r.choice(self.vars[t])
        return f"BAR(); {s}[(t + {r.randrange(n)}) % {n}] = {self.expr(t)}; BAR(); {v} = {s}[{self.index(n)}];"

    def s_warp(self):
        if not self.uniform or not self.warps:
            return self.assign()
        r = self.r
        t = r.choice("iuUfld")
        v, w = r.choice(self.vars[t]), r.choice([32, 32, 16, 8, 4])
        return r.choice([
            f"{v} = shfl({self.expr(t)}, {self.expr('i')}, {w});",
            f"{v} = shfl_{r.choice(['up', 'down', 'xor'])}({self.expr(t)}, {r.randrange(w)}, {w});",
            f"{v} = shfl_{r.choice(['up', 'down', 'xor'])}({self.expr(t)}, ({self.expr('u')} & {w - 1}), {w});",
            f"{r.choice(self.vars['u'])} = ballot({self.cond()});",
            f"{r.choice(self.vars['i'])} = {r.choice(['any', 'all'])}({self.cond()}) != 0;",
        ])  # fmt: skip

    def s_uloop(self):
        if not self.uniform:
            return self.s_for()
        g = self.name()
        head = self.r.choice([f"for (int {g} = 0; {g} < {self.r.randint(1, 3)}; ++{g}) {{",
                              f"for (int {g} = 0; {g} < ((int)blockIdx.x + p_i & 3); ++{g}) {{"])  # fmt: skip
        return [head, self.statements(2), "}"]

    def s_return(self):
        if not self.early or self.loops > 2 or not self.uniform:
            return self.assign()
        return f"if ({self.cond()}) {{ out_f[tid] = 1.0f; return; }}"

    def make(self):
        r = self.r
        for t in TYPES:
            self.vars[t] = [f"v{t}{n}" for n in range(2)]
        if r.random() < 0.5:
            self.local = (r.choice("iuUfd"), r.choice([3, 4, 8, 11]))
        keep, self.vars = self.vars, {k: [] for k in TYPES}
        local, self.local = self.local, None
        first = [f"{TYPES[t]} {v} = {self.expr(t)};" for t in TYPES for v in keep[t]]
        self.vars, self.local = keep, local
        if local:
            first.append(
                f"{TYPES[local[0]]} la[{local[1]}]; for (int k = 0; k < {local[1]}; ++k) la[k] = ({TYPES[local[0]]})(k * t);"
            )
        self.declared = first
        return self.statements(r.randint(3, 8))

    # text

    def lines(self, tree):
        for item in tree:
            if isinstance(item, str):
                yield item
            else:
                yield item[0]
                yield from self.lines(item[1])
                if len(item) > 2:
                    yield item[2]

    def text(self, body=None):
        dynamic = self.seed % 3 == 0
        shared = [
            (
                f"DYNAMIC({TYPES[t]}, {s});"
                if dynamic and n == 0
                else f"SHARED({TYPES[t]}, {s}, {self.threads});"
            )
            + f" {s}[t] = ({TYPES[t]})t;"
            for n, (t, s) in enumerate(self.shared.items())
        ]
        bx, by, _bz = (*self.block, 1, 1)[:3]
        head = [
            f"int t = (int)(threadIdx.x + {bx}u * (threadIdx.y + {by}u * threadIdx.z));",
            "int tid = t + (int)((blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) "
            "* (blockDim.x * blockDim.y * blockDim.z));",
        ]
        ends = ["out_f[tid] = vf0 + vf1; out_d[tid] = vd0 + vd1;"]
        ends += [f"out_U[tid * 8 + {n}] = (u64){v};" for n, v in enumerate(
            [v for t in "iulU" for v in self.vars[t]])]  # fmt: skip
        params = ", ".join(f"{kind} {name}" for kind, name in PARAMS)
        body = list(self.lines(self.body if body is None else body))
        rows = [*head, *shared, "BAR();" if shared else "", *self.declared, *body, *ends]
        return f"KERNEL(k{self.seed})({params}) {{\n" + "\n".join(rows) + "\n}\n"

    @property
    def dynamic_bytes(self):
        return 8 * self.threads if self.seed % 3 == 0 and self.shared else 0


# --- the two machines ------------------------------------------------------------------------------


def inputs(program):
    rng = np.random.default_rng(program.seed)
    ints = rng.integers(-(2**63), 2**63, N_IN, np.int64)
    ints[:12] = [0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 7, 255, 256, 65535]
    ints[12:30] >>= rng.integers(0, 63, 18)
    floats = rng.standard_normal(N_IN) * 10.0 ** rng.integers(-12, 12, N_IN)
    floats[:10] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-40, 2.0**31, -(2.0**63), 0.5]
    floats[10:30] = np.rint(floats[10:30])
    total = program.threads * int(np.prod(program.grid))
    with np.errstate(all="ignore"):
        args = [
            ints.astype(np.int32), ints.astype(np.uint32), ints, floats.astype(np.float32), floats,
            rng.integers(-(2**31), 2**31, (N_IN, 4), np.int32), ints.astype(np.int8), ints.astype(np.uint16),
            np.int32(rng.integers(-50, 50)), np.uint32(rng.integers(0, 2**32)),
            np.int64(rng.integers(-(2**63), 2**63)), np.float32(rng.standard_normal()),
            np.float64(rng.standard_normal()), np.int16(rng.integers(-(2**15), 2**15)),
            np.uint8(rng.integers(0, 256)),
            np.array((rng.integers(-9, 9), rng.standard_normal(), [-1, 300, -32768], 2.5), EXTRA)[()],
        ]  # fmt: skip
    outs = [np.zeros(8 * total, np.uint64), np.zeros(total, np.float32), np.zeros(total, np.float64),
            np.zeros(total, np.int8), np.zeros(total, np.uint16), np.zeros((total, 4), np.int32),
            np.zeros(24, np.uint32), np.zeros(24, np.uint64), np.zeros(24, np.int32)]  # fmt: skip
    return args, outs


def native(programs_texts, folder):
    """g++ builds all of them into one library."""
    names = ", ".join(name for _, name in PARAMS)
    fields = " ".join(f"{kind} {name};" for kind, name in PARAMS)
    parts = [RUNTIME, PRELUDE, f"struct Args {{ {fields} }}; static Args A;\n"]
    parts.append(
        "static void place(int t) { threadIdx.x = t % blockDim.x; threadIdx.y = t / blockDim.x % blockDim.y;"
        " threadIdx.z = t / (blockDim.x * blockDim.y); }\n"
    )
    for program, text in programs_texts:
        call = ", ".join(f"A.{name}" for _, name in PARAMS)
        params = ", ".join(f"{kind} {name}" for kind, name in PARAMS)
        k = f"k{program.seed}"
        parts.append(text)
        parts.append(
            f"static void go_{k}() {{ body_{k}({call}); finished = true; }}\n"
            f'extern "C" void run_{k}({params.replace("Extra extra", "const Extra* e")}, const u32* shape) {{\n'
            f"  const Extra& extra = *e; A = Args{{{names}}}; blockDim = {{shape[0], shape[1], shape[2]}};"
            " gridDim = {shape[3], shape[4], shape[5]};\n"
            "  for (u32 z = 0; z < gridDim.z; ++z) for (u32 y = 0; y < gridDim.y; ++y)"
            " for (u32 x = 0; x < gridDim.x; ++x) {\n"
            f"    blockIdx = {{x, y, z}}; run_block(blockDim.x * blockDim.y * blockDim.z, go_{k}, place); }}\n}}\n"
        )
    source = "\n".join(parts)
    stem = os.path.join(folder, hashlib.sha1(source.encode()).hexdigest()[:16])
    with open(stem + ".cpp", "w") as file:
        file.write(source)
    subprocess.run(
        [
            "g++",
            "-O1",
            "-ffp-contract=off",
            "-fno-builtin-fmin",
            "-w",
            "-shared",
            "-fPIC",
            "-std=c++17",
            "-o",
            stem + ".so",
            stem + ".cpp",
        ],
        check=True,
    )
    return ctypes.CDLL(stem + ".so")


def run_native(library, program):
    args, outs = inputs(program)
    kinds = {np.int32: ctypes.c_int32, np.uint32: ctypes.c_uint32, np.int64: ctypes.c_int64, np.float32: ctypes.c_float,
             np.float64: ctypes.c_double, np.int16: ctypes.c_int16, np.uint8: ctypes.c_uint8}  # fmt: skip
    shape = np.array([*(*program.block, 1, 1)[:3], *(*program.grid, 1, 1)[:3]], np.uint32)
    passed, keep = [], []
    for value in [*args, *outs, shape]:
        if isinstance(value, np.void):
            value = np.array(value)
            keep.append(value)
        if isinstance(value, np.ndarray):
            passed.append(ctypes.c_void_p(value.ctypes.data))
        else:
            passed.append(kinds[type(value)](value))
    getattr(library, f"run_k{program.seed}")(*passed)
    return outs


def run_ptx(program, text, arch, lanes):
    from sgemm_lab.run.nvrtc import compile_ptx
    from sgemm_lab.simt import host

    code = PRELUDE + text
    ptx = compile_ptx(code, ("-fmad=false",), arch, "fuzz.cu").text
    args, outs = inputs(program)
    launch = host.Loaded(ptx, code, "fuzz.cu").launch(
        f"k{program.seed}",
        program.grid,
        program.block,
        (*args, *outs),
        shared_mem=program.dynamic_bytes,
    )
    launch.batch = max(1, lanes // (-(-program.threads // 32) * 32))
    launch.run()
    return outs


def same(a, b):
    if a.dtype.kind == "f":
        nan = np.isnan(a) & np.isnan(b)
        bits = f"u{a.itemsize}"
        return bool((nan | (a.view(bits) == b.view(bits))).all())
    return np.array_equal(a, b)


OUTS = ("out_U", "out_f", "out_d", "out_c", "out_w", "out_v", "acc_u", "acc_U", "acc_i")


def compare(program, want, text, arch, lanes):
    """None if equal, otherwise what differs."""
    try:
        got = run_ptx(program, text, arch, lanes)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for name, a, b in zip(OUTS, want, got, strict=True):
        if not same(a, b):
            at = np.flatnonzero(
                (a.reshape(-1) != b.reshape(-1)) & ~((a != a) & (b != b)).reshape(-1)
            )
            at = int(at[0]) if len(at) else -1
            return f"{name}[{at}]: g++ {a.reshape(-1)[at]!r}, PTX machine {b.reshape(-1)[at]!r}"
    return None


def reduce(program, arch, lanes, folder):
    """Cut statements away while the difference stays of its kind."""

    def fails(body):
        text = program.text(body)
        try:
            want = run_native(native([(program, text)], folder), program)
        except subprocess.CalledProcessError:
            return None
        return compare(program, want, text, arch, lanes)

    def paths(tree, prefix=()):
        for n, item in enumerate(tree):
            yield (*prefix, n)
            if not isinstance(item, str):
                yield from paths(item[1], (*prefix, n))

    def without(tree, path):
        copy = list(tree)
        if len(path) == 1:
            del copy[path[0]]
        else:
            item = copy[path[0]]
            copy[path[0]] = [item[0], without(item[1], path[1:]), *item[2:]]
        return copy

    kind = (fails(program.body) or "").split(":")[0].split("[")[0]
    body, changed = program.body, True
    while changed:
        changed = False
        for path in list(paths(body)):
            try:
                smaller = without(body, path)
            except IndexError:
                continue
            found = fails(smaller)
            if found and found.split(":")[0].split("[")[0] == kind:
                body, changed = smaller, True
                break
    return program.text(body), fails(body)


def failures(seeds, arch):
    """(program, lanes of a batch, what differs) of the programs whose results are not equal."""
    made = [(program, program.text()) for program in map(Program, seeds)]
    with tempfile.TemporaryDirectory() as folder:
        library = native(made, folder)
        for program, text in made:
            want = run_native(library, program)
            for lanes in (1 << 15, 32, 3 * program.threads):
                if found := compare(program, want, text, arch, lanes):
                    yield program, lanes, found
                    break


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--arch", default="compute_75")
    parser.add_argument("--bundle", type=int, default=20, help="programs per g++ run")
    parser.add_argument("--reduce", action="store_true")
    parser.add_argument("--show", type=int)
    given = parser.parse_args()
    if given.show is not None:
        print(Program(given.show).text())
        return 0
    failing, end = [], given.first + given.count
    for first in range(given.first, end, given.bundle):
        seeds = range(first, min(first + given.bundle, end))
        for program, lanes, found in failures(seeds, given.arch):
            failing.append(program.seed)
            print(f"seed {program.seed}, lanes {lanes}: {found}", flush=True)
            if given.reduce:
                with tempfile.TemporaryDirectory() as folder:
                    print(*reduce(program, given.arch, lanes, folder), sep="\n", flush=True)
    print(f"{given.arch}: {given.count} programs, failing seeds: {failing}")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
