"""The counters' rules against what an H200 counted, row by row."""

import csv
from pathlib import Path

import numpy as np
import pytest

from sgemm_lab.simt.counters import (
    copy_sectors,
    global_sectors,
    shared_conflicts,
    shared_wavefronts,
)

HARDWARE = Path(__file__).parent / "hardware"


def rows(name):
    with open(HARDWARE / name, newline="") as file:
        return list(csv.DictReader(file))


def numbers(text):
    return np.array([int(word) for word in text.split()])


def lanes(mask):
    return np.array([int(mask, 16) >> lane & 1 for lane in range(32)], bool)


def test_every_measured_shared_access_costs_what_the_hardware_counted():
    table = rows("shared_wavefronts.csv")
    wrong = []
    for row in table:
        active, width = lanes(row["active_mask"]), int(row["width"])
        access = numbers(row["word_addresses"]), active, width, row["op"] == "st.shared"
        cost, conflicts = shared_wavefronts(*access), shared_conflicts(*access)
        if (cost, conflicts) != (
            float(row["wavefronts_per_inst"]),
            float(row["conflicts_per_inst"]),
        ):
            wrong.append((row["name"], cost, row["wavefronts_per_inst"]))
    assert len(table) == 2214
    assert not wrong


def test_every_measured_global_access_touches_the_sectors_the_hardware_counted():
    table = rows("global_sectors.csv")
    wrong = []
    for row in table:
        addresses, active = numbers(row["byte_addresses"]), lanes(row["active_mask"])
        if row["op"] == "cp.async.cg":
            count = copy_sectors(addresses, 4 * numbers(row["shared_word_addresses"]), active)
        else:
            count = global_sectors(addresses, active, int(row["width"]))
        if count != float(row["sectors_per_inst"]):
            wrong.append((row["name"], count, row["sectors_per_inst"]))
    assert len(table) == 613
    assert not wrong


def test_many_warps_at_once_give_what_each_gives_alone():
    rng = np.random.default_rng(3)
    words = rng.integers(0, 200, (50, 32)) * 4
    active = rng.random((50, 32)) < 0.7
    for width in (32, 64, 128):
        for store in (False, True):
            together = shared_wavefronts(words, active, width, store)
            alone = [
                shared_wavefronts(w, a, width, store) for w, a in zip(words, active, strict=True)
            ]
            assert together.tolist() == alone
    together = global_sectors(words * 4, active, 32)
    assert together.tolist() == [
        global_sectors(4 * w, a, 32) for w, a in zip(words, active, strict=True)
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: shared_wavefronts(np.arange(31), np.ones(31, bool), 32, False),
        lambda: shared_wavefronts(np.arange(32), np.ones(32, bool), 48, False),
        lambda: global_sectors(np.arange(32), np.ones(32, bool), 256),
    ],
)
def test_a_warp_of_the_wrong_shape_or_width_is_refused(call):
    with pytest.raises(ValueError, match=r"32 lanes|width is"):
        call()
