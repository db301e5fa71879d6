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


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_bfind_is_the_highest_bit_that_is_not_the_sign(kind):
    bits, values = int(kind[1:]), [wrap(v, kind) for v in EDGES]
    find = ELEMENTWISE["bfind"]((), DTYPES[kind])[0]
    shift = ELEMENTWISE["bfind"](("shiftamt",), DTYPES[kind])[0]
    a = np.array(values, DTYPES[kind])
    for value, at, away in zip(values, find(a).tolist(), shift(a).tolist(), strict=True):
        top = (value if value >= 0 else ~value).bit_length() - 1
        assert (at, away) == ((top, bits - 1 - top) if top >= 0 else (2**32 - 1,) * 2)


@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_mul24_multiplies_the_low_24_bits(kind):
    a, b = np.array([0x12FFFFFF, 0x00800001, 5]), np.array([0x34000003, 0x007FFFFF, 7])
    sign = 1 << 23 if kind == "s32" else 0
    x, y = (((v & 0xFFFFFF) ^ sign) - sign for v in (a, b))
    a, b = (v.astype(DTYPES[kind]) for v in (a, b))
    for mods, shift in ((("lo",), 0), (("hi",), 16)):
        got = ELEMENTWISE["mul24"](mods, DTYPES[kind])[0](a, b)
        assert (got.astype("i8") - (x * y >> shift) & 0xFFFFFFFF == 0).all()


def test_instructions_with_two_types_compare_choose_and_sum_products_of_bytes():
    u32, s32, f32 = (DTYPES[kind] for kind in ("u32", "s32", "f32"))
    a, b = np.array([1, 5], "u4"), np.array([3, 3], "u4")
    assert opcodes.TWO_TYPES["set"](("gt",), u32, u32)[0](a, b).tolist() == [0, 2**32 - 1]
    assert opcodes.TWO_TYPES["set"](("gt",), f32, u32)[0](a, b).tolist() == [0, 1]
    both = opcodes.TWO_TYPES["set"](("gt", "or"), u32, u32)[0]
    assert both(a, b, np.array([True, False])).tolist() == [2**32 - 1] * 2
    choice = opcodes.TWO_TYPES["slct"]((), u32, s32)[0]
    assert choice(a, b, np.array([-1, 0], "i4")).tolist() == [3, 5]
    bytes_a, bytes_b = np.array([0xFF010203], "u4"), np.array([0x02030405], "u4")
    total = 1 * 3 + 2 * 4 + 3 * 5 + 100
    for kind, first in ((s32, -1), (u32, 255)):
        dp4a = opcodes.TWO_TYPES["dp4a"]((), kind, u32)[0]
        assert (
            dp4a(bytes_a.view(kind), bytes_b, np.array([100], "u4"))[0]
            == (total + 2 * first) % 2**32
        )


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


def floats(kind, exponents, size=2000, seed=2):
    """Numbers of all sizes that PTX type `kind` has, and its special ones."""
    rng, dtype = np.random.default_rng(seed), DTYPES[kind]
    info = np.finfo(dtype)
    special = [0.0, -0.0, 1, -1, 1 + info.eps, info.max, info.tiny, info.smallest_subnormal]
    with np.errstate(all="ignore"):
        wide = np.ldexp(rng.standard_normal(size), rng.integers(*exponents, size)).astype(dtype)
    return np.concatenate([wide, rng.choice(np.array(special, dtype), 200)])


def exact_fma(x, y, z, kind):
    """x·y + z rounded once, by comparing exact fractions with neighbouring numbers."""
    dtype = DTYPES[kind].type
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if not exact:
        return dtype(float(x) * float(y) + float(z))
    most = Fraction(float(np.finfo(dtype).max))
    if abs(exact) >= most + most / 2 ** (np.finfo(dtype).nmant + 2):
        return dtype(np.inf if exact > 0 else -np.inf)
    guess = dtype(exact.numerator / exact.denominator)
    near = [guess, np.nextafter(guess, dtype(-np.inf)), np.nextafter(guess, dtype(np.inf))]
    bits = f"u{guess.itemsize}"
    near = [n for n in near if np.isfinite(n)]
    best = min(near, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(bits)) & 1))
    return best if best else dtype(0.0 if exact > 0 else -0.0)


@pytest.mark.parametrize("kind, exponents", [
    ("f16", (-24, 16)), ("f32", (-20, 20)), ("f32", (-149, 127)), ("f32", (-80, -60)),
    ("f64", (-60, 60)), ("f64", (-1074, 1023)), ("f64", (-540, -500)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_fma_rounds_once(kind, exponents):
    a, b, c = (floats(kind, exponents, seed=seed) for seed in range(3))
    c[:500] = -a[:500] * b[:500]  # what cancels
    c[500:900] = a[500:900] * 2.0**-30
    got = opcodes.rule("fma", ("rn",), DTYPES[kind])[0](a, b, c)
    bits = f"u{got.itemsize}"
    for x, y, z, g in zip(a, b, c, got, strict=True):
        if np.isfinite([x, y, z]).all():
            assert g.view(bits) == exact_fma(x, y, z, kind).view(bits), (x, y, z)


def test_float_fma_rounds_once_where_float64_sees_a_tie():
    f = np.float32
    a, one = np.array([1 + 2.0**-12], f), np.array([1], f)
    above, below = (np.array([s * 2.0**-90], f) for s in (1, -1))
    tie = f(1 + 2.0**-11)  # (1 + 2⁻¹²)² = 1 + 2⁻¹¹ + 2⁻²⁴
    assert opcodes.fma32(a, a, above)[0] == np.nextafter(tie, f(2))
    assert opcodes.fma32(a, a, below)[0] == tie
    tiny = np.array([2.0**-75], f)
    got = opcodes.fma32(tiny, tiny, np.array([2.0**-149], f)), opcodes.fma32(one, one, one)
    assert got[0][0] == 2.0**-148 and got[1][0] == 2  # subnormal: 1½ units are a tie, to even


@pytest.mark.filterwarnings("ignore")
def test_infinity_and_nan_go_through_fma():
    for kind in ("f16", "f32", "f64"):
        inf, one, nan = (np.array([x], DTYPES[kind]) for x in (np.inf, 1, np.nan))
        fma = opcodes.rule("fma", ("rn",), DTYPES[kind])[0]
        assert fma(inf, one, one)[0] == np.inf and fma(one, one, -inf)[0] == -np.inf
        assert np.isnan(fma(inf, one, -inf)[0]) and np.isnan(fma(one, nan, one)[0])


@pytest.mark.parametrize("mode, towards", [("rz", 0), ("rm", -np.inf), ("rp", np.inf)])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_directed_rounding_takes_the_neighbour_on_the_other_side(op, mode, towards):
    function, dtypes = opcodes.rule(op, (mode,), DTYPES["f32"])
    xs = [floats("f32", (-30, 30), 500, seed) for seed in range(len(dtypes))]
    exact = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "fma": lambda a, b, c: a * b + c,
    }[op]  # fmt: skip
    with np.errstate(all="ignore"):
        results = function(*xs)
    for got, *values in zip(results, *xs, strict=True):
        true = exact(*(Fraction(float(v)) for v in values))
        if not np.isfinite(got) or abs(true) > 2.0**127:
            continue
        error = Fraction(float(got)) - true
        step = np.nextafter(got, np.float32(-np.inf if error > 0 else np.inf))
        assert not error or abs(error) < abs(Fraction(float(step)) - Fraction(float(got)))
        sign = {"rz": -1 if true > 0 else 1, "rm": -1, "rp": 1}[mode]
        assert error * sign >= 0


def test_a_rounding_mode_that_is_not_covered_is_refused():
    assert opcodes.rule("div", ("rz",), DTYPES["f32"]) is None
    assert opcodes.rule("add", ("rz",), DTYPES["f64"]) is None


def test_double_fma_keeps_what_cancels():
    a = np.array([1 + 2.0**-30]), np.array([1 - 2.0**-30]), np.array([-1.0])
    assert opcodes.fma64(*a)[0] == -(2.0**-60)


def test_min_and_max_prefer_a_number_to_nan():
    x, y = np.array([np.nan, 1, 2], "f4"), np.array([5, np.nan, 1], "f4")
    assert ELEMENTWISE["min"]((), DTYPES["f32"])[0](x, y).tolist() == [5, 1, 1]
    assert ELEMENTWISE["max"]((), DTYPES["f32"])[0](x, y).tolist() == [5, 1, 2]


def test_min_and_max_tell_zeros_by_their_sign():
    for x, y in ((0.0, -0.0), (-0.0, 0.0)):
        a, b = np.array([x], "f4"), np.array([y], "f4")
        assert np.signbit(ELEMENTWISE["min"]((), DTYPES["f32"])[0](a, b)[0])
        assert not np.signbit(ELEMENTWISE["max"]((), DTYPES["f32"])[0](a, b)[0])


def test_saturation_makes_plus_zero_of_what_is_no_positive_number():
    add = opcodes.rule("add", ("sat",), DTYPES["f32"])[0]
    got = add(np.array([-0.0, np.nan, -3, 0.25, 7], "f4"), np.array([-0.0], "f4"))
    assert got.tolist() == [0, 0, 0, 0.25, 1] and not np.signbit(got).any()
    fma = opcodes.rule("fma", ("rn", "sat"), DTYPES["f32"])[0]
    assert fma(*(np.array([x], "f4") for x in (2, 3, 4)))[0] == 1
    whole = opcodes.rule("add", ("sat",), DTYPES["s32"])[0]
    assert whole(np.array([2**31 - 1], "i4"), np.array([5], "i4"))[0] == 2**31 - 1


@pytest.mark.parametrize("op, values, expected", [
    ("div", [1e-40, 1.0], 0.0), ("div", [1e-38, 3.0], 0.0), ("sqrt", [1e-40], 0.0),
    ("rcp", [1e-40], np.inf), ("mul", [1e-30, 1e-10], 0.0), ("min", [1e-40, -1e-40], 0.0),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_every_float_instruction_can_flush_to_zero(op, values, expected):
    function, _ = opcodes.rule(op, ("rn", "ftz"), DTYPES["f32"])
    assert function(*(np.array([x], "f4") for x in values))[0] == expected


def test_comparisons_and_conversions_can_flush_to_zero():
    tiny, zero = np.array([1e-40], "f4"), np.zeros(1, "f4")
    assert comparison("gt", DTYPES["f32"])(tiny, zero)[0]
    assert not comparison("gt", DTYPES["f32"], ftz=True)(tiny, zero)[0]
    assert conversion(("ftz",), DTYPES["f64"], DTYPES["f32"])(tiny)[0] == 0
    assert conversion(("rpi", "ftz"), DTYPES["s32"], DTYPES["f32"])(tiny)[0] == 0
    assert conversion(("rn", "ftz"), DTYPES["f32"], DTYPES["f64"])(np.array([1e-40]))[0] == 0


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
    (("rzi",), "u32", "f32", [np.nan, -np.inf, np.inf], [0, 0, 2**32 - 1]),
    (("rzi",), "s64", "f32", [np.nan], [-(2**63)]),
    (("rzi",), "u64", "f32", [np.nan], [2**63]),
    (("rzi",), "s32", "f64", [np.nan], [-(2**31)]),
    (("rzi",), "u16", "f64", [np.nan], [2**15]),
    (("rz",), "f32", "f64", [0.1, -0.1, 1e39], [0.09999999403953552, -0.09999999403953552,
                                                float(np.finfo("f4").max)]),
    (("sat",), "u64", "s32", [-5, 7], [0, 7]),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_conversions_round_and_saturate_as_ptx_says(mods, to, of, values, expected):
    got = conversion(mods, DTYPES[to], DTYPES[of])(np.array(values, DTYPES[of]))
    assert got.tolist() == expected and got.dtype == DTYPES[to]
