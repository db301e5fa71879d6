import pytest

from sgemm_lab.devices import device_named, devices
from sgemm_lab.measure import records


@pytest.mark.parametrize(
    ("key", "tflops"),
    [
        ("t4", 8.1),
        ("rtx2080s", 11.15),
        ("a100", 19.5),
        ("rtx3090", 35.6),
        ("l4", 30.3),
        ("h100", 67),
        ("h200", 67),
    ],
)
def test_peak_from_lanes_and_clock_is_the_data_sheets(key, tflops):
    assert devices[key].fp32_tflops == pytest.approx(tflops, rel=0.006)


@pytest.mark.parametrize(
    ("reported", "key"),
    [
        ("Tesla T4", "t4"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("GeForce RTX 2080 SUPER", "rtx2080s"),
        ("NVIDIA GeForce RTX 2080 SUPER", "rtx2080s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
    ],
)
def test_the_drivers_name_finds_the_device(reported, key):
    assert device_named(reported) is devices[key]


@pytest.mark.parametrize(
    "sibling", ["NVIDIA L40S", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB", "NVIDIA H200 NVL", ""]
)
def test_a_sibling_with_another_data_sheet_is_not_mistaken_for_it(sibling):
    assert device_named(sibling) is None


def test_every_device_says_where_its_facts_come_from_and_hangs_together():
    for key, device in devices.items():
        assert device.key == key and device.source
        assert device.arch == f"sm_{device.capability[0]}{device.capability[1]}"
        assert device.shared_per_block_optin <= (
            device.shared_per_sm - device.shared_reserved_per_block
        )
        assert device.warps_per_sm * 32 == device.threads_per_sm


def test_turing_has_half_the_shared_memory_bandwidth():
    assert {k: d.shared_bytes_per_cycle for k, d in devices.items()} == {
        "t4": 64, "rtx2080s": 64, "a100": 128, "rtx3090": 128, "l4": 128, "h100": 128, "h200": 128,
    }  # fmt: skip


def test_the_table_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        devices["t4"] = None


def test_the_l2_of_a_measured_device_is_what_its_driver_reported():
    for run in records.runs(kind="measured"):
        assert run.provenance["l2_bytes"] == devices[run.gpu].l2_mib * 2**20
