"""What ptxas makes of loads and stores: the prediction against its own output, disassembled."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.measure.records import ARCHS
from sgemm_lab.run.nvrtc import compile_cubin, compile_ptx
from sgemm_lab.simt.decode import decode
from sgemm_lab.simt.ptx import parse
from sgemm_lab.simt.ptxas import executed

VARIANTS = [variant for step in ladder if step.function for variant in step.variants()]
DEFAULTS = [step() for step in ladder if step.function]


def some(cases: list, quick: Callable) -> list:
    """Those cases as they are for whose number and contents `quick` says so, the others slow."""
    return [
        pytest.param(*case, marks=[] if quick(number, *case) else [pytest.mark.slow])
        for number, case in enumerate(cases)
    ]


def disassembled(source, options, arch, tmp_path) -> Counter:
    """(LDS or STS, bits) → how often it stands in the machine code."""
    root = Path(find_spec("nvidia").submodule_search_locations[0])
    nvdisasm = next(root.rglob("bin/nvdisasm*"))
    image = tmp_path / "kernel.cubin"
    image.write_bytes(compile_cubin(source, options, arch).image + b"\0")
    text = subprocess.run([nvdisasm, "-c", image], capture_output=True, text=True, check=True)
    found = re.findall(r"\b(LDS|STS)((?:\.\w+)*) ", text.stdout)
    return Counter(
        (op, int((re.search(r"\.(64|128)\b", mods) or ["", 32])[1])) for op, mods in found
    )


def predicted(source, options, arch, name) -> Counter:
    """The same from PTX, by the rules."""
    kernel = parse(compile_ptx(source, options, arch).text).kernel(name)
    layout = decode(kernel).layout
    pieces = executed(kernel, layout)
    count = Counter()
    for (block, index), accesses in pieces.items():
        ins = kernel.blocks[block].instructions[index]
        if "shared" in ins.mods:
            op = "LDS" if ins.op == "ld" else "STS"
            count.update((op, max(32, 8 * size)) for _, size in accesses)
    for block in kernel.blocks:  # stores that don't merge
        for index, ins in enumerate(block.instructions):
            if (
                ins.op == "st"
                and "shared" in ins.mods
                and (kernel.blocks.index(block), index) not in pieces
            ):
                count["STS", 32] += 1
    return count


@pytest.mark.parametrize(
    "variant, arch",
    some(list(product(VARIANTS, ARCHS)), lambda _, variant, __: variant in DEFAULTS),
)
def test_every_kernel_of_the_book_has_the_shared_accesses_predicted(variant, arch, tmp_path):
    source, options, name = variant.step.source, variant.options, variant.step.function
    ours = predicted(source, options, arch.replace("sm", "compute"), name)
    assert ours == disassembled(source, options, arch, tmp_path)


KERNEL = """
extern "C" __global__ void f(const float* in, float* out, int n) {{
    __shared__ float first[{first}];
    __shared__ float s[64 * {stride} + 64];
    int t = threadIdx.x, u = threadIdx.y;
    first[t % {first}] = in[t];
    #pragma unroll 1
    for (int i = t; i < 64 * {stride} + 64; i += 32) s[i] = in[i];
    __syncthreads();
    float x = first[u];
    {body}
    out[t] = x;
}}"""


BODIES = [
    "for (int k = 0; k < 16; ++k) x += s[u * {stride} + k];",
    "for (int k = 1; k < 15; ++k) x += s[u * {stride} + k];",
    "x += s[u * {stride}] + s[u * {stride} + 2] * s[u * {stride} + 3];",
    "x += s[u * {stride} + 1] + s[u * {stride} + 2];",
    "x += s[u * {stride}] * s[u * {stride} + 1]; __syncthreads();"
    " x += s[u * {stride} + 2] * s[u * {stride} + 3];",
    "for (int k = 0; k < 8; ++k) x += s[k * {stride} + t] * s[8 + k];",
    "s[u * {stride} + 4] = x; s[u * {stride} + 5] = x + 1; s[u * {stride} + 6] = x + 2;"
    " s[u * {stride} + 7] = x + 3; __syncthreads(); x += s[t + 7];",
    "s[u * {stride}] = x; s[t + 9] = x; s[u * {stride} + 1] = 2 * x; __syncthreads();"
    " x = s[31 - t];",
    "float4 v = *(const float4*)&s[4 * t]; x += v.x + v.y;",
    "float4 v = *(const float4*)&s[4 * t]; x += v.x * v.y + v.z;",
]  # fmt: skip


@pytest.mark.parametrize(
    "body, first, stride, arch",
    some(list(product(BODIES, (64, 5, 6), (32, 33, 34, 36), ARCHS)), lambda n, *_: n % 19 == 0),
)
def test_small_programs_have_the_shared_accesses_predicted(body, first, stride, arch, tmp_path):
    source = KERNEL.format(body=body.format(stride=stride), first=first, stride=stride)
    ours = predicted(source, (), arch.replace("sm", "compute"), "f")
    assert ours == disassembled(source, (), arch, tmp_path)


def test_a_load_whose_result_nobody_reads_is_no_access():
    text = """.version 8.0
.target sm_75
.address_size 64
.visible .entry f(.param .u64 p0) {
    .reg .b32 %r<9>; .reg .b64 %rd<3>;
    .shared .align 4 .b8 s[64];
    ld.param.u64 %rd1, [p0];
    ld.shared.u32 %r1, [s];
    ld.shared.u32 %r2, [s+4];
    ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1];
    add.u32 %r7, %r2, %r1;
    add.u32 %r8, %r2, %r5;
    st.global.u32 [%rd1], %r8;
    ret;
}"""
    kernel = parse(text).kernel("f")
    assert executed(kernel, {"s": 0}) == {(0, 1): (), (0, 2): ((0, 4),), (0, 3): ((8, 4),)}


def test_an_address_from_a_chain_of_squares_is_found_in_no_time():
    chain = "i *= i;" * 64  # written out, the last one has 2**64 terms
    body = f"__shared__ float s[64]; int i = x[0]; {chain} s[i & 63] = x[1]; x[2] = s[i & 62];"
    code = f'extern "C" __global__ void f(float* x) {{ {body} }}'
    assert decode(parse(compile_ptx(code).text).kernel("f")).code
