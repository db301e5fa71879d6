"""Machine code: steps 2 and 3 are the same program, and a kernel that differs is told apart."""

import subprocess
import sys

import pytest

from sgemm_lab.ladder import Step, ladder
from sgemm_lab.measure.records import ARCHS
from sgemm_lab.run import nvrtc
from sgemm_lab.run.cubin import machine_code
from sgemm_lab.run.elf import sections

pytestmark = pytest.mark.skipif(nvrtc.version() is None, reason="no NVRTC here")


def scale(body: str):
    source = 'extern "C" __global__ void scale(float* x) {' + body + "}"
    return Step(-1, "scale", "", "", "scale", text=source)()


EVERY = [pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHS[1:]]  # sm_75 is quick enough


def are_the_same(variant, arch):
    return machine_code(variant, arch) == machine_code(ladder[3](**variant.macros), arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_steps_2_and_3_are_the_same_machine_code(arch):
    assert are_the_same(ladder[2](), arch) and are_the_same(ladder[2](LAYOUT=1), arch)


@pytest.mark.parametrize("arch", [ARCHS[0], *EVERY])
def test_every_setting_of_steps_2_and_3_is_the_same_machine_code(arch):
    assert [v.key for v in ladder[2].variants() if not are_the_same(v, arch)] == []


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_that_does_something_else_has_other_machine_code(arch):
    others = ladder[2](TILE=16), ladder[2](LAYOUT=1), ladder[2](ACCUMULATORS=2), ladder[1]()
    assert len({machine_code(variant, arch) for variant in (ladder[2](), *others)}) == 5
    assert machine_code(scale("x[0] *= 2;")) != machine_code(scale("x[0] *= 3;"))


def test_names_lines_and_comments_are_no_machine_code():
    plain, decorated = scale("x[0] *= 2;"), scale("// twice\n\nfloat two = 2;\nx[0] *= two;")
    assert machine_code(plain) == machine_code(decorated)


def test_options_reach_the_compiler():
    assert machine_code(ladder[2], options=("-DTILE=16",)) == machine_code(ladder[2](TILE=16))


def test_machine_code_is_whole_instructions_of_16_bytes():
    code = machine_code(scale("x[0] *= 2;"))
    assert code and len(code) % 16 == 0 and any(code)


def test_the_names_of_sections_are_those_of_a_cubin():
    image = nvrtc.compile_cubin(ladder[2].source, arch="sm_75").image
    names = [name for name, _ in sections(image)]
    assert names[0] == "" and {".shstrtab", ".symtab", ".text.tiled"} <= set(names)


def test_what_is_no_cubin_is_refused():
    with pytest.raises(ValueError, match="no cubin"):
        dict(sections(b"\x7fELF\x01\x01" + bytes(64)))


@pytest.mark.skipif(sys.platform != "linux", reason="readelf is a Linux tool")
def test_readelf_sees_the_same_sections(tmp_path):
    image = nvrtc.compile_cubin(ladder[2].source, arch="sm_90").image
    path = tmp_path / "kernel.cubin"
    path.write_bytes(image)
    try:
        listed = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True).stdout
    except FileNotFoundError:
        pytest.skip("no readelf here")
    for name, contents in sections(image):
        if name.startswith(".text"):
            assert name in listed and f"{len(contents):06x}" in listed
