"""The GPUs this book speaks of: data-sheet facts, each with its source.

Limits that come with a compute capability stand once, in `_SM`; what belongs to a product stands
in `devices`. Peak FP32 is computed from them (SMs × lanes × 2 × boost clock) and agrees with the
data sheets (tests/test_devices.py). Sizes are bytes unless the name says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024


@dataclass(frozen=True)
class Device:
    """One GPU product as its data sheet describes it."""

    key: str  # the name of its file in book/measurements/
    name: str  # as we write it in prose
    cuda_name: str  # as the driver reports it, without a leading "NVIDIA "
    capability: tuple[int, int]
    sms: int  # streaming multiprocessors
    clock_mhz: int  # boost clock
    dram_gbs: float  # 10⁹ bytes a second
    l2_mib: int
    tdp_w: int
    source: str
    fp32_lanes: int  # fused multiply-adds an SM starts a cycle
    fp64_lanes: int  # the same in double precision, tensor cores aside
    shared_bytes_per_cycle: int  # an SM, loads and stores together
    shared_per_sm: int
    shared_per_block_optin: int  # with cudaFuncSetAttribute
    shared_reserved_per_block: int  # taken by the driver from each resident block
    threads_per_sm: int
    blocks_per_sm: int
    shared_per_block: int = 48 * KIB  # static, on every architecture
    registers_per_sm: int = 65536  # 32-bit
    base_mhz: int | None = None  # the clock that power and heat always allow, where it matters here

    @property
    def arch(self) -> str:
        """The name NVRTC and ptxas give the architecture: "sm_75"."""
        return "sm_{}{}".format(*self.capability)

    @property
    def warps_per_sm(self) -> int:
        """Resident warps an SM can hold."""
        return self.threads_per_sm // 32

    @property
    def fp32_tflops(self) -> float:
        """Peak FP32 rate at the boost clock, 10¹² FLOP a second; an FMA counts as two."""
        return self.sms * self.fp32_lanes * 2 * self.clock_mhz * 1e-6

    @property
    def fp64_tflops(self) -> float:
        """The same in double precision, without tensor cores."""
        return self.sms * self.fp64_lanes * 2 * self.clock_mhz * 1e-6


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" and its table of
# arithmetic throughput. Turing's 64 bytes a cycle: Jia et al., "Dissecting the NVidia Turing T4 GPU
# via Microbenchmarking" (2019); the others deliver 32 banks × 4 bytes.
_SM_FACTS = (
    "fp32_lanes", "fp64_lanes", "shared_bytes_per_cycle", "shared_per_sm", "shared_per_block_optin",
    "shared_reserved_per_block", "threads_per_sm", "blocks_per_sm",
)  # fmt: skip
_SM = {
    (7, 5): (64, 2, 64, 64 * KIB, 64 * KIB, 0, 1024, 16),
    (8, 0): (64, 32, 128, 164 * KIB, 163 * KIB, KIB, 2048, 32),
    (8, 6): (128, 2, 128, 100 * KIB, 99 * KIB, KIB, 1536, 16),
    (8, 9): (128, 2, 128, 100 * KIB, 99 * KIB, KIB, 1536, 24),
    (9, 0): (128, 64, 128, 228 * KIB, 227 * KIB, KIB, 2048, 32),
}


def _device(key: str, name: str, cuda_name: str, capability: tuple[int, int], **facts) -> Device:
    facts |= zip(_SM_FACTS, _SM[capability], strict=True)
    return Device(key, name, cuda_name, capability, **facts)


devices: Mapping[str, Device] = MappingProxyType({
    device.key: device
    for device in (
        _device("t4", "T4", "Tesla T4", (7, 5), sms=40, clock_mhz=1590, dram_gbs=320, l2_mib=4,
                tdp_w=70, base_mhz=585, source="NVIDIA T4 data sheet (8.1 TFLOPS); clock and L2 as "
                "reported by CUDA's deviceQuery; base clock: NVIDIA T4 product brief"),
        _device("rtx2080s", "RTX 2080 Super", "GeForce RTX 2080 SUPER", (7, 5), sms=48,
                clock_mhz=1815, dram_gbs=496, l2_mib=4, tdp_w=250,
                source="NVIDIA, GeForce RTX 2080 Super specifications (3072 cores, 1815 MHz); "
                "NVIDIA Turing architecture whitepaper, TU104, for the L2"),
        _device("a100", "A100 40GB SXM", "A100-SXM4-40GB", (8, 0), sms=108, clock_mhz=1410,
                dram_gbs=1555, l2_mib=40, tdp_w=400,
                source="NVIDIA A100 Tensor Core GPU architecture whitepaper (19.5 TFLOPS)"),
        _device("rtx3090", "RTX 3090", "GeForce RTX 3090", (8, 6), sms=82, clock_mhz=1695,
                dram_gbs=936, l2_mib=6, tdp_w=350, source="NVIDIA Ampere GA102 GPU architecture "
                "whitepaper (35.6 TFLOPS, 10496 cores)"),
        _device("l4", "L4", "L4", (8, 9), sms=58, clock_mhz=2040, dram_gbs=300, l2_mib=48,
                tdp_w=72, source="NVIDIA L4 data sheet (30.3 TFLOPS, 7424 cores)"),
        _device("h100", "H100 SXM", "H100 80GB HBM3", (9, 0), sms=132, clock_mhz=1980,
                dram_gbs=3350, l2_mib=50, tdp_w=700,
                source="NVIDIA H100 data sheet (67 TFLOPS); H100 architecture whitepaper"),
        _device("h200", "H200 SXM", "H200", (9, 0), sms=132, clock_mhz=1980, dram_gbs=4800,
                l2_mib=60, tdp_w=700,
                source="NVIDIA H200 data sheet (67 TFLOPS, 4.8 TB/s); clock and L2 as the driver "
                "reports them (book/measurements/h200.json)"),
    )
})  # fmt: skip


def device_named(cuda_name: str) -> Device | None:
    """The device that CUDA calls `cuda_name` ("NVIDIA H200", "Tesla T4"), or None.

    A sibling with other memory or clocks (an H100 PCIe, an A100 80GB) is not in the table, so it
    gives None: its data sheet says something else.
    """
    wanted = cuda_name.strip().lower().removeprefix("nvidia ")
    return next((d for d in devices.values() if d.cuda_name.lower() == wanted), None)
