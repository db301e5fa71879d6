"""Every arithmetic instruction against Python's whole numbers, and floats against exact ones."""

from fractions import Fraction

import numpy as np
import pytest

from sgemm_lab.simt import opcodes
from sgemm_lab.simt.opcodes import DTYPES, ELEMENTWISE, comparison, conversion

EDGES = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 100, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1,
         2**40 + 5, 2**63 - 1, 2**63, 2**64 - 1, 0x12345678, 0xDEADBEEFCAFEF00D]  # fmt: skip


def wrap(value, kind):
    """A whole number as a value of the PTX integer type `kind`."""
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> bits - 1 else value


def div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bfe(a, b, c, kind):
    bits = int(kind[1:])
    pos, length = b & 255, c & 255
    if kind[0] == "u":
        return ((a % (1 << bits)) >> pos) & ((1 << length) - 1)
    if not length:
        return 0
    out, top = 0, min(pos + length - 1, bits - 1)
    raw = a % (1 << bits)
    for n in range(bits):
        source = pos + n if n < length and pos + n < bits else top
        out |= (raw >> source & 1) << n
    return out


def bfi(a, b, c, d, kind):
    bits, pos, length = int(kind[1:]), c & 255, d & 255
    out = b % (1 << bits)
    for n in range(length):
        if pos + n < bits and n < bits:
            out = out & ~(1 << pos + n) | (a >> n & 1) << pos + n
    return out


REFERENCE = {
    "add": lambda a, b, k: a + b,
    "sub": lambda a, b, k: a - b,
    "mul.lo": lambda a, b, k: a * b,
    "mul.hi": lambda a, b, k: a * b >> int(k[1:]),
    "mad.lo": lambda a, b, c, k: a * b + c,
    "min": lambda a, b, k: min(a, b),
    "max": lambda a, b, k: max(a, b),
    "neg": lambda a, k: -a,
    "abs": lambda a, k: abs(a),
    "and": lambda a, b, k: a & b,
    "or": lambda a, b, k: a | b,
    "xor": lambda a, b, k: a ^ b,
    "not": lambda a, k: ~a,
    "cnot": lambda a, k: int(a == 0),
    "div": lambda a, b, k: div(a, b) if b else None,
    "rem": lambda a, b, k: a - div(a, b) * b if b else None,
    "shl": lambda a, b, k: a << b if b < int(k[1:]) else 0,
    "shr": lambda a, b, k: a >> min(b, int(k[1:])),
    "popc": lambda a, k: bin(a % (1 << int(k[1:]))).count("1"),
    "clz": lambda a, k: int(k[1:]) - (a % (1 << int(k[1:]))).bit_length(),
    "brev": lambda a, k: int(f"{a:0{k[1:]}b}"[::-1], 2),
    "bfe": bfe,
    "bfi": bfi,
    "sad": lambda a, b, c, k: c + abs(a - b),
}
SIGNED_AND_NOT = ("s32", "u32", "s64", "u64")
CASES = [
    *((op, k) for op in ("add", "sub", "mul.lo", "mul.hi", "mad.lo", "min", "max", "div", "rem",
                         "shr", "bfe") for k in SIGNED_AND_NOT),
    *((op, k) for op in ("neg", "abs") for k in ("s32", "s64")),
    *((op, k) for op in ("and", "or", "xor", "not", "cnot", "shl", "popc", "clz", "brev", "bfi")
      for k in ("b32", "b64")),
    *((op, k) for op in ("add", "sub", "mul.lo", "min", "max", "shr") for k in ("s16", "u16")),
    ("sad", "s32"), ("sad", "u32"),
]  # fmt: skip


@pytest.mark.parametrize("opcode, kind", CASES)
def test_an_integer_instruction_agrees_with_whole_numbers(opcode, kind):
    op, *mods = opcode.split(".")
    function, dtypes = ELEMENTWISE[op](tuple(mods), DTYPES[kind])
    rng = np.random.default_rng(1)
    pool = EDGES + [int(x) for x in rng.integers(0, 2**63, 20)]
    columns = [rng.choice(len(pool), 500) for _ in dtypes]
    kinds = [f"u{8 * d.itemsize}" if d.kind == "u" else f"s{8 * d.itemsize}" for d in dtypes]
    if kind[0] == "b":
        kinds = [k.replace("b", "u") for k in kinds]
    operands = [
        [wrap(pool[i], k) for i in column] for column, k in zip(columns, kinds, strict=True)
    ]
    with np.errstate(all="ignore"):
        result = function(*(np.array(o, d) for o, d in zip(operands, dtypes, strict=True)))
    checked = 0
    for got, values in zip(result.tolist(), zip(*operands, strict=True), strict=False):
        expected = REFERENCE[opcode](*values, kind)
        if expected is None:
            continue
        bits = 32 if op in ("popc", "clz") else int(kind[1:])
        assert got % (1 << bits) == expected % (1 << bits), (opcode, kind, values)
        checked += 1
    assert checked > 400


@pytest.mark.parametrize("kind", ["s32", "u32", "s16", "u16"])
def test_a_wide_product_keeps_every_bit(kind):
    values = [wrap(v, kind) for v in EDGES]
    a, b = (np.array(v, DTYPES[kind]) for v in (values, values[::-1]))
    product = ELEMENTWISE["mul"](("wide",), DTYPES[kind])[0](a, b)
    assert product.tolist() == [x * y for x, y in zip(values, values[::-1], strict=True)]


def test_a_funnel_shift_moves_bits_across_two_words():
    low, high = np.array([0x89ABCDEF], "u4"), np.array([0x01234567], "u4")
    for n in (0, 1, 8, 31, 32, 40):
        amount, both = np.array([n], "u4"), 0x0123456789ABCDEF
        left = ELEMENTWISE["shf"](("l", "wrap"), DTYPES["b32"])[0](low, high, amount)
        right = ELEMENTWISE["shf"](("r", "clamp"), DTYPES["b32"])[0](low, high, amount)
        assert left[0] == (both << (n & 31) >> 32) & 0xFFFFFFFF
        assert right[0] == both >> min(n, 32) & 0xFFFFFFFF


def test_a_byte_permutation_picks_and_repeats_signs():
    a, b = np.array([0x03020100], "u4"), np.array([0x87060504], "u4")
    prmt = ELEMENTWISE["prmt"]((), DTYPES["b32"])[0]
    assert prmt(a, b, np.array([0x7531], "u4"))[0] == 0x87050301
    assert prmt(a, b, np.array([0x000F], "u4"))[0] == 0x000000FF


def test_any_three_input_logic_is_its_truth_table():
    a, b, c = (np.array([x], "u4") for x in (0xF0F0AA11, 0xCCCC5522, 0xAAAA3344))
    lop3 = ELEMENTWISE["lop3"]((), DTYPES["b32"])[0]
    assert lop3(a, b, c, np.array([0x96], "u4"))[0] == a[0] ^ b[0] ^ c[0]
    assert lop3(a, b, c, np.array([0xE8], "u4"))[0] == (a[0] & b[0]) | (a[0] & c[0]) | (b[0] & c[0])


def rounded(exact: Fraction) -> np.float32:
    """The float32 nearest to an exact number, ties to even, found without float arithmetic."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(s)) for s in (-np.inf, np.inf)] + [guess]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view("u4")) & 1))


def test_fma_rounds_once():
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(3000).astype("f4") for _ in range(2))
    c = (-a * b).astype("f4") + (rng.standard_normal(3000) * 1e-7).astype("f4")
    got = opcodes.fma32(a, b, c)
    for x, y, z, g in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        assert g == rounded(Fraction(x) * Fraction(y) + Fraction(z))
    assert np.any(got != a * b + c), "inputs on which a product rounded first would differ"


def test_double_fma_keeps_what_cancels():
    a = np.array([1 + 2.0**-30]), np.array([1 - 2.0**-30]), np.array([-1.0])
    assert opcodes.fma64(*a)[0] == -(2.0**-60)


def test_min_and_max_prefer_a_number_to_nan():
    x, y = np.array([np.nan, 1, 2], "f4"), np.array([5, np.nan, 1], "f4")
    assert ELEMENTWISE["min"]((), DTYPES["f32"])[0](x, y).tolist() == [5, 1, 1]
    assert ELEMENTWISE["max"]((), DTYPES["f32"])[0](x, y).tolist() == [5, 1, 2]


def test_flush_to_zero_keeps_the_sign():
    add = opcodes.rule("add", ("ftz",), DTYPES["f32"])[0]
    tiny = np.array([-1e-40, 1e-40, 1.0], "f4")
    out = add(tiny, np.zeros(3, "f4") * np.array([-1, 1, 1], "f4"))
    assert out.tolist() == [0, 0, 1] and np.signbit(out[0])


@pytest.mark.parametrize("name, expected", [
    ("lt", [True, False, False]), ("ne", [True, False, False]), ("neu", [True, False, True]),
    ("equ", [False, True, True]), ("ltu", [True, False, True]), ("num", [True, True, False]),
    ("nan", [False, False, True]),
])  # fmt: skip
def test_comparisons_say_what_they_do_with_nan(name, expected):
    x, y = np.array([1, 2, np.nan], "f4"), np.array([2, 2, 2], "f4")
    assert comparison(name, DTYPES["f32"])(x, y).tolist() == expected


@pytest.mark.parametrize("mods, to, of, values, expected", [
    (("rzi",), "s32", "f32", [1.9, -1.9, 3e9, -3e9, np.nan], [1, -1, 2**31 - 1, -(2**31), 0]),
    (("rni",), "s32", "f32", [0.5, 1.5, 2.5, -0.5], [0, 2, 2, 0]),
    (("rmi",), "s32", "f32", [1.5, -1.5], [1, -2]),
    (("rpi",), "u32", "f32", [1.5, -1.5, 5e9], [2, 0, 2**32 - 1]),
    (("rzi",), "u64", "f64", [1e19, -1, 2e19], [10**19, 0, 2**64 - 1]),
    (("rn",), "f32", "s64", [2**24 + 1, 2**25 + 2, 2**25 + 6], [2**24, 2**25, 2**25 + 8]),
    (("rn",), "f32", "f64", [1 + 2.0**-24, 1 + 3 * 2.0**-24], [1.0, 1 + 2 * 2.0**-23]),
    (("rzi",), "f32", "f32", [1.7, -1.7], [1.0, -1.0]),
    (("sat",), "u8", "s32", [300, -5, 7], [255, 0, 7]),
    ((), "s64", "s32", [-1, 5], [-1, 5]),
    ((), "u16", "u32", [65537], [1]),
])  # fmt: skip
def test_conversions_round_and_saturate_as_ptx_says(mods, to, of, values, expected):
    got = conversion(mods, DTYPES[to], DTYPES[of])(np.array(values, DTYPES[of]))
    assert got.tolist() == expected and got.dtype == DTYPES[to]
