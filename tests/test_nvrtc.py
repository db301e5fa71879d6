"""NVRTC: PTX and cubins without a GPU, and errors that show the line."""

import platform
import re
import sys
from types import SimpleNamespace

import pytest

from sgemm_lab.ladder import ladder
from sgemm_lab.paths import ROOT
from sgemm_lab.run import nvrtc

TILED = ladder[2]


@pytest.fixture(autouse=True)
def _needs_nvrtc():
    if nvrtc.version() is None:
        pytest.skip("no NVRTC here")


def test_ptx_names_the_file_as_given_and_no_path_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ptx = nvrtc.compile_ptx(TILED.source, TILED().options, filename=TILED.filename).text
    assert re.findall(r'\.file\s+\d+ "(.*)"', ptx) == ["kernels/02_tiled.cu"]
    assert str(tmp_path) not in ptx and str(ROOT) not in ptx


@pytest.mark.parametrize("arch", ["compute_75", "compute_80", "compute_90"])
def test_ptx_is_for_the_architecture_asked_for_and_has_line_numbers(arch):
    ptx = nvrtc.compile_ptx(TILED.source, arch=arch).text
    assert f".target {arch.replace('compute', 'sm')}" in ptx
    lines = {int(line) for line in re.findall(r"\.loc\s+1 (\d+)", ptx)}
    code = TILED.source.splitlines()
    assert any("__syncthreads" in code[line - 1] for line in lines)


def test_macros_reach_the_compiler():
    texts = {nvrtc.compile_ptx(TILED.source, TILED(TILE=tile).options).text for tile in (8, 16, 32)}
    assert len(texts) == 3


def test_the_same_source_is_compiled_once():
    first = nvrtc.compile_ptx(TILED.source, ["-DTILE=8"])
    assert nvrtc.compile_ptx(TILED.source, ("-DTILE=8",)) is first
    assert nvrtc.compile_ptx(TILED.source, ("-DTILE=8",), arch="compute_80") is not first


def test_a_template_gives_its_lowered_name():
    source = "template <int T> __global__ void fill(int* p) { *p = T; }"
    ptx = nvrtc.compile_ptx(source, names=("fill<3>",))
    assert f".entry {ptx.names['fill<3>']}(" in ptx.text


def test_a_cubin_comes_with_the_report_of_ptxas():
    cubin = nvrtc.compile_cubin(TILED.source, arch="sm_75")
    assert cubin.image[:4] == b"\x7fELF"
    assert "Compiling entry function 'tiled' for 'sm_75'" in cubin.log
    assert "Used " in cubin.log


def test_a_syntax_error_shows_the_lines_around_it_and_the_compilers_words():
    source = TILED.source.replace("float sum = 0.0f;", "float sum = 0.0f")
    line = 1 + source[: source.index("float sum = 0.0f")].count("\n") + 2  # where the ; is missed
    with pytest.raises(nvrtc.CompileError) as error:
        nvrtc.compile_ptx(source, ("-DTILE=16",), filename=TILED.filename)
    message = str(error.value)
    assert "kernels/02_tiled.cu does not compile" in message and "-DTILE=16" in message
    assert f'kernels/02_tiled.cu, line {line}: expected a ";"' in message
    assert "      float sum = 0.0f\n" in message.replace("|", " ")
    assert f">{line:4} |     for (int i = 0; i < ACCUMULATORS; ++i)" in message
    assert str(ROOT) not in message


def test_every_error_is_shown():
    source = "__global__ void f(float* p) {\n    *p = x;\n    int a;\n    *p = y;\n}\n"
    with pytest.raises(nvrtc.CompileError) as error:
        nvrtc.compile_ptx(source)
    assert 'line 2: identifier "x" is undefined' in str(error.value)
    assert 'line 4: identifier "y" is undefined' in str(error.value)
    assert 'identifier "x" is undefined' in error.value.log


def test_a_failed_static_assert_says_its_sentence():
    with pytest.raises(nvrtc.CompileError, match="a block has TILE x TILE threads, at most 1024"):
        nvrtc.compile_ptx(TILED.source, ("-DTILE=64",))


def test_an_unknown_option_is_an_error_too():
    with pytest.raises(nvrtc.CompileError, match="unrecognized option -bogus"):
        nvrtc.compile_ptx("", ("-bogus",))


def test_the_report_is_that_of_the_cubin_and_the_same_every_time():
    told = nvrtc.report(TILED.source, arch="sm_75")
    assert told == nvrtc.compile_cubin(TILED.source, arch="sm_75").log
    nvrtc.ask.cache_clear()
    assert nvrtc.report(TILED.source, arch="sm_75") == told  # not the time it took


@pytest.mark.parametrize("what", ["cupy", "the library"])
@pytest.mark.parametrize(
    ("system", "way"),
    [
        ("Linux", "neither needs a GPU: pip install cupy-cuda12x==14.2.0 nvidia-cuda-nvrtc-cu12=="),
        ("Darwin", "no wheels of them for macOS: try your own kernels on Colab"),
    ],
)
def test_without_the_compiler_ones_own_kernel_is_told_what_to_install(
    monkeypatch, what, system, way
):
    from cupy.cuda import nvrtc as binding

    def no_library():
        raise RuntimeError("libnvrtc.so.12: cannot open shared object file")

    monkeypatch.setattr(platform, "system", lambda: system)
    if what == "cupy":
        monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    else:
        monkeypatch.setattr(binding, "getVersion", no_library)
    with pytest.raises(nvrtc.NvrtcMissing) as error:
        nvrtc.compile_ptx(f"// without {what} on {system}")
    assert "This kernel was not compiled beforehand." in str(error.value)
    assert way in str(error.value)
    nvrtc.version.cache_clear()
    assert nvrtc.version() is None
    nvrtc.version.cache_clear()


@pytest.mark.parametrize("version, fresh", [((12, 8), []), ((12, 9), ["--no-cache"])])
def test_a_compiler_that_caches_code_without_its_log_is_told_not_to(version, fresh):
    asked = []
    played = SimpleNamespace(
        getVersion=lambda: version, createProgram=lambda *_: 0, NVRTCError=RuntimeError,
        compileProgram=lambda _, options: asked.extend(options),
        getProgramLog=lambda _: "", getCUBIN=lambda _: b"",
    )  # fmt: skip
    nvrtc._compile(played, "report", "", (), "sm_75", ())
    assert [option for option in asked if "cache" in option] == fresh


def test_the_version_is_the_compilers_own():
    assert re.fullmatch(r"\d+\.\d+\.\d+", nvrtc.version())


@pytest.mark.parametrize(
    "kind, arch", [("ptx", "compute_75"), ("report", "sm_75"), ("code", "sm_75")]
)
def test_an_answer_does_not_depend_on_the_working_directory(kind, arch, monkeypatch, tmp_path):
    debug = ("-G",) if kind == "code" else ()
    asked = kind, ladder[1].source, (*ladder[1]().options, *debug), arch
    here = nvrtc.ask.__wrapped__(*asked)
    monkeypatch.chdir(tmp_path)
    assert nvrtc.ask.__wrapped__(*asked) == here


@pytest.mark.parametrize("header", ["cuda_runtime.h", "cstdio", "math.h"])
def test_what_files_for_nvcc_include_changes_nothing(header):
    code = 'extern "C" __global__ void f(float* x) { x[0] = sqrtf(x[1]); }\n'
    with_it = nvrtc.compile_ptx(f"#include <{header}>\n{code}").text
    assert re.sub(r"\.(loc|file).*", "", with_it) == re.sub(
        r"\.(loc|file).*", "", nvrtc.compile_ptx(code).text
    )


def test_integers_of_a_fixed_width_are_known_once_they_are_included():
    sizes = " && ".join(f"sizeof({u}int{8 * n}_t) == {n}" for u in ("", "u") for n in (1, 2, 4, 8))
    signs = "(uint8_t)-1 > 0 && (int8_t)-1 < 0 && (uint64_t)-1 > 0 && (int64_t)-1 < 0"
    assert nvrtc.compile_ptx(f"#include <cstdint>\nstatic_assert({sizes} && {signs});").text


def test_an_included_file_takes_one_line_and_others_stay():
    text = (
        '#include <cstdint>\n # include "stdio.h" // printf\n#include <vector>\n// #include <cmath>'
    )
    first, *others = nvrtc.included(text).splitlines()
    assert "uint32_t" in first and others == [
        " // printf",
        "#include <vector>",
        "// #include <cmath>",
    ]


def test_host_code_is_refused_with_the_way_out():
    with pytest.raises(nvrtc.CompileError, match="host code between #ifndef __CUDACC_RTC__"):
        nvrtc.compile_ptx("int main() { float* p; cudaMalloc(&p, 4); }")
    with pytest.raises(nvrtc.CompileError) as error:
        nvrtc.compile_ptx("__global__ void f() { nothing(); }")
    assert "__CUDACC_RTC__" not in str(error.value)
