"""The ladder: what each step takes, refuses, and derives from its macros."""

import dataclasses
from importlib import import_module
from itertools import product

import numpy as np
import pytest

from sgemm_lab.ladder import GRID_LIMITS, ladder, source_hash
from sgemm_lab.run import nvrtc

TILED, NAIVE = ladder["02_tiled"], ladder["01_naive"]
FEW = dataclasses.replace(  # step 5 with a BK for which there are too many threads
    ladder[5],
    macros=(
        ladder[5].macros[0],
        dataclasses.replace(ladder[5].macros[1], choices=(8, 16)),
        dataclasses.replace(ladder[5].macros[2], default=4),
    ),
)


def test_a_step_is_found_by_number_and_by_stem():
    assert ladder[2] is ladder["02_tiled"]
    assert [step.number for step in ladder] == list(range(len(ladder)))
    assert 2 in ladder and "02_tiled" in ladder and 99 not in ladder
    with pytest.raises(
        KeyError, match=r"no step 99; the steps are 0 \(00_cublas\), 1 \(01_naive\)"
    ):
        ladder[99]


@pytest.mark.parametrize("step", list(ladder)[1:], ids=lambda step: step.stem)
def test_every_macro_stands_in_the_file_with_its_default(step):
    for macro in step.macros:
        assert f"#ifndef {macro.name}\n#define {macro.name} {macro.default} " in step.source
        assert macro.default in macro.choices


@pytest.mark.parametrize(
    ("step", "macros", "sentence"),
    [
        (TILED, {"TILE": 64}, "TILE=64 needs 64×64 = 4096 threads; a block may have 1024. "
                              "Choose 8, 16 or 32."),
        (TILED, {"TILE": 0}, "TILE=0 is not a choice. Choose 8, 16 or 32."),
        (TILED, {"TILE": -8}, "TILE=-8 is negative. Choose 8, 16 or 32."),
        (TILED, {"TILE": 12}, "TILE=12 is not a choice. Choose 8, 16 or 32."),
        (TILED, {"TILE": 16.0}, "TILE=16.0 is not a whole number. Choose 8, 16 or 32."),
        (TILED, {"TILE": "16"}, "TILE='16' is not a whole number. Choose 8, 16 or 32."),
        (TILED, {"TIEL": 16}, "02_tiled has no macro TIEL. "
                              "It takes TILE, ACCUMULATORS and LAYOUT."),
        (TILED, {"ACCUMULATORS": 3}, "ACCUMULATORS=3 is not a choice. Choose 1, 2 or 4."),
        (NAIVE, {"BLOCK_X": 64, "BLOCK_Y": 32, "COALESCED": 0},
         "BLOCK_X=64 BLOCK_Y=32 needs 64×32 = 2048 threads; a block may have 1024. "
         "Choose BLOCK_Y 4, 8 or 16."),
        (NAIVE, {"BLOCK_X": 64}, "BLOCK_X=64 needs 64×32 = 2048 threads; a block may have 1024. "
                                 "Choose 8, 16 or 32."),
        (ladder[8], {"TM": 4}, "TM=4 leaves a tile of A of 128×8 = 1024 elements to 1024 threads, "
                               "4 at a time; all must fetch equally often. Choose 8."),
        (ladder[7], {"TILE": 128, "BK": 8, "TM": 4},
         "TILE=128 BK=8 TM=4 leaves a tile of A of 128×8 = 1024 elements to 1024 threads, 4 at a "
         "time; all must fetch equally often. Choose TM 8."),
        (ladder[6], {"TM": 8}, "TM=8 leaves a tile of A of 64×16 = 1024 elements to 512 threads, "
                               "4 at a time; all must fetch equally often. Choose 16."),
        (ladder[5], {"TM": 2}, "TM=2 needs 64×32 = 2048 threads; a block may have 1024. "
                               "Choose 4, 8 or 16."),
        (FEW, {"BK": 8}, "BK=8 leaves a tile of A of 64×8 = 512 elements to 1024 threads, one at a "
                         "time; all must fetch equally often. Choose 16."),
        (ladder[11], {"BK": 32}, "BK=32 needs 66560 bytes of shared memory; a block may have 49152."
                                 " Choose 8 or 16."),
        (ladder[0], {"TILE": 16}, "00_cublas has no macro TILE. It takes none."),
    ],
)  # fmt: skip
def test_an_illegal_macro_is_refused_in_a_sentence(step, macros, sentence):
    assert step.problem(**macros) == sentence
    with pytest.raises(ValueError) as error:
        step(**macros)
    assert str(error.value) == sentence


def test_a_value_that_an_explorer_shows_and_refuses_is_illegal():
    for step in ladder:
        for macro in step.macros:
            assert all(step.problem(**{macro.name: value}) for value in macro.shown)


@pytest.mark.parametrize("step", [step for step in ladder if step.fetches], ids=lambda s: s.stem)
def test_the_threads_of_a_block_share_out_its_tiles_evenly(step):
    """What the kernel's own static_assert asks for."""
    for variant in step.variants():
        BM, BN, BK = variant.tile
        for elements in (BM * BK, BK * BN):
            assert elements % (step.fetches * variant.threads) == 0, variant
    bad = [m for m in _settings(step) if (step.problem(**m) or "").count("equally often")]
    assert bad or step.fetches == 1, "the ladder refuses some"
    for macros in bad[:2]:
        options = [f"-D{name}={value}" for name, value in macros.items()]
        with pytest.raises(nvrtc.CompileError, match="equally many"):
            nvrtc.compile_ptx(step.source, options)


def _settings(step):
    names = [macro.name for macro in step.macros]
    choices = product(*(macro.choices for macro in step.macros))
    return [dict(zip(names, values, strict=True)) for values in choices]


def test_variants_are_all_legal_and_all_different():
    assert len(TILED.variants()) == 3 * 3 * 2
    assert len(NAIVE.variants()) == 2 * (4 * 4 - 1)  # 64×32 threads are too many
    for step in ladder:
        assert len({variant.key for variant in step.variants()}) == len(step.variants())
    assert ladder[0].variants() == (ladder[0](),)


def test_a_variant_knows_its_names_and_options():
    variant = TILED(TILE=16)
    assert variant.options == ("-DTILE=16", "-DACCUMULATORS=1", "-DLAYOUT=0")
    assert variant.key == "02_tiled TILE=16 ACCUMULATORS=1 LAYOUT=0"
    assert variant.label == "TILE=16"
    assert TILED().label == "default"
    assert variant == TILED(TILE=16) and hash(variant) == hash(TILED(TILE=16))
    with pytest.raises(TypeError):
        variant.macros["TILE"] = 8


def test_tiled_derives_block_tile_and_shared_memory_from_tile():
    variant = TILED(TILE=16)
    assert variant.block == (16, 16) and variant.threads == 256
    assert variant.tile == (16, 16, 16)
    assert variant.shared_bytes == 2 * 16 * 16 * 4
    assert variant.grid(33, 65) == (5, 3)  # x along the columns
    assert variant.grid(33, 16 * 16 + 1) == (9, 3, 2)  # in strips, none wider than 16 tiles


def test_naive_walks_columns_or_rows_along_x():
    across = NAIVE(BLOCK_X=64, BLOCK_Y=4)
    down = NAIVE(BLOCK_X=64, BLOCK_Y=4, COALESCED=0)
    assert across.tile == (4, 64, 1) and across.grid(130, 65) == (2, 33)
    assert down.tile == (64, 4, 1) and down.grid(130, 65) == (3, 17)


@pytest.mark.parametrize("size", [65535 * 8, 65535 * 8 + 1, 4_000_000, 2**31 - 1])
@pytest.mark.parametrize("variant", [TILED(TILE=8), NAIVE(), NAIVE(COALESCED=0)], ids=str)
def test_the_grid_is_legal_and_covers_c_however_long_it_is(variant, size):
    by_rows = variant.step.x_walks_rows(variant.macros)
    BM, BN, _ = variant.tile
    for M, N in ((size, 3), (3, size)):
        x, y, z = (*variant.grid(M, N), 1)[:3]
        assert all(b <= most for b, most in zip((x, y, z), GRID_LIMITS, strict=True))
        if variant.step.strip and y < GRID_LIMITS[1] // 2:
            x, z = x * z, 1
        along_x, along_y = x * (BM if by_rows else BN), y * z * (BN if by_rows else BM)
        assert along_x >= (M if by_rows else N)
        assert along_y >= (N if by_rows else M)
        assert max(along_x, along_y) < 2**32, "the kernels count in unsigned"


@pytest.mark.parametrize("most", [65535, 7], ids=["all of y", "y folded"])
@pytest.mark.parametrize("variant", [TILED(TILE=8), NAIVE(), NAIVE(COALESCED=0)], ids=str)
def test_the_corners_of_the_blocks_are_those_of_the_tiles_each_once(variant, most, monkeypatch):
    monkeypatch.setattr(import_module("sgemm_lab.ladder"), "GRID_LIMITS", (2**31 - 1, most, 65535))
    (M, N), (BM, BN, _) = (101, 403), variant.tile
    rows, columns = variant.corner(np.arange(np.prod(variant.grid(M, N))), M, N)
    inside = (rows < M) & (columns < N)  # the last strip, or the last fold of y, may go beyond
    found = sorted(zip(rows[inside], columns[inside], strict=True))
    assert found == [(row, column) for row in range(0, M, BM) for column in range(0, N, BN)]


def test_the_hash_ignores_comments_and_blanks_but_no_token():
    source = TILED.source
    assert source_hash("/* new */ " + source.replace("    ", "\t") + "\n// end") == source_hash(
        source
    )
    assert source_hash(source.replace("k0 < K", "k0 <= K")) != source_hash(source)
    assert source_hash("int ab;") != source_hash("int a b;")
    assert source_hash('"// text"') != source_hash('"/ text"')


def test_a_step_may_carry_its_own_source():
    step = dataclasses.replace(TILED, text="// mine")
    assert step().step.source == "// mine"
    with pytest.raises(ValueError, match="no source"):
        _ = ladder[0].source
