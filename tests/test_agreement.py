"""The table of agreement with hardware, as the pages show it."""

import json

import pytest

from sgemm_lab.run import agreement as module
from sgemm_lab.run.agreement import agreement, comparison


@pytest.mark.parametrize("arch", ["compute_75", "compute_90"])
def test_every_number_of_every_small_launch_is_the_hardwares(arch):
    found = agreement([(129, 65, 97), (200, 136, 72)], arch)
    assert found.launches == 96 and found.differences == ()
    assert found.equal == found.total and set(found.total.values()) == {96}


@pytest.mark.slow
def test_every_number_of_every_launch_is_the_hardwares():
    found = agreement()
    assert found.launches == 157 and found.equal == found.total, found.differences


def test_a_number_that_is_not_the_hardwares_is_named(tmp_path, monkeypatch):
    record = json.loads(module.COUNTED.read_text())
    row = next(r for r in record["rows"] if r["M"] == 129)
    row["counters"]["global_load_sectors"] += 1
    record["rows"] = [row]
    monkeypatch.setattr(module, "COUNTED", tmp_path / "counted.json")
    module.COUNTED.write_text(json.dumps(record))
    found = agreement()
    assert found.launches == 1 and len(found.differences) == 1
    assert "global_load_sectors is" in repr(found)


def test_the_ptx_machine_finds_what_any_tool_finds_and_cries_wolf_at_no_right_kernel():
    found = comparison()
    assert (found.mutants, found.right) == (102, 7)
    assert found.found["the PTX machine"] >= found.found["any of its tools"] > 60
    assert not found.false
