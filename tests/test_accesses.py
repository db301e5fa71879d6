"""What one warp touches, as data for pictures: against the kernel's own index arithmetic."""

import numpy as np

from sgemm_lab.ladder import ladder
from sgemm_lab.run.profile import accesses, profile_variant
from sgemm_lab.show import charts


def test_a_naive_warp_reads_one_element_of_a_and_its_row_of_b():
    found = accesses(ladder[1], 64, 96, 8, block=4, warp=3)  # block (1, 1) of 3×2: rows from 32
    loads = [each for each in found if each.kind == "load"]
    first = {array: next(each for each in loads if each.array == array) for array in "AB"}
    rows, columns = first["A"].elements(8)
    assert (rows == 32 + 3).all() and (columns == 0).all() and first["A"].sectors == 1
    rows, columns = first["B"].elements(96)
    assert (rows == 0).all() and columns.tolist() == list(range(32, 64))
    assert first["B"].sectors == 4
    assert [each.array for each in found if each.kind == "store"] == ["C"]


def test_the_layouts_of_step_2_need_one_bank_each_or_one_bank_for_all():
    for layout, wavefronts, banks in ((0, 1, 32), (1, 32, 1)):
        found = accesses(ladder[2](LAYOUT=layout), 32, 32, 32)
        loads = [each for each in found if (each.space, each.kind) == ("shared", "load")]
        worst = max(loads, key=lambda each: len(np.unique(each.words)))
        assert worst.wavefronts == wavefronts and len(np.unique(worst.banks)) == banks


def test_the_accesses_of_all_warps_add_up_to_the_counters():
    variant, size = ladder[2](TILE=8), (16, 8, 20)
    found = [
        each
        for block in range(2)
        for warp in range(2)
        for each in accesses(variant, *size, block=block, warp=warp)
    ]
    counted = profile_variant(variant, *size).written
    loads = [each for each in found if (each.space, each.kind) == ("global", "load")]
    assert len(loads) == counted.global_load_requests
    assert sum(each.sectors for each in loads) == counted.global_load_sectors
    shared = [each for each in found if (each.space, each.kind) == ("shared", "load")]
    assert sum(each.wavefronts for each in shared) == counted.shared_load_wavefronts


def test_a_picture_of_banks_says_its_wavefronts_in_words():
    found = accesses(ladder[2](LAYOUT=1), 32, 32, 32)
    load = next(each for each in found if each.kind == "load" and each.space == "shared"
                and len(np.unique(each.words)) == 32)  # fmt: skip
    assert "32 words in 1 banks, wavefronts: 32" in repr(charts.banks(("transposed", load)))
