"""Lower bounds of the time: below every measured time, and what they are made of."""

import json
import shutil
from dataclasses import fields
from math import prod
from types import SimpleNamespace

import pytest
from conftest import benchmark

from sgemm_lab.devices import devices
from sgemm_lab.ladder import ladder
from sgemm_lab.measure import limits as module
from sgemm_lab.measure import records
from sgemm_lab.measure.limits import COUNTED, limits, load_slots, measured, rates
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.run import nvrtc
from sgemm_lab.run.sample import sample
from sgemm_lab.simt.counters import Counters, shared_wavefronts

throughput = benchmark("throughput")


def by_name(found):
    return {limit.name: limit for limit in found.rows}


def test_no_bound_exceeds_a_measured_time():
    again = records.runs_of(records.read(MEASUREMENTS / "repeat_h200.json"))
    runs = [*records.runs("h200", kind="measured"), *again]
    runs = [run for run in runs if run.step and not run.stale]
    assert len(runs) > 1000
    exceeded = []
    for run in runs:
        variant = ladder[run.step](**run.macros)
        sizes = run.M, run.N, run.K
        if all(size >= tile for size, tile in zip(sizes, variant.tile, strict=True)):
            bound = limits(variant, "h200", *sizes).binding
            if 1e3 * bound.seconds > run.ms_min:
                exceeded.append((run.kernel, sizes, bound, run.ms_min))
            # from the second launch on L2 is not empty, as this limit has it
            assert bound.name != "DRAM", run
    assert not exceeded


@pytest.mark.parametrize("number", range(5, 12))
def test_the_limiter_explains_most_of_the_time(number):
    (run,) = records.runs("h200", number, ladder[number]().macros, 4096, "measured")
    assert 1e3 * limits(ladder[number], "h200", 4096, 4096, 4096).binding.seconds > 0.6 * run.ms


def test_no_bound_exceeds_what_others_report_of_a_t4():
    runs = [run for run in records.runs("t4", kind="reported") if run.step]
    assert {run.label for run in runs} == {"R1", "R2", "ladder a", "ladder b"}
    for run in runs:
        found = limits(ladder[run.step](**run.macros), "t4", run.M, run.N, run.K)
        assert run.gflops < found.gflops, run


@pytest.mark.parametrize("number", [1, 2, 6, 7, 9, 11])
def test_what_is_counted_grows_evenly_with_the_product(number):
    variant, shape = ladder[number](), (128, 384, 96)
    once, here = records.counters(variant, *COUNTED), sample(variant, *shape).counters
    for name in (f.name for f in fields(Counters) if f.name not in ("instructions", "by_class")):
        whole = 2 if "global_store" in name else 3  # C doesn't grow with K
        factor = prod(shape[:whole]) / prod(COUNTED[:whole])
        assert getattr(here, name) == getattr(once, name) * factor, name


@pytest.mark.parametrize("number", [2, 5, 6, 8, 10])
def test_whole_tiles_are_less_work_than_the_kernel_does(number):
    variant = ladder[number]()
    BM, BN, BK = variant.tile
    M, N, K = 2 * BM + 1, BN + 3, 2 * BK + 1
    odd, whole = (by_name(limits(variant, "t4", *s)) for s in ((M, N, K), (2 * BM, BN, 2 * BK)))
    assert odd.pop("DRAM").seconds > whole.pop("DRAM").seconds  # the matrices as they are
    assert odd == whole
    done, once = sample(variant, M, N, K).counters, records.counters(variant, *COUNTED)
    for name in ("ffma", "global_load_requests", "global_load_sectors", "shared_load_wavefronts",
                 "shared_store_wavefronts", "shared_load_instructions"):  # fmt: skip
        taken = getattr(once, name) * 4 * BM * BN * BK / prod(COUNTED)
        assert taken <= getattr(done, name), name


def test_the_limits_of_a_tiled_kernel_on_a_t4_are_those_worked_out_by_hand():
    """40 blocks an SM. A tile: 32 warps, 32 multiply-adds each, for which B is loaded 32 times (one
    wavefront) and A eight times (two); 64 stores; 64 sectors lie in each of 64 requests' lines."""
    found = by_name(limits(ladder[2](), "t4", 1280, 1280, 64))
    hertz, tiles = 1590e6, 2 * 40
    assert found["multiply-adds"].seconds == pytest.approx(tiles * 1024 / 2 / hertz)
    issued = 1024 + 1024 + 256 + 64 + 64
    assert found["issue slots"].seconds == pytest.approx(tiles * issued / 4 / hertz)
    assert found["shared memory"].seconds == pytest.approx(tiles * (1024 + 512 + 64) * 2 / hertz)
    # one block of 1024 threads at a time: rows and columns of one tile each
    assert found["L2"].seconds == pytest.approx(1600 * 64 * 64 * 4 / 1270e9)
    assert found["DRAM"].seconds == pytest.approx((2 * 1280 * 64 * 4 + 1280**2 * 4 - 2**22) / 320e9)
    # the stores take longer than a fetch that hits L1, 32 cycles
    assert found["latency"].seconds == pytest.approx(tiles * (2 * 1536 + 2 * 64 + 19) / hertz)
    assert found["latency"].busy == "99 % shared memory"


def test_the_largest_limit_binds():
    found = limits(ladder[8](), "h200", 4096, 4096, 4096)
    assert found.binding in found.known
    assert all(limit.seconds <= found.binding.seconds for limit in found.known)
    assert found.gflops == pytest.approx(2 * 4096**3 / found.binding.seconds * 1e-9)


def test_a_block_more_than_sms_makes_one_sm_work_longer():
    full, more = (limits(ladder[8](), "h200", 128, 128 * 132 * n + 128 * m, 4096)
                  for n, m in ((3, 0), (3, 1)))  # fmt: skip
    assert full.binding.name == more.binding.name == "issue slots"
    assert full.uneven.seconds == 0
    assert more.binding.seconds == pytest.approx(full.binding.seconds * 4 / 3)
    assert more.uneven.seconds == pytest.approx(full.binding.seconds * (4 - 397 / 132) / 3)
    assert "busiest SM has 4 blocks, 3.008 on average" in more.uneven.how


def test_where_latency_binds_an_uneven_share_is_no_part_of_it():
    found = limits(ladder[8](), "h200", 256, 256, 256)
    assert found.binding.name == "latency" and found.uneven is None


def alone(number, fetch, **rates):
    """What one tile takes on an H200, with made-up waits."""
    variant, known = ladder[number](TILE=128, BK=8, TM=8), module.Rates("made up", **rates)
    tile = module._tile(variant, MEASUREMENTS)
    assert (tile.ffma, tile.loads, tile.store_wavefronts) == (4096, 256, 64)
    return module._alone(variant, tile, devices["h200"], known, fetch)[0]


@pytest.mark.parametrize(
    ("fetch", "barrier", "longest"),
    [(100, 20, {"fetch": 100}), (30, 70, {"barrier": 70}), (30, 20, {"shared memory": 64})],
)
def test_of_fetch_barrier_and_stores_only_the_longest_counts(fetch, barrier, longest):
    waits = {"shared": 10, "barrier": barrier, "handoff": 25}
    work = {"issue slots": 1088 - 10}
    assert alone(9, fetch, **waits) == work | longest | {"from store to load": 25}


def test_a_kernel_that_prefetches_waits_for_its_fetch_only_if_that_is_longer_than_its_work():
    waits = {"shared": 10, "barrier": 20, "handoff": 25}
    end = {"from store to load": 25}
    for number, stores in ((10, {"shared memory": 64}), (11, {})):
        assert alone(number, 300, **waits) == {"issue slots": 1078} | stores | end
        assert alone(number, 3000, **waits) == {"fetch": 2990} | end


def test_a_lone_block_of_two_warps_keeps_half_of_the_schedulers_idle():
    two, eight = ladder[8](TILE=64, BK=8, TM=8), ladder[8]()
    assert (two.threads, eight.threads) == (64, 256)
    for variant, times in ((two, 2), (eight, 1)):
        found = by_name(limits(variant, "t4", *variant.tile))  # one tile, on one SM
        wait = (rates("t4").shared + rates("t4").l2) / 1590e6
        assert found["latency"].seconds - wait == pytest.approx(
            times * found["multiply-adds"].seconds, rel=1e-6
        )


def test_a_naive_warp_takes_a_line_for_each_row_of_c_and_one_of_b():
    for macros, lines in (
        ({}, 2), ({"BLOCK_X": 8}, 5), ({"BLOCK_X": 64, "BLOCK_Y": 4}, 2), ({"COALESCED": 0}, 33),
        ({"COALESCED": 0, "BLOCK_X": 16}, 17),
    ):  # fmt: skip
        variant = ladder[1](**macros)
        count = SimpleNamespace(ffma=32 * 100)
        assert module._lines(variant, count) == lines * 100


def test_what_has_no_source_is_left_out_and_says_so():
    found = limits(ladder[2](), "l4", 256, 256, 256)
    unknown = [limit for limit in found.rows if limit.seconds is None]
    assert [limit.name for limit in unknown] == ["L1", "L2"]
    assert all("no source" in limit.how for limit in unknown)
    wait = "waiting for a fetch, a barrier, a load"
    assert found.left_out == ("L1", "L2", wait)
    assert f"{wait} left out: no source" in found.rows[-1].how and " 0 " not in found.rows[-1].how
    assert limits(ladder[2](), "t4", 256, 256, 256).left_out == ("L1", "waiting for a barrier")
    assert limits(ladder[2](), "h200", 256, 256, 256).left_out == ()
    assert limits(ladder[1](), "h200", 256, 256, 256).left_out == ()


def test_what_cannot_be_bounded_is_refused_in_words():
    with pytest.raises(ValueError, match=r"64×64×7 has no whole tile of 64×64×16"):
        limits(ladder[7](), "t4", 64, 64, 7)
    with pytest.raises(ValueError, match="'gtx' is not known; known are t4"):
        limits(ladder[7](), "gtx", 64, 64, 64)


# ---------------------------------------------------------------------------------- the rates


class FakeUnit:
    """A GPU whose every run takes 1000 cycles a turn, and 2 ms."""

    stand = SimpleNamespace(gpu_name="Tesla T4", l2=4 << 20, provenance=lambda: {"driver": "1"})
    sms = 40

    def __init__(self):
        self.streams = []

    def run(self, kernel, n, *more, words=4, blocks=1, threads=1024, cold=False):
        assert threads <= 1024 and words in (1, 2, 4)
        if kernel == "stream":
            self.streams.append((*map(int, more[1:]), blocks, threads))
        return 1000.0 * n, 2.0, 1590.0

    def ring(self, size, stride, steps):
        assert steps <= size // stride
        return 0


@pytest.fixture
def made(tmp_path):
    """A directory with the book's counters and a made-up rates_t4.json."""
    for name in ("counters", "resources"):
        shutil.copy(MEASUREMENTS / f"{name}.json", tmp_path)
    record = throughput.record(FakeUnit(), "abc")
    throughput.write(tmp_path / "rates_t4.json", record)
    return tmp_path


def test_measured_rates_take_the_place_of_cited_ones(made):
    assert "Jia et al." in rates("t4").source
    known = rates("t4", made)
    assert known.source.startswith("measured on Tesla T4; of L2 what all SMs received")
    assert known.l2 == 1000 and known.handoff == 62  # 1000 / 16
    assert known.lines == pytest.approx(32 / (1000 / 256), rel=1e-3)
    assert by_name(limits(ladder[1](), "t4", 256, 256, 256, made))["L1"].seconds > 0


def test_what_is_measured_is_worked_out_from_cycles(made):
    record = measured("t4", made)
    assert record["rates"]["ffma_lanes"] == pytest.approx(262.1)  # 256 · 1024 in 1000 cycles
    assert record["latencies"]["ffma"] == pytest.approx(1000 / 256, rel=1e-3)
    l2 = 40 * 4 * 1.25 * 2**20 / 2e-3  # 40 blocks read 1.25 MiB four times in 2 ms
    assert record["rates"]["l2_gbs"] == pytest.approx(l2 * 1e-9, rel=1e-3)
    assert len(record["shared"]) == 2 * len(record["mixed"]) == 48
    assert "handoff_1024" in throughput.table(record)


@pytest.mark.parametrize(("sms", "l2"), [(40, 4 << 20), (108, 40 << 20), (132, 60 << 20)])
def test_every_sm_begins_at_a_chunk_of_its_own(sms, l2):
    unit = FakeUnit()
    unit.sms, unit.stand = sms, SimpleNamespace(l2=l2)
    rates = throughput._bandwidths(unit)["rates"]
    (chunks, spread, step, blocks, threads), same, _ = unit.streams
    assert len({block * spread // blocks % chunks for block in range(blocks)}) == blocks == sms
    assert step == 1 and same == (chunks, 0, 1, blocks, threads)
    assert rates["l2_bytes"] == chunks * threads * 128 <= l2 / 3


def test_a_shared_load_takes_the_slots_that_multiply_adds_leave(made):
    row = json.loads((made / "rates_t4.json").read_text())["mixed"][0]
    kind = row["bits"], row["wavefronts"]
    assert load_slots("t4", *kind, made) == (pytest.approx(4 * row["cycles"] - 16),) * 2
    with pytest.raises(LookupError, match="no load of 128 bits and 1 wavefronts"):
        load_slots("t4", 128, 1, made)
    with pytest.raises(LookupError, match=r"rates_l4\.json: run benchmarks"):
        load_slots("l4", 128, 2)


def test_a_load_of_other_wavefronts_is_another_load():
    few, many = (load_slots("h200", 128, wavefronts) for wavefronts in (2, 4))
    assert few[0] > many[1] or many[0] > few[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r["latencies"].pop("l2"), "latencies must contain"),
        (lambda r: r["rates"].update(l2_gbs=-1), "rates.l2_gbs must be bigger than 0"),
        (lambda r: r.update(gpu="gtx"), "gpu must be one of"),
        (lambda r: r.update(kind="measured"), "kind must be same as"),
    ],
)
def test_rates_that_cannot_be_trusted_are_refused(made, change, said):
    path = made / "rates_t4.json"
    record = json.loads(path.read_text())
    change(record)
    throughput.write(path, record)
    with pytest.raises(records.RecordError, match=f"rates_t4.json: {said}"):
        rates("t4", made)


def test_a_truncated_file_of_rates_is_refused(made):
    path = made / "rates_t4.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(records.RecordError, match=r"rates_t4.json: not complete JSON"):
        rates("t4", made)


def test_without_a_gpu_no_rates_are_measured(monkeypatch, capsys):
    monkeypatch.setattr(throughput, "gpu_available", lambda: False)
    assert throughput.main([]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("words", throughput.WIDTHS)
def test_the_loops_compile_and_spill_nothing(words, arch):
    source = throughput.SOURCE.read_text()
    log = nvrtc.compile_cubin(source, (f"-DWORDS={words}",), arch, "throughput.cu").log
    spills = [line for line in log.splitlines() if "spill stores" in line]
    assert spills and all(" 0 bytes spill stores" in line for line in spills)


def test_an_h200_takes_a_cycle_for_each_wavefront_that_our_rules_count():
    record = measured("h200")
    for row in record["shared"]:
        words = row["bits"] // 32
        place = words * throughput.PATTERNS[row["pattern"]]
        count = shared_wavefronts(place, place >= 0, row["bits"], row["op"] == "store")
        assert row["cycles"] == pytest.approx(count, rel=0.01), row


def test_the_rates_of_an_h200_agree_with_its_data_sheet():
    found, sheet = measured("h200")["rates"], devices["h200"]
    assert 0.96 < found["ffma_lanes"] / sheet.fp32_lanes <= 1
    assert found["clock_mhz"] <= 1.005 * sheet.clock_mhz
    assert 0.8 < found["dram_gbs"] / sheet.dram_gbs <= 1
    assert measured("h200")["latencies"]["ffma"] == pytest.approx(4, rel=0.03)
