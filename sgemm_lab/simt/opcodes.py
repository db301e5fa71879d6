"""What the arithmetic instructions of PTX compute, as NumPy functions over lanes.

`ELEMENTWISE` maps an opcode's first word to a rule; the rule takes the opcode's modifiers and type
and returns `(function, operand types)`. Each function is exact where the instruction is; FMA goes
through float64, where the product is exact and the sum is rounded twice at worst: a result can
differ from one rounding only where the float64 sum falls on a tie of float32 (about 1 in 2^29).
`ex2 lg2 sin cos tanh rsqrt` and every `.approx` are computed to float32 precision here, which is
closer than the hardware promises.
"""

from functools import partial

import numpy as np

DTYPES = {
    f"{kind}{8 * size}": np.dtype(f"{code}{size}")
    for kind, code in (("u", "u"), ("b", "u"), ("s", "i"), ("f", "f"))
    for size in (1, 2, 4, 8)
    if (kind, size) != ("f", 1)
} | {"pred": np.dtype(bool)}

F4, F8 = np.dtype("f4"), np.dtype("f8")
_WIDER = {np.dtype(k + n): np.dtype(k + w) for k in "ui" for n, w in ("12", "24", "48")}


def fma32(a, b, c):
    return np.add(np.multiply(a, b, dtype=F8), c).astype(F4)


def fma64(a, b, c):
    """One rounding, except where the low part ties; |a|, |b| < 2^995.

    By the error-free product of Dekker and Veltkamp and a compensated sum.
    """
    product = a * b
    split = 134217729.0  # 2^27 + 1
    ah = a * split - (a * split - a)
    bh = b * split - (b * split - b)
    al, bl = a - ah, b - bh
    error = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    return total + (lost + error)


def _flushed(function):
    def flush(x):
        tiny = np.abs(x) < np.finfo(np.float32).tiny
        return np.where(tiny, np.copysign(np.float32(0), x), x)

    return lambda *xs: flush(function(*map(flush, xs)))


def _float_or_int(floats, ints):
    def rule(mods, dtype):
        arity = {np.add: 2, np.subtract: 2, np.fmin: 2, np.fmax: 2}.get(floats, 1)
        function = floats if dtype.kind == "f" else ints
        if "ftz" in mods:
            function = _flushed(function)
        if "sat" in mods and dtype.kind == "f":
            return (lambda *xs: np.nan_to_num(np.clip(floats(*xs), 0, 1))), (dtype,) * arity
        return function, (dtype,) * arity

    return rule


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
    function, _ = _product(mods, dtype)
    return (_flushed(function) if "ftz" in mods else function), (dtype, dtype)


def _mad(mods, dtype):
    if dtype.kind == "f":
        return _fma(mods, dtype)
    product, result = _product(mods, dtype)
    return (lambda a, b, c: product(a, b) + c), (dtype, dtype, result)


def _fma(mods, dtype):
    function = fma32 if dtype == F4 else fma64
    return (_flushed(function) if "ftz" in mods else function), (dtype,) * 3


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
    "min": _float_or_int(np.fmin, np.minimum),
    "max": _float_or_int(np.fmax, np.maximum),
    "neg": _float_or_int(np.negative, np.negative),
    "abs": _float_or_int(np.abs, np.abs),
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

# Modifiers that the rules above read or that change nothing here; any other is refused.
MODIFIERS = {"rn", "ftz", "sat", "lo", "hi", "wide", "l", "r", "wrap", "clamp", "approx", "full"}


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


def comparison(name: str, dtype: np.dtype):
    """The function of a `setp` comparison, or None where PTX has none of that name."""
    return (_FLOAT_COMPARE if dtype.kind == "f" else _INT_COMPARE).get(name)


COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}

_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def conversion(mods: tuple[str, ...], to: np.dtype, of: np.dtype):
    """The function of `cvt…to.of`, or None where a rounding mode is not covered."""
    rounding = [m for m in mods if m in _ROUND]
    others = set(mods) - set(_ROUND) - {"rn", "ftz", "sat"}
    if others and not (
        others <= {"rz", "rm", "rp"}
        and to.itemsize >= of.itemsize
        and to.kind == "f"
        and of.kind == "f"
    ):
        return None
    if to.kind == "f":

        def convert(x):
            x = _ROUND[rounding[0]](x) if rounding else x
            x = x.astype(to)
            return np.nan_to_num(np.clip(x, 0, 1), nan=0.0).astype(to) if "sat" in mods else x

        return convert
    if of.kind == "f":
        low, high = np.iinfo(to).min, np.iinfo(to).max

        def saturate(x):
            x = np.where(np.isnan(x), 0, _ROUND[rounding[0] if rounding else "rzi"](x.astype(F8)))
            inside = np.clip(x, float(low), float(high))
            out = np.where(inside >= float(high), 0, inside).astype(to)
            return np.where(x >= float(high), to.type(high), out)

        return saturate
    if "sat" in mods:
        return lambda x: np.clip(x, np.iinfo(to).min, np.iinfo(to).max).astype(to)
    return lambda x: x.astype(to)


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
