"""Registers and shared memory as ptxas reports them; occupancy against known figures."""

from dataclasses import asdict

import pytest

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import records
from sgemm_lab.run import nvrtc
from sgemm_lab.run.resources import REPORTED, Resources, occupancy, parse, resources

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
PINNED = "12.9.86"  # other versions allocate differently
T4, A100, L4, H100 = (devices[key] for key in ("t4", "a100", "l4", "h100"))

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_75'
ptxas info    : Function properties for first
ptxas         .     24 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 49152 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 4.000 ms
ptxas info    : Compiling entry function 'second' for 'sm_75'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 400 bytes cmem[0]
"""


def test_the_report_is_read_for_each_kernel_of_a_file():
    assert parse(LOG) == {
        "first": Resources(255, 49152, 24, 16, 12),
        "second": Resources(8, 0, 0, 0, 0),
    }
    with pytest.raises(ValueError, match="ptxas reported no registers"):
        parse(LOG.replace("Used 8 registers", ""))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("step", list(ladder)[1:], ids=lambda step: step.stem)
def test_no_default_spills_and_the_ladder_states_its_shared_memory(step, arch):
    """From the record, which other tests compare with the compiler."""
    for variant in step.variants():
        found = records.resources(variant, arch)
        assert found.shared_bytes == variant.shared_bytes <= 48 * 1024, variant
        assert found.registers * variant.threads <= 65536, variant
    default = records.resources(step(), arch)
    assert (default.stack, default.spill_stores, default.spill_loads) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(nvrtc.version() != PINNED, reason=f"other NVRTC than {PINNED}, or none")
@pytest.mark.parametrize("step", list(ladder)[1:], ids=lambda step: step.stem)
def test_what_is_recorded_of_every_setting_is_what_the_compiler_says(step):
    for variant in step.variants():
        for arch in ARCHITECTURES:
            found = asdict(resources(variant, arch))
            assert found == dict(records.resources(variant, arch).values), (variant, arch)


@pytest.mark.skipif(nvrtc.version() != PINNED, reason=f"other NVRTC than {PINNED}, or none")
def test_four_accumulators_take_about_the_registers_that_r2_publishes():
    """R2's tiled kernel on sm_75: 62 registers, 8192 bytes of shared memory, no spills."""
    found = resources(ladder[2](TILE=32, ACCUMULATORS=4), "sm_75")
    (r2,) = (each for each in REPORTED if each.step == 2 and each.shared_bytes)
    assert abs(found.registers - r2.registers) <= 2
    assert found.shared_bytes == r2.shared_bytes
    assert found.spill_stores == found.spill_loads == r2.spill_stores == 0


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "blocks", "fraction", "limiter"),
    [
        # R1 on a T4: 1024 threads, 42 registers; its profiler saw 99.97 % of the warps
        (T4, 1024, 42, 8192, 1, 1.0, "threads"),
        (T4, 256, 42, 2048, 4, 1.0, "threads"),
        # 65 registers take 9 units of 256 a warp: 7 warps a quarter, too few for a block of 32
        (T4, 1024, 65, 8192, 0, 0.0, "registers"),
        (T4, 256, 65, 2048, 3, 0.75, "registers"),
        # 48 KiB of the T4's 64: one block
        (T4, 256, 32, 48 * 1024, 1, 0.25, "shared memory"),
        # small blocks: at most 16 on a T4, so half of its warps
        (T4, 32, 32, 0, 16, 0.5, "blocks"),
        # R2 on an H100: two blocks of 1024 threads, if they have 32 registers
        (H100, 1024, 32, 8192, 2, 1.0, "threads"),
        (H100, 1024, 33, 8192, 1, 0.5, "registers"),
        # 48 KiB + 1 KiB reserved: three in the A100's 164 KiB, four in the H100's 228 KiB
        (A100, 256, 32, 48 * 1024, 3, 0.375, "shared memory"),
        (H100, 256, 32, 48 * 1024, 4, 0.5, "shared memory"),
        # 1536 threads on an L4 hold one block of 1024
        (L4, 1024, 32, 8192, 1, 2 / 3, "threads"),
        (L4, 256, 40, 16 * 1024, 5, 40 / 48, "shared memory"),
        # 255 registers: two warps a quarter
        (A100, 128, 255, 0, 2, 0.125, "registers"),
    ],
)
def test_occupancy_agrees_with_nvidias_rules(
    device, threads, registers, shared, blocks, fraction, limiter
):
    found = occupancy(device, threads, registers, shared)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.fraction == pytest.approx(fraction)
    assert found.warps == blocks * -(-threads // 32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"threads": 1025}, "threads=1025: a block has 1 to 1024 threads"),
        ({"threads": 0}, "threads=0"),
        ({"registers": 256}, "registers=256: a thread has 0 to 255"),
        ({"shared_bytes": 64 * 1024 + 1}, "a block on T4 may have up to 65536"),
    ],
)
def test_a_block_that_fits_no_sm_is_refused(wrong, message):
    block = {"threads": 256, "registers": 32, "shared_bytes": 0}
    with pytest.raises(ValueError, match=message):
        occupancy(T4, **(block | wrong))
