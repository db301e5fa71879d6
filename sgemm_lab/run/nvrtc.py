"""From a .cu file to PTX or a cubin with NVRTC, which needs neither a GPU nor a driver.

CuPy's binding to NVRTC is used, and imported only when something is compiled. Where it cannot be
loaded, the book's own kernels are taken from the archive of what was compiled beforehand.
"""

import base64
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType

from sgemm_lab.run import archive
from sgemm_lab.run.elf import sections

INSTALL = "pip install cupy-cuda12x==14.2.0 nvidia-cuda-nvrtc-cu12==12.9.86"
PLAIN = "kernel.cu"  # what every source is called while it is compiled
ALWAYS = ("-default-device", "--std=c++17")
# What else a kind of question asks for. A cubin with line information names the directory.
ASKED = {
    "ptx": ("--generate-line-info",),
    "report": ("--ptxas-options=-v",),
    "cubin": ("--ptxas-options=-v",),
    "code": (),
}
# From 12.9 on NVRTC keeps what it compiles on disk, the code without the log: on an H200 the report
# of a kernel came once, and was empty in the next process.
CACHES, UNCACHED = (12, 9), "--no-cache"
# What files of kernels include. For the device NVRTC knows it without them, but for these integers.
INTEGERS = " ".join(
    f"typedef {kind} {name}_t;"
    for name, kind in (
        ("int8", "signed char"), ("int16", "short"), ("int32", "int"), ("int64", "long long"),
        ("uint8", "unsigned char"), ("uint16", "unsigned short"), ("uint32", "unsigned"),
        ("uint64", "unsigned long long"),
    )
)  # fmt: skip
HEADERS = dict.fromkeys(
    ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "cassert",
     "assert.h", "cmath", "math.h", "cstdio", "stdio.h", "cstdlib", "stdlib.h", "cstddef",
     "stddef.h"), "",
) | dict.fromkeys(("cstdint", "stdint.h"), INTEGERS)  # fmt: skip
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](\S+)[>"]', re.MULTILINE)
HOST = re.compile(r"cuda(?:Malloc|Mem|Free|Event|Error|Device|Get)|kernel launch|namespace .std")
CONTEXT = 2  # lines of source shown before and after an error

_ERROR = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?:\w+ )*error(?: #[\w-]+)?: (?P<text>.*)$")
_TOOLS = re.compile(r"^// Cuda compilation tools, release [\d.]+, V([\d.]+)", re.MULTILINE)
# NVRTC puts the working directory before the name; the PTX must not depend on it.
_NAMED = re.compile(rf'^(\s*\.file\s+\d+\s+")[^"]*{re.escape(PLAIN)}"', re.MULTILINE)
_TOOK = re.compile(r"^ptxas info\s*: Compile time = .*\n?", re.MULTILINE)


class NvrtcMissing(ImportError):
    """NVRTC or CuPy's binding to it cannot be loaded here; the message says what to install."""


class CompileError(ValueError):
    """The compiler refused a source. The message shows its lines around each error.

    `.log` is the compiler's own log.
    """

    def __init__(self, message: str, log: str):
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Ptx:
    """PTX as text, and the lowered name of each name expression that was asked for."""

    text: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, and what ptxas -v said about it."""

    image: bytes
    log: str


def compile_ptx(
    source: str,
    options: Iterable[str] = (),
    arch: str = "compute_75",
    filename: str = PLAIN,
    names: Iterable[str] = (),
) -> Ptx:
    """Compile CUDA C++ to PTX, always with line information.

    `filename` stands in the PTX and in error messages as given. `names` are C++ name expressions
    (`tiled<32>`) whose lowered names are wanted; `extern "C"` functions need none. The same
    arguments compile once per process. Raises CompileError or NvrtcMissing.
    """
    return _ptx(source, tuple(options), arch, filename, tuple(names))


def compile_cubin(
    source: str,
    options: Iterable[str] = (),
    arch: str = "sm_75",
    filename: str = PLAIN,
) -> Cubin:
    """Compile CUDA C++ to machine code for one architecture, with the report of ptxas -v.

    The same arguments compile once per process. Raises CompileError or NvrtcMissing.
    """
    answer = _answer("cubin", source, tuple(options), arch, filename)
    return Cubin(base64.b85decode(answer["image"]), answer["log"])


def compile_code(
    source: str,
    options: Iterable[str] = (),
    arch: str = "sm_75",
    filename: str = PLAIN,
) -> dict[str, bytes]:
    """The instructions of each kernel by its name; else like compile_cubin."""
    answer = _answer("code", source, tuple(options), arch, filename)
    return {name: base64.b85decode(code) for name, code in answer["code"].items()}


def report(
    source: str,
    options: Iterable[str] = (),
    arch: str = "sm_75",
    filename: str = PLAIN,
) -> str:
    """The report of ptxas -v alone; else like compile_cubin."""
    return _answer("report", source, tuple(options), arch, filename)["log"]


@cache
def version() -> str | None:
    """NVRTC's version, such as "12.9.86", or None where it cannot be loaded."""
    try:
        nvrtc = _nvrtc()
    except NvrtcMissing:
        return None
    found = _TOOLS.search(_compile(nvrtc, "ptx", "", (), "compute_75", ())["text"])
    return found[1] if found else ".".join(map(str, nvrtc.getVersion()))


@lru_cache(maxsize=256)
def _ptx(source: str, options: tuple, arch: str, filename: str, names: tuple) -> Ptx:
    answer = _answer("ptx", source, options, arch, filename, names)
    text = _NAMED.sub(lambda found: f'{found[1]}{filename}"', answer["text"])
    return Ptx(text, MappingProxyType(answer["names"]))


def included(source: str) -> str:
    """The text with what HEADERS hold in the place of its #include lines, each line where it was:
    neither NVRTC nor CuPy brings these files."""
    return _INCLUDE.sub(lambda found: HEADERS.get(found[1], found[0]), source)


def key(
    kind: str, source: str, options: tuple[str, ...], arch: str, names: tuple[str, ...] = ()
) -> str:
    """The name that a question ("ptx", "report" or "cubin") has in the archive."""
    return archive.key((*ALWAYS, *ASKED[kind]), kind, source, options, arch, names)


@lru_cache(maxsize=256)
def ask(
    kind: str, source: str, options: tuple[str, ...], arch: str, names: tuple[str, ...] = ()
) -> dict:
    """The answer of NVRTC, or of the archive where there is no NVRTC. Raises NvrtcMissing."""
    asked = kind, source, options, arch, names
    try:
        nvrtc = _nvrtc()
    except NvrtcMissing as missing:
        answer = archive.find(key(*asked))
        if answer is None:
            raise NvrtcMissing(f"This kernel was not compiled beforehand. {missing}") from None
    else:
        answer = _compile(nvrtc, *asked)
    if kind != "cubin":  # the whole file, with what depends on the machine; no page needs it
        archive.keep(key(*asked), answer)
    return answer


def _answer(
    kind: str, source: str, options: tuple, arch: str, filename: str, names: tuple = ()
) -> dict:
    """The answer; CompileError if that is the compiler's log of what is wrong."""
    answer = ask(kind, source, options, arch, names)
    if "error" not in answer:
        return answer
    log = answer["error"].replace(PLAIN, filename)
    raise CompileError(_explain(source, filename, (f"-arch={arch}", *options), log), log)


def _compile(nvrtc, kind: str, source: str, options: tuple, arch: str, names: tuple) -> dict:
    """What was asked for, or the compiler's log as the "error"; in a form that JSON can hold."""
    program = nvrtc.createProgram(included(source), PLAIN, [], [])
    for name in names:
        nvrtc.addNameExpression(program, name)
    try:
        fresh = (UNCACHED,) if nvrtc.getVersion() >= CACHES else ()
        asked = *ALWAYS, *ASKED[kind], *fresh, f"-arch={arch}", *options
        nvrtc.compileProgram(program, asked)
    except nvrtc.NVRTCError as error:
        return {"error": _text(nvrtc.getProgramLog(program)).strip() or str(error)}
    if kind == "ptx":
        lowered = {name: _text(nvrtc.getLoweredName(program, name)) for name in names}
        text = _NAMED.sub(rf'\g<1>{PLAIN}"', _text(nvrtc.getPTX(program)))
        return {"text": text, "names": lowered}
    if kind == "code":
        found = sections(nvrtc.getCUBIN(program))
        texts = ((n, code) for n, code in found if n.startswith(".text."))
        return {"code": {n[6:]: base64.b85encode(code).decode() for n, code in texts}}
    said = {"log": _TOOK.sub("", _text(nvrtc.getProgramLog(program)))}
    image = {"image": base64.b85encode(nvrtc.getCUBIN(program)).decode()}
    return said | image if kind == "cubin" else said


def _explain(source: str, filename: str, options: tuple, log: str) -> str:
    """The log's errors, each under the lines of the source it is about."""
    lines = source.splitlines()
    parts = []
    for found in map(_ERROR.match, log.splitlines()):
        if found and found["file"] == filename and 1 <= int(found["line"]) <= len(lines):
            line = int(found["line"])
            shown = range(max(1, line - CONTEXT), min(len(lines), line + CONTEXT) + 1)
            code = "\n".join(f"{'>' if n == line else ' '}{n:4} | {lines[n - 1]}" for n in shown)
            parts.append(f"{filename}, line {line}: {found['text']}\n{code}")
    heading = f"{filename} does not compile (options: {' '.join(options)})."
    way = "Only device code is compiled: put host code between #ifndef __CUDACC_RTC__ and #endif."
    return "\n\n".join([heading, *(parts or [log]), *([way] if HOST.search(log) else [])])


def _text(value: bytes | str) -> str:
    """NVRTC's strings, which differ in type between versions of the binding."""
    return (value.decode() if isinstance(value, bytes) else value).rstrip("\0")


def _nvrtc():
    """CuPy's binding to NVRTC, with the library loaded."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # the loader's own exception types differ between versions
        raise NvrtcMissing(_missing()) from error
    return nvrtc


def _missing() -> str:
    way = (
        "there are no wheels of them for macOS: try your own kernels on Colab"
        if platform.system() == "Darwin"
        else f"neither needs a GPU: {INSTALL}"
    )
    return (
        "The book's kernels are, with every legal setting of their macros; your own need NVRTC, "
        f"the CUDA compiler as a library, and CuPy, which binds to it ({way})."
    )
