"""What the arithmetic instructions of PTX compute, as NumPy functions over lanes.

`ELEMENTWISE` maps an opcode's first word to a rule; the rule takes the opcode's modifiers and type
and returns `(function, operand types)`; `rule` finds it and adds what modifiers mean everywhere.
Each function is exact where the instruction is; FMA rounds once. `ex2 lg2 sin cos tanh rsqrt` and
every `.approx` are computed to float32 precision here, which is closer than the hardware promises.
"""

import math
from fractions import Fraction
from functools import partial

import numpy as np

DTYPES = {
    f"{kind}{8 * size}": np.dtype(f"{code}{size}")
    for kind, code in (("u", "u"), ("b", "u"), ("s", "i"), ("f", "f"))
    for size in (1, 2, 4, 8)
    if (kind, size) != ("f", 1)
} | {"pred": np.dtype(bool)}

F4, F8 = np.dtype("f4"), np.dtype("f8")
BELOW_F4, TIE_OF_F4 = np.uint64((1 << 29) - 1), np.uint64(1 << 28)  # bits float32 hasn't; a half
_WIDER = {np.dtype(k + n): np.dtype(k + w) for k in "ui" for n, w in ("12", "24", "48")}


# --- fused multiply-add -------------------------------------------------------------------------


def fma32(a, b, c):
    """One rounding. The product is exact in float64; the sum is rounded to float64, then to
    float32, which differs only where the float64 is a tie of float32 or the result is subnormal."""
    total = np.multiply(a, b, dtype=F8)
    total = np.add(total, c, out=total if len(total) >= len(c) else None)
    if not np.count_nonzero((total.view("u8") & BELOW_F4) == TIE_OF_F4):
        try:
            with np.errstate(under="raise"):
                return total.astype(F4)
        except FloatingPointError:
            pass
    return odd_sum(np.multiply(a, b, dtype=F8), c).astype(F4)


def odd_sum(a, b):
    """a + b in float64, rounded to odd: exact, or with the last bit set. Rounding it again, to at
    most 51 bits, is then as good as rounding the exact sum (Boldo and Melquiond 2008)."""
    total = np.add(a, b, dtype=F8)
    lost = _lost(a, b, total)
    even = (total.view("u8") & np.uint64(1)) == 0
    inexact = even & (lost != 0) & np.isfinite(total)
    return np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total)


def _lost(a, b, total):
    """What rounding took from total = a + b (Knuth)."""
    back = total - a
    return (a - (total - back)) + (b - back)


def fma64(a, b, c):
    """One rounding: Dekker's exact product, then Boldo and Melquiond's sum of three; where these
    over- or underflow, exact fractions."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    split = 134217729.0  # 2^27 + 1
    ah = a * split - (a * split - a)
    bh = b * split - (b * split - b)
    al, bl = a - ah, b - bh
    error = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    low = error + c
    total = product + low
    result = total + odd_sum(_lost(product, low, total), _lost(error, c, low))
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    simple = ~finite | (a == 0) | (b == 0)  # nothing is rounded before the sum
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, product + c)
    sizes = np.abs([a, b, c, product])
    small = ((sizes[2:] > 0) | [[False], [True]]) & (sizes[2:] < 1e-250)
    rim = ~simple & ((sizes > 1e290).any(axis=0) | small.any(axis=0) | (result == 0))
    result = np.where(simple, plain, result)
    for at in np.flatnonzero(rim):
        result[at] = _fma_of_fractions(float(a[at]), float(b[at]), float(c[at]))
    return result


def _fma_of_fractions(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return 0.0  # a and b are not zero: what cancels is +0
    try:
        near = exact.numerator / exact.denominator
    except OverflowError:
        near = math.inf if exact > 0 else -math.inf
    return near or math.copysign(0.0, exact)


def _fma16(a, b, c):
    return np.add(np.multiply(a, b, dtype=F8), c).astype("f2")  # float64 holds the exact sum


_FMA = {np.dtype("f2"): _fma16, np.dtype("f4"): fma32, np.dtype("f8"): fma64}

# --- modifiers ----------------------------------------------------------------------------------


def directed(mode: str, x):
    """float64 x as float32, rounded towards zero (rz), down (rm) or up (rp)."""
    near = x.astype(F4)
    beyond = {"rz": np.abs(near) > np.abs(x), "rm": near > x, "rp": near < x}[mode]
    towards = {"rz": 0, "rm": -np.inf, "rp": np.inf}[mode]
    return np.where(beyond, np.nextafter(near, F4.type(towards)), near)


_EXACT = {  # in float64, or rounded to odd
    "add": odd_sum,
    "sub": lambda a, b: odd_sum(a, -b),
    "mul": partial(np.multiply, dtype=F8),
    "fma": lambda a, b, c: odd_sum(np.multiply(a, b, dtype=F8), c),
}


def flush(x):
    """Subnormal float32 numbers become zeros of their sign (.ftz)."""
    return np.where(np.abs(x) < np.finfo(F4).tiny, np.copysign(x.dtype.type(0), x), x)


def _flushed(function):
    return lambda *xs: flush(function(*map(flush, xs)))


def _saturated(function):
    """.sat: into [0, 1], and NaN becomes +0."""

    def saturate(*xs):
        x = function(*xs)
        return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))

    return saturate


# Modifiers that the rules below read or that change nothing here; any other is refused.
MODIFIERS = {
    "rn", "ftz", "sat", "lo", "hi", "wide", "l", "r", "wrap", "clamp", "approx", "full", "shiftamt",
}  # fmt: skip


def rule(op: str, mods: tuple[str, ...], dtype: np.dtype):
    """(function, operand types) of an instruction, or None where it isn't covered."""
    mode = next((m for m in mods if m in ("rz", "rm", "rp")), None)
    if set(mods) - MODIFIERS - {mode}:
        return None
    function, dtypes = ELEMENTWISE[op](mods, dtype)
    if mode:
        exact = _EXACT.get("fma" if op == "mad" else op)
        if exact is None or dtype != F4:
            return None
        function = lambda *xs: directed(mode, exact(*xs))  # noqa: E731
    if "ftz" in mods:
        function = _flushed(function)
    if "sat" in mods:
        if dtype.kind == "f":
            function = _saturated(function)
        elif op in ("add", "sub") and dtype == DTYPES["s32"]:
            function = _saturated_int(function)
        else:
            return None
    return function, dtypes


def _saturated_int(function):
    return lambda a, b: np.clip(
        function(a.astype("i8"), b.astype("i8")), -(1 << 31), (1 << 31) - 1
    ).astype("i4")


# --- rules --------------------------------------------------------------------------------------


def _least(a, b):
    """A number beats NaN, and −0 is less than +0."""
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.fmin(a, b))


def _most(a, b):
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.fmax(a, b))


def _float_or_int(floats, ints, arity=2):
    return lambda mods, dtype: (floats if dtype.kind == "f" else ints, (dtype,) * arity)


def _mul_high(a, b):
    dtype = a.dtype
    if dtype in _WIDER:
        wide = _WIDER[dtype]
        return (np.multiply(a, b, dtype=wide) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view("u8"), b.view("u8")
    xl, xh, yl, yh = x & low, x >> half, y & low, y >> half
    middle = xh * yl + (xl * yl >> half)
    high = xh * yh + (middle >> half) + ((middle & low) + xl * yh >> half)
    if dtype.kind == "i":
        high = high - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return high.view(dtype)


def _product(mods, dtype):
    """(function of a and b, type of the result) for mul and mad of any type."""
    if "wide" in mods:
        return partial(np.multiply, dtype=_WIDER[dtype]), _WIDER[dtype]
    if "hi" in mods:
        return _mul_high, dtype
    return np.multiply, dtype


def _mul(mods, dtype):
    return _product(mods, dtype)[0], (dtype, dtype)


def _mad(mods, dtype):
    if dtype.kind == "f":
        return _fma(mods, dtype)
    product, result = _product(mods, dtype)
    return (lambda a, b, c: product(a, b) + c), (dtype, dtype, result)


def _fma(mods, dtype):
    return _FMA[dtype], (dtype,) * 3


def _int_div(a, b):
    quotient = a // b
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * b != a) & ((a < 0) != (b < 0)))
    return np.where(b == 0, ~a.dtype.type(0), quotient).astype(a.dtype)


def _div(mods, dtype):
    return (np.divide if dtype.kind == "f" else _int_div), (dtype, dtype)


def _int_rem(a, b):
    return np.where(b == 0, a, np.fmod(a, b))


def _bits(function, arity=2):
    return lambda mods, dtype: (function, (dtype,) * arity)


def _shift_left(a, n):
    bits = 8 * a.dtype.itemsize
    return np.where(n < bits, a << (n & (bits - 1)).astype(a.dtype), a.dtype.type(0))


def _shift_right(a, n):
    bits = 8 * a.dtype.itemsize
    return (
        a >> np.minimum(n, bits - 1).astype(a.dtype)
        if a.dtype.kind == "i"
        else np.where(n < bits, a >> (n & (bits - 1)).astype(a.dtype), a.dtype.type(0))
    )


def _shift(function):
    return lambda mods, dtype: (function, (dtype, DTYPES["u32"]))


def _funnel(mods, dtype):
    def shift(low, high, n):
        n = n & 31 if "wrap" in mods else np.minimum(n, 32)
        both = low.astype("u8") | high.astype("u8") << np.uint64(32)
        amount = n.astype("u8")
        if mods[0] == "l":
            return (both << amount >> np.uint64(32)).astype("u4")
        return (both >> amount).astype("u4")

    return shift, (dtype,) * 3


def _bit_count(a):
    return np.bitwise_count(a).astype("u4")


def _leading_zeros(a):
    bits = 8 * a.dtype.itemsize
    length = np.zeros(a.shape, "u4")
    for step in (32, 16, 8, 4, 2, 1):
        if step < bits:
            big = a >= a.dtype.type(1 << step)
            length += np.where(big, np.uint32(step), np.uint32(0))
            a = np.where(big, a >> a.dtype.type(step), a)
    return np.uint32(bits - 1) - length + (a == 0)


def _find(mods, dtype):
    """bfind: the highest bit that isn't the sign; shiftamt: how far it is from the top."""

    def bfind(a):
        raw = np.where(a < 0, ~a, a).view(f"u{dtype.itemsize}")
        zeros = _leading_zeros(raw)
        place = zeros if "shiftamt" in mods else np.uint32(8 * dtype.itemsize - 1) - zeros
        return np.where(raw == 0, np.uint32(0xFFFFFFFF), place)

    return bfind, (dtype,)


def _mul24(mods, dtype):
    """The product of the low 24 bits of both: its low 32 bits, or bits 16 to 47 (hi)."""

    def mul24(a, b):
        x, y = (v << dtype.type(8) >> dtype.type(8) for v in (a, b))
        product = np.multiply(x, y, dtype=_WIDER[dtype])
        return (product >> product.dtype.type(16 if "hi" in mods else 0)).astype(dtype)

    return mul24, (dtype, dtype)


def _reverse(a):
    bits = np.unpackbits(a.reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(-1)


def _extract(mods, dtype):
    bits = 8 * dtype.itemsize

    def bfe(a, position, length):
        position, length = (np.minimum(x & 255, bits) for x in (position, length))
        top, empty = np.minimum(position + length - 1, bits - 1), length == 0
        length = np.minimum(length, bits - position)
        raw = _shift_right(a.view(f"u{dtype.itemsize}"), position)
        kept = raw & (_shift_left(raw.dtype.type(1) + 0 * raw, length) - raw.dtype.type(1))
        if dtype.kind == "u":
            return kept
        sign = _shift_right(a.view(kept.dtype), top) & ~empty
        return (kept | _shift_left(np.where(sign, ~kept.dtype.type(0), 0 * kept), length)).view(
            dtype
        )

    return bfe, (dtype, DTYPES["u32"], DTYPES["u32"])


def _insert(mods, dtype):
    bits = 8 * dtype.itemsize

    def bfi(a, b, position, length):
        position, length = (np.minimum(x & 255, bits) for x in (position, length))
        ones = _shift_left(dtype.type(1) + 0 * b, length) - dtype.type(1)
        field = _shift_left(ones, position)
        return b & ~field | _shift_left(a, position) & field

    return bfi, (dtype, dtype, DTYPES["u32"], DTYPES["u32"])


def _permute_bytes(mods, dtype):
    def prmt(a, b, selector):
        both = a.astype("u8") | b.astype("u8") << np.uint64(32)
        out = np.zeros(np.broadcast(a, b, selector).shape, "u4")
        for n in range(4):
            choice = selector >> np.uint32(4 * n) & np.uint32(15)
            byte = (both >> (choice & np.uint32(7)).astype("u8") * np.uint64(8)).astype("u4") & 255
            byte = np.where(choice & np.uint32(8), np.where(byte & 128, 255, 0), byte)
            out |= byte.astype("u4") << np.uint32(8 * n)
        return out

    return prmt, (dtype, dtype, DTYPES["u32"])


def _lookup3(mods, dtype):
    def lop3(a, b, c, table):
        out = np.zeros(np.broadcast(a, b, c).shape, dtype)
        for n in range(8):
            if int(table[0]) >> n & 1:
                term = (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c)
                out = out | term
        return out

    return lop3, (dtype,) * 4


def _select(mods, dtype):
    return (lambda a, b, p: np.where(p, a, b) if len(p) > 1 else (a if p[0] else b)), (
        dtype,
        dtype,
        DTYPES["pred"],
    )


def _unary(function):
    return lambda mods, dtype: (lambda x: function(x).astype(x.dtype), (dtype,))


ELEMENTWISE = {
    "add": _float_or_int(np.add, np.add),
    "sub": _float_or_int(np.subtract, np.subtract),
    "mul": _mul,
    "mad": _mad,
    "fma": _fma,
    "div": _div,
    "rem": _bits(_int_rem),
    "min": _float_or_int(_least, np.minimum),
    "max": _float_or_int(_most, np.maximum),
    "neg": _float_or_int(np.negative, np.negative, 1),
    "abs": _float_or_int(np.abs, np.abs, 1),
    "and": _bits(np.bitwise_and),
    "or": _bits(np.bitwise_or),
    "xor": _bits(np.bitwise_xor),
    "not": _bits(np.invert, 1),
    "cnot": _bits(lambda a: (a == 0).astype(a.dtype), 1),
    "shl": _shift(_shift_left),
    "shr": _shift(_shift_right),
    "shf": _funnel,
    "popc": _bits(_bit_count, 1),
    "clz": _bits(_leading_zeros, 1),
    "bfind": _find,
    "mul24": _mul24,
    "brev": _bits(_reverse, 1),
    "bfe": _extract,
    "bfi": _insert,
    "prmt": _permute_bytes,
    "lop3": _lookup3,
    "selp": _select,
    "sad": _bits(lambda a, b, c: c + np.where(a < b, b - a, a - b), 3),
    "copysign": _bits(lambda a, b: np.copysign(b, a)),
    "sqrt": _unary(np.sqrt),
    "rcp": _unary(np.reciprocal),
    "rsqrt": _unary(lambda x: 1 / np.sqrt(x.astype(F8))),
    "ex2": _unary(lambda x: np.exp2(x.astype(F8))),
    "lg2": _unary(lambda x: np.log2(x.astype(F8))),
    "sin": _unary(lambda x: np.sin(x.astype(F8))),
    "cos": _unary(lambda x: np.cos(x.astype(F8))),
    "tanh": _unary(lambda x: np.tanh(x.astype(F8))),
}


def _ordered(compare):
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


def _unordered(compare):
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


_INT_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_FLOAT_COMPARE = (
    {name: _INT_COMPARE[name] for name in ("eq", "lt", "le", "gt", "ge")}
    | {"ne": _ordered(np.not_equal)}
    | {f"{name}u": _unordered(_INT_COMPARE[name]) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
    | {
        "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    }
)


def comparison(name: str, dtype: np.dtype, ftz: bool = False):
    """The function of a `setp` comparison, or None where PTX has none of that name."""
    compare = (_FLOAT_COMPARE if dtype.kind == "f" else _INT_COMPARE).get(name)
    return (lambda a, b: compare(flush(a), flush(b))) if ftz and compare else compare


COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _set(mods, to, of):
    name, *others = mods
    combine = next((COMBINE[m] for m in others if m in COMBINE), None)
    compare = comparison(name, of, "ftz" in others)
    if compare is None or set(others) - {"ftz"} - set(COMBINE):
        return None
    yes, no = to.type(1) if to.kind == "f" else ~to.type(0), to.type(0)

    def choose(a, b, *c):
        holds = compare(a, b)
        return np.where(combine(holds, *c) if c else holds, yes, no)

    return choose, (of, of, *([DTYPES["pred"]] if combine else []))


def _slct(mods, to, of):
    if set(mods) - {"ftz"}:
        return None
    return lambda a, b, c: np.where((flush(c) if mods else c) >= 0, a, b), (to, to, of)


def _dp4a(mods, of_a, of_b):
    def four(x, of):
        return np.ascontiguousarray(x).view(f"{of.kind}1").reshape(-1, 4).astype("i8")

    def dp4a(a, b, c):
        return ((four(a, of_a) * four(b, of_b)).sum(axis=1) + c.astype("i8")).astype("u4")

    return None if mods else (dp4a, (of_a, of_b, DTYPES["u32"]))


# Opcodes that end in two types: as `ELEMENTWISE`, given both.
TWO_TYPES = {"set": _set, "slct": _slct, "dp4a": _dp4a}

REDUCE = {  # of redux: a ufunc and what leaves any value as it is
    "add": (np.add, lambda dtype: 0), "and": (np.bitwise_and, lambda dtype: np.iinfo(dtype).max),
    "or": (np.bitwise_or, lambda dtype: 0), "xor": (np.bitwise_xor, lambda dtype: 0),
    "min": (np.minimum, lambda dtype: np.iinfo(dtype).max),
    "max": (np.maximum, lambda dtype: np.iinfo(dtype).min),
}  # fmt: skip

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def conversion(mods: tuple[str, ...], to: np.dtype, of: np.dtype):
    """The function of `cvt…to.of`, or None where a rounding mode is not covered."""
    mode = next((m for m in mods if m in ("rz", "rm", "rp")), None)
    whole = next((_ROUND[m] for m in mods if m in _ROUND), None)
    if set(mods) - set(_ROUND) - {"rn", "ftz", "sat", mode}:
        return None
    if to.kind == "f":
        widens = of.kind == "f" and to.itemsize >= of.itemsize
        if mode and not widens and (to != F4 or (of.itemsize == 8 and of != F8)):
            return None
        function = _to_float(to, mode if mode and not widens else None, whole)
    elif mode:
        return None
    elif of.kind == "f":
        function = _float_to_int(to, of, whole or np.trunc)
    elif "sat" in mods:
        info = np.iinfo(to)
        return lambda x: np.where(
            x > info.max, to.type(info.max), np.where(x < info.min, to.type(info.min), x.astype(to))
        )
    else:
        return lambda x: x.astype(to)
    if "ftz" in mods:
        function = _ftz_between(function, to, of)
    return _saturated(function) if "sat" in mods and to.kind == "f" else function


def _to_float(to, mode, whole):
    def convert(x):
        x = whole(x) if whole else x
        return directed(mode, x.astype(F8)) if mode else x.astype(to)

    return convert


def _float_to_int(to, of, whole):
    """Out of range: the nearest there is. NaN: 0, or only the top bit where 64 bits are involved
    (PTX ISA, cvt)."""
    low, high = np.iinfo(to).min, np.iinfo(to).max
    nan = to.type(0 if of != F8 and to.itemsize < 8 else low or 1 << 8 * to.itemsize - 1)

    def convert(x):
        x = whole(x.astype(F8))
        inside = np.where((x > float(low)) & (x < float(high)), x, 0).astype(to)
        out = np.where(x >= float(high), to.type(high), inside)
        return np.where(np.isnan(x), nan, np.where(x <= float(low), to.type(low), out))

    return convert


def _ftz_between(function, to, of):
    """.ftz concerns what is float32 of the two: source, result."""

    def convert(x):
        x = function(flush(x) if of == F4 else x)
        return flush(x) if to == F4 else x

    return convert


ATOMIC = {
    "add": lambda old, x: old + x,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, x: x,
    "inc": lambda old, x: old.dtype.type(0) if old >= x else old + old.dtype.type(1),
    "dec": lambda old, x: x if old == 0 or old > x else old - old.dtype.type(1),
}
