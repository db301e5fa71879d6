"""From a .cu file to PTX or a cubin with NVRTC, which needs neither a GPU nor a driver.

CuPy's binding to NVRTC is used, and imported only when something is compiled.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType

ALWAYS = ("-default-device", "--std=c++17", "--generate-line-info")
CONTEXT = 2  # lines of source shown before and after an error

_ERROR = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?:\w+ )*error(?: #[\w-]+)?: (?P<text>.*)$")
_TOOLS = re.compile(r"^// Cuda compilation tools, release [\d.]+, V([\d.]+)", re.MULTILINE)


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
    filename: str = "kernel.cu",
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
    filename: str = "kernel.cu",
) -> Cubin:
    """Compile CUDA C++ to machine code for one architecture, with the report of ptxas -v.

    The same arguments compile once per process. Raises CompileError or NvrtcMissing.
    """
    return _cubin(source, tuple(options), arch, filename)


@cache
def version() -> str | None:
    """NVRTC's version, such as "12.9.86", or None where it cannot be loaded."""
    try:
        text = compile_ptx("").text
    except NvrtcMissing:
        return None
    found = _TOOLS.search(text)
    return found[1] if found else ".".join(map(str, _nvrtc().getVersion()))


@lru_cache(maxsize=256)
def _ptx(source: str, options: tuple, arch: str, filename: str, names: tuple) -> Ptx:
    nvrtc = _nvrtc()
    program, _ = _compile(nvrtc, source, (f"-arch={arch}", *options), filename, names)
    text = _text(nvrtc.getPTX(program))
    # NVRTC puts the working directory before the name; the PTX must not depend on it.
    named = re.compile(rf'^(\s*\.file\s+\d+\s+")[^"]*{re.escape(filename)}"', re.MULTILINE)
    text = named.sub(lambda found: f'{found[1]}{filename}"', text)
    lowered = {name: _text(nvrtc.getLoweredName(program, name)) for name in names}
    return Ptx(text, MappingProxyType(lowered))


@lru_cache(maxsize=256)
def _cubin(source: str, options: tuple, arch: str, filename: str) -> Cubin:
    nvrtc = _nvrtc()
    options = (f"-arch={arch}", "--ptxas-options=-v", *options)
    program, log = _compile(nvrtc, source, options, filename)
    return Cubin(nvrtc.getCUBIN(program), log)


def _compile(nvrtc, source: str, options: tuple, filename: str, names: tuple = ()):
    """The compiled program and its log."""
    program = nvrtc.createProgram(source, filename, [], [])
    for name in names:
        nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, (*ALWAYS, *options))
    except nvrtc.NVRTCError as error:
        log = _text(nvrtc.getProgramLog(program)).strip() or str(error)
        raise CompileError(_explain(source, filename, options, log), log) from None
    return program, _text(nvrtc.getProgramLog(program))


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
    return "\n\n".join([heading, *(parts or [log])])


def _text(value: bytes | str) -> str:
    """NVRTC's strings, which differ in type between versions of the binding."""
    return (value.decode() if isinstance(value, bytes) else value).rstrip("\0")


def _nvrtc():
    """CuPy's binding to NVRTC, with the library loaded."""
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise NvrtcMissing(
            "Compiling a kernel needs CuPy, which holds the binding to NVRTC, and NVRTC itself. "
            "Neither needs a GPU: pip install cupy-cuda12x==14.2.0 nvidia-cuda-nvrtc-cu12==12.9.86 "
            "(Linux and Windows; there are no wheels for macOS)."
        ) from error
    try:
        nvrtc.getVersion()
    except Exception as error:  # the loader's own exception types differ between versions
        raise NvrtcMissing(
            "Compiling a kernel needs NVRTC, the CUDA compiler as a library, and it cannot be "
            "loaded. It needs no GPU: pip install nvidia-cuda-nvrtc-cu12==12.9.86"
        ) from error
    return nvrtc
