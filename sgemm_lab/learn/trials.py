"""What an audit tries: for each category an experiment on one kernel, and what came of it.

Each trial takes a Subject and gives a verdict and the evidence for it, a sentence. What breaks a
rule of CUDA is looked for on the PTX machine in any case; numbers are compared where the subject
says. audit.py has the table of the categories, and asks for a GPU last.
"""

import itertools
import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sgemm_lab.devices import devices
from sgemm_lab.ladder import GRID_LIMITS, Variant
from sgemm_lab.run import nvrtc
from sgemm_lab.run.backend import ptx
from sgemm_lab.run.check import EPS, NAN, check, default_shapes
from sgemm_lab.run.launch import bind, launch
from sgemm_lab.run.profile import Profile, profile
from sgemm_lab.run.resources import occupancy, resources
from sgemm_lab.simt import host
from sgemm_lab.simt.machine import Launch, budget, caught

NONE, FOUND, ABSENT, OPEN = VERDICTS = "none found", "FOUND", "does not occur", "not tried"
# Instructions that a thread may execute in one launch, for each OUTPUTS elements of C that it has.
# The ladder's need at most a tenth of these.
OUTPUTS = 8
SHORT = 30_000  # K up to a hundred
LONG = 500_000  # K of 512
LONGEST = 2_000_000  # K of tens of thousands
MANY = 1 << 32  # elements of a matrix at which an index of 32 bits, signed or not, has overflowed
CHUNK = 1 << 17  # block numbers looked at together
SIZES = {"M", "N", "K"}

_TEXTS = itertools.count()

Shape = tuple[int, int, int]
Verdict = tuple[str, str]  # one of VERDICTS, and the evidence


@dataclass(frozen=True)
class Watched:
    """A launch on the PTX machine, and which one it was."""

    about: str
    profile: Profile


class Subject:
    """A kernel under audit. What several trials look at is done once."""

    def __init__(self, variant: Variant, on=ptx):
        self.variant, self.step, self.on = variant, variant.step, on
        m, n, k = (size if size > 1 else 32 for size in variant.tile)
        self.effort = max(1, m * n // (OUTPUTS * variant.threads))
        self.square = bool(SIZES - set(self.step.parameters))
        self.scaled = "beta" in self.step.parameters
        self.shapes: tuple[Shape, ...] = default_shapes(variant)[:7] if self.square else (
            (1, 1, 1), (m + 1, n + 2, k + 3), (m - 1, 3 * n + 1, k + 1), (m + 3, n + 4, k + 4),
            (m, n, 3 * k), (2 * m - 1, n + 1, 2 * k), (m + 1, n - 1, 0),
        )  # fmt: skip
        self.edge = max(m, n) + 1  # of square matrices: one tile and a bit

    @cached_property
    def text(self) -> str:
        """The PTX."""
        step = self.step
        return nvrtc.compile_ptx(step.source, self.variant.options, filename=step.filename).text

    @cached_property
    def refused(self) -> str:
        """Why no launch of this kernel is possible; empty if it is. Raises CompileError or PtxError
        where there is no such kernel."""
        host.load(self.text, self.step.source, self.step.filename).program(self.step.function)
        try:
            self.prepare(*self.matrices((1, 1, 1)))
        except ValueError as error:
            return str(error)
        return ""

    @cached_property
    def stopped(self) -> str:
        """How all launches of `watched` ended before their end; empty if one came to it."""
        faults = [watched.profile.fault for watched in self.watched]
        return str(faults[0]) if all(faults) else ""

    @cached_property
    def endless(self) -> bool:
        """Whether a launch was found that doesn't end: then nothing else needs to be tried."""
        return any(f.kind == "endless" for w in self.watched for f in w.profile.findings)

    def matrices(self, shape: Shape, seed: int = 0, offsets: Shape = (0, 0, 0)) -> list[np.ndarray]:
        """A, B and C of small whole numbers, of which sums of products are exact."""
        M, N, K = shape
        rng = np.random.default_rng(seed)
        shapes = (M, K), (K, N), (M, N)
        flat = [
            rng.integers(-4, 5, rows * columns + more).astype(np.float32)
            for (rows, columns), more in zip(shapes, offsets, strict=True)
        ]
        return [X[n:].reshape(s) for X, n, s in zip(flat, offsets, shapes, strict=True)]

    def arguments(self, A, B, C, beta: float = 0, shape: Shape | None = None) -> tuple:
        """The kernel's arguments for C = AB + beta·C; `shape` where C is not as it should be."""
        M, N, K = shape or (len(A), B.shape[1], len(B))
        return bind(self.step, M, N, K, 1, A, B, beta, C)

    def grid(self, A, B) -> tuple[int, ...]:
        return self.variant.grid(len(A), B.shape[1])

    def prepare(self, A, B, C, beta: float = 0, text: str = "", more: int = 0, **given) -> Launch:
        """A launch on the PTX machine that is ready to run, of other PTX with `text`, of so many
        blocks `more` each way; the rest is for host.Loaded.launch."""
        grid = self.grid(A, B)
        loaded = host.load(text or self.text, self.step.source, self.step.filename)
        return loaded.launch(
            self.step.function, (*(n + more for n in grid[:2]), *grid[2:]), self.variant.block,
            self.arguments(A, B, C, beta), shared_mem=self.step.dynamic_bytes, **given,
        )  # fmt: skip

    def run(self, function, A, B, C, beta: float = 0) -> None:
        """One launch where numbers are compared, not waited for."""
        args = self.arguments(A, B, C, beta)
        function(self.grid(A, B), self.variant.block, args, shared_mem=self.step.dynamic_bytes)

    def function(self):
        """The compiled kernel for `run`, its __device__ variables as they are at first."""
        code, named = nvrtc.included(self.step.source), {}
        if self.on is ptx:
            named = {"filename": self.step.filename}
        else:  # CuPy knows no file name, and loads the same text once
            code = f"{code}\n// {next(_TEXTS)}\n"
        module = self.on.RawModule(code=code, options=self.variant.options, **named)
        return module.get_function(self.step.function)

    def watch(self, shape: Shape, beta: float = 0, offsets: Shape = (0, 0, 0)) -> Watched:
        """One launch, counted and examined; without beta, C is memory that nobody wrote. A, B and C
        begin so many floats after the start of an allocation as `offsets` say."""
        A, B, C = self.matrices(shape, offsets=offsets)
        if not beta:
            C = ptx.empty(C.size + offsets[2], np.float32)[offsets[2] :].reshape(C.shape)
        with budget(SHORT * self.effort):
            seen = profile(
                self.step.source, self.step.function, self.grid(A, B), self.variant.block,
                self.arguments(A, B, C, beta), options=self.variant.options,
                shared_mem=self.step.dynamic_bytes, filename=self.step.filename,
            )  # fmt: skip
        moved = any(offsets) * f", arrays {', '.join(map(str, offsets))} floats off a boundary"
        return Watched(f"at {_shown(shape)}{bool(beta) * f', beta = {beta:g}'}{moved}", seen)

    @cached_property
    def watched(self) -> list[Watched]:
        """The launches in which rules of CUDA may be broken: edges, whole tiles, rows that a vector
        load may begin at and may not, C given and not, K of 0. An endless one is the last."""
        betas = 0, 0.5 * self.scaled
        todo = [(shape, betas[n % 2]) for n, shape in enumerate(self.shapes)]
        seen = []
        for launched in (*todo, (self.shapes[3], 0, (1, 2, 3))):
            seen.append(self.watch(*launched))
            if any(found.kind == "endless" for found in seen[-1].profile.findings):
                break
        return seen

    @cached_property
    def plain(self) -> Verdict | None:
        return self.alone(self.shapes[1])

    def alone(self, *shapes: Shape) -> Verdict | None:
        """OPEN, if one launch alone, with nothing unusual about it, is wrong at one of the shapes:
        then what is unusual can't be blamed."""
        for shape in shapes:
            A, B, C = self.matrices(shape)
            out = self.on.asarray(C)
            fault = caught(lambda A=A, B=B, out=out: self.run(
                self.function(), self.on.asarray(A), self.on.asarray(B), out
            ))  # fmt: skip
            if fault or not np.array_equal(self.on.asnumpy(out), _product(A, B)):
                return OPEN, f"a plain launch at {_shown(shape)} is wrong already"
        return None

    def first(self, *kinds: str) -> Verdict | None:
        """The first finding of these kinds in `watched`, as verdict and evidence."""
        for watched in self.watched:
            for found in watched.profile.findings:
                if found.kind in kinds:
                    often = f" ({found.count:,} times)" if found.count > 1 else ""
                    told = f"{found.message}{often}"
                    return FOUND, f"{told}{' ' if told.endswith('?') else ', '}{watched.about}"
        return None

    def absent(self, opcode: str, why: str) -> Verdict:
        """ABSENT, if the PTX has no such thing; OPEN, if no launch came to it."""
        if not _in_ptx(self, opcode):
            return ABSENT, why
        return OPEN, f"no launch came to it{self.stopped and f': {self.stopped}'}"

    def count(self, *counters: str) -> int:
        """The sum of these counters over `watched`, as the PTX has it."""
        return sum(getattr(w.profile.written, name) for w in self.watched for name in counters)


def _shown(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape))


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return A.astype(np.float64) @ B.astype(np.float64)


# --- rules of CUDA, on the PTX machine ------------------------------------------------------------


def bounds(subject: Subject) -> Verdict:
    requests = subject.count("global_load_requests", "global_store_requests", "copy_requests")
    return subject.first("out-of-bounds", "misaligned") or (
        NONE,
        f"{requests:,} requests of warps to global memory in {len(subject.watched)} launches, each "
        "thread's within its array and aligned",
    )


def races(subject: Subject) -> Verdict:
    if found := subject.first("read-write-race", "write-write-race", "unfinished-copy"):
        return found
    accesses = subject.count("shared_load_instructions", "shared_store_instructions")
    if not accesses:
        return subject.absent("shared", "the kernel uses no shared memory")
    return NONE, (
        f"{accesses:,} accesses of warps to shared memory in {len(subject.watched)} launches, all "
        "in an order that barriers fix"
    )


def barriers(subject: Subject) -> Verdict:
    if found := subject.first("divergent-barrier", "exit-before-barrier", "deadlock"):
        return found
    arrivals = subject.count("barriers")
    if not arrivals:
        return subject.absent(r"bar(?:rier)?\.(?:sync|arrive|red|cta)", "the kernel has no barrier")
    return NONE, (
        f"{arrivals:,} arrivals of warps in {len(subject.watched)} launches, at every barrier all "
        "threads of the block"
    )


def uninitialised(subject: Subject) -> Verdict:
    if found := subject.first("uninitialised-read"):
        return found
    loads = subject.count("shared_load_instructions")
    shared = f"{loads:,} shared loads of warps, all of what had been written; " * bool(loads)
    return NONE, f"{shared}where beta is 0, C is not read"


def warps(subject: Subject) -> Verdict:
    if found := subject.first("warp-mask"):
        return found
    used = _in_ptx(subject, "shfl", "vote", "match", "redux", "activemask", r"bar\.warp")
    if not used:
        return ABSENT, "the PTX has no shuffle, vote or __syncwarp"
    return NONE, f"{used} in {len(subject.watched)} launches: each lane that a mask names was there"


def ordering(subject: Subject) -> Verdict:
    if found := subject.first("two-blocks-write", "cross-block-read", "order-dependent"):
        return found
    used = _in_ptx(subject, "atom", "red", "membar", "fence", "volatile")
    if not used:
        return NONE, "no block touches what another wrote; the PTX has no atomic, fence or volatile"
    return NONE, f"{used}: the same bits with warps and blocks in other orders"


def _in_ptx(subject: Subject, *opcodes: str) -> str:
    found = sorted(set(re.findall(rf"\b(?:{'|'.join(opcodes)})\b", subject.text)))
    return ", ".join(found)


def errors(subject: Subject) -> Verdict:
    """Launches that fail, which a program without a synchronise hears of at a later call; and
    whether this machine hears of one at once."""
    if found := subject.first("trap", "endless"):
        return found
    if wrong := subject.plain:
        return wrong
    A, B, C = subject.matrices(subject.shapes[1])
    short = C[:-1].copy()
    if fault := caught(subject.prepare(A, B, short).run):
        return NONE, f"given a C without its last row, the launch itself says so: {fault}"
    return FOUND, f"at {_shown(subject.shapes[1])}, given a C without its last row, nothing fails"


# --- indices of more than 32 bits -----------------------------------------------------------------


def overflow(subject: Subject) -> Verdict:
    """Products with a huge A, a huge B, a huge C. Memory is taken only where something is written,
    and only some blocks run; on a GPU all of it, and all of them."""
    BM, BN, BK = subject.variant.tile
    high = BM * GRID_LIMITS[1] - 1  # rows that blocks along y can reach
    edge = min(high, 65541)
    deep = 2 * max(BK, 2) + 1
    shapes = [(edge,) * 3] if subject.square else [
        (high, 1, MANY // high + 2),
        (1, MANY // (deep - 1) + 1, deep),
        (edge, MANY // edge + 3, BK + 1),
    ]  # fmt: skip
    small = [(min(M, BM + 1), min(N, BN + 1), K % BK + BK) for M, N, K in shapes]
    if wrong := subject.alone(*(subject.shapes[1:2] if subject.square else small)):
        return wrong
    blocks = 0
    for shape in shapes:
        try:
            done, problem = _huge(subject, shape)
        except (MemoryError, OSError):
            return OPEN, f"{_shown(shape)}: there is no room for a matrix of 16 GiB"
        if problem:
            return FOUND, f"at {_shown(shape)}: {problem}"
        blocks += done
    return NONE, (
        f"{blocks:,} blocks of {' and '.join(map(_shown, shapes))} are right: indices of more than "
        "2³² in A, in B, in C"
    )


def _huge(subject: Subject, shape: Shape) -> tuple[int, str]:
    """How many blocks of such a product were looked at, and what was wrong with them."""
    M, N, K = shape
    on = subject.on
    A, B, C = (_sparse(size) for size in ((M, K), (K, N), (M, N)))
    count = int(np.prod(subject.grid(A, B), dtype=object))
    stores = _Stores(C)
    numbers = np.unique([0, count // 2, *_last(subject.variant, M, N, count)])
    flat = (
        (A, B) if subject.square else (_sparse((M, 1)), _sparse((1, N)))
    )  # stores don't depend on K
    with budget(LONGEST * subject.effort):
        if fault := caught(subject.prepare(*flat, C, watch=stores, blocks=numbers).run):
            return 0, str(fault)
        if not any(M * N - 1 in places for places in stores.places.values()):
            return 0, f"the last blocks don't store the last element, C[{M - 1}, {N - 1}]"
        chosen = {n for n in (0, count // 2, max(stores.places)) if n in stores.places}
        places = np.concatenate([stores.places[n] for n in chosen])
        rows, columns = np.divmod(np.unique(places), N)
        rng = np.random.default_rng(0)
        down, across = np.unique(rows), np.unique(columns)  # all else is zero
        A[down] = rng.integers(1, 5, (len(down), K))
        B[:, across] = rng.integers(1, 5, (K, len(across)))
        if on is ptx:
            done = len(chosen)
            if fault := caught(subject.prepare(A, B, C, blocks=sorted(chosen)).run):
                return 0, str(fault)
        else:
            done = count
            a, b = on.zeros((M, K), np.float32), on.zeros((K, N), np.float32)
            c = on.full((M, N), np.nan, np.float32)
            a[on.asarray(down)] = on.asarray(A[down])
            b[:, on.asarray(across)] = on.asarray(B[:, across])
            subject.run(subject.function(), a, b, c)
            C[rows, columns] = on.asnumpy(c[on.asarray(rows), on.asarray(columns)])
            if int(on.count_nonzero(c)) != len(down) * len(across):
                return 0, "where a row of A or a column of B is zero, C is not"
    right = _product(A[down], B[:, across])
    right = right[np.searchsorted(down, rows), np.searchsorted(across, columns)]
    wrong = np.flatnonzero(C[rows, columns] != right)
    if not len(wrong):
        return done, ""
    i, j = rows[wrong[0]], columns[wrong[0]]
    return 0, f"C[{i}, {j}] is {C[i, j]:g} and should be {right[wrong[0]]:g}: an index wraps around"


def _last(variant: Variant, M: int, N: int, count: int) -> Iterable[int]:
    """The block of C's last element; of a grid of one's own, blocks among which it must be."""
    if variant.step.blocks:
        return range(max(0, count - 32), count)
    BM, BN, _ = variant.tile
    for end in range(count, 0, -CHUNK):
        numbers = np.arange(max(0, end - CHUNK), end)
        rows, columns = variant.corner(numbers, M, N)
        here = (rows < M) & (rows + BM >= M) & (columns < N) & (columns + BN >= N)
        if here.any():
            return numbers[here]
    return ()


class _Stores:
    """Watches which elements of C each block stores."""

    def __init__(self, C: np.ndarray):
        self.start, self.places = C.ctypes.data, {}

    def access(self, batch, access, space, reach, start) -> None:
        region = batch.launch.memory.find(start) if space == "global" else None
        if not region or access.kind == "load" or region.data.ctypes.data != self.start:
            return
        lanes = np.flatnonzero(batch.active_lanes())
        relative = np.broadcast_to(reach.relative, batch.lanes)[lanes].astype(np.int64)
        first = (start - region.base + relative) // 4
        blocks = batch.numbers[lanes // batch.padded]
        for number in np.unique(blocks):
            elements = (first[blocks == number][:, None] + np.arange(access.size // 4)).ravel()
            old = self.places.get(int(number), elements[:0])
            self.places[int(number)] = np.concatenate([old, elements])


def _sparse(shape: tuple[int, int]) -> np.ndarray:
    """Zeros, with memory only for the pages that something is written to."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return np.zeros(shape, np.float32)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, 4 * shape[0] * shape[1], flags), np.float32).reshape(shape)


# --- one text, many architectures -----------------------------------------------------------------


def architectures(subject: Subject) -> Verdict:
    """Compiled for each architecture of the book's devices; what differs is run."""
    step, variant = subject.step, subject.variant
    able = {d.arch: d for d in devices.values() if d.capability >= step.min_capability}
    bits, registers = {}, []  # PTX without its target → (the first such architecture, C's bits)
    for arch, device in able.items():
        virtual = arch.replace("sm", "compute")
        try:
            text = nvrtc.compile_ptx(step.source, variant.options, virtual, step.filename).text
            used = resources(variant, arch)
        except nvrtc.CompileError as error:
            said = str(error).splitlines()
            said = next((line for line in said if "error" in line), said[-1]).strip()
            return FOUND, (
                f"it does not compile for {arch}: {said}. If it is for newer GPUs only, say for "
                'which: arch="sm_80"'
            )
        if not occupancy(device, variant.threads, used.registers, used.shared_bytes).blocks:
            return FOUND, (
                f"{arch} cannot hold one block of {variant.threads} threads with {used.registers} "
                f"registers each and {used.shared_bytes} bytes of shared memory"
            )
        registers.append(used.registers)
        if wrong := subject.plain:
            return wrong
        A, B, C = subject.matrices(subject.shapes[1])
        body = re.sub(r"^\.target.*$", "", text, flags=re.MULTILINE)
        if body not in bits:
            if fault := caught(subject.prepare(A, B, C, 0.5 * subject.scaled, text).run):
                return FOUND, f"compiled for {arch}: {fault}"
            bits[body] = arch, C.tobytes()
    (first, expected), *others = bits.values()
    for arch, other in others:
        if other != expected:
            return FOUND, f"compiled for {arch} it computes other bits than for {first}"
    alike = f"{len(bits)} PTX texts give the same bits" if others else "one PTX for all"
    return NONE, f"{', '.join(able)}: {alike}, at most {max(registers)} registers a thread"


# --- launches beside each other, arrays beside each other -----------------------------------------


def seams(subject: Subject) -> Verdict:
    """Launches back to back, each on what the last one left."""
    on, edge = subject.on, subject.edge
    if wrong := subject.alone((edge,) * 3, subject.shapes[2]):
        return wrong
    A, B, _ = subject.matrices((edge,) * 3)
    other = map(on.asarray, subject.matrices(subject.shapes[2], seed=1))
    a, b = on.asarray(A.copy()), on.asarray(B.copy())  # NumPy's asarray copies nothing
    first, second, again = (on.zeros((edge, edge), np.float32) for _ in range(3))
    function = subject.function()

    def launches() -> None:
        subject.run(function, a, b, first)
        if subject.scaled:
            subject.run(function, a, b, first, beta=1)
        subject.run(function, *other)
        subject.run(function, first, b, second)
        subject.run(function, a, b, again)

    if fault := caught(launches):
        return FOUND, f"launched back to back: {fault}"
    product = (1 + subject.scaled) * _product(A, B)
    for name, C, right in (
        ("C = AB + C" if subject.scaled else "C = AB", first, product),
        ("the product of this C and B", second, _product(product, B)),
        ("the first product, once more,", again, _product(A, B)),
    ):
        if wrong := np.count_nonzero(on.asnumpy(C) != right):
            return FOUND, f"launched back to back, {name} has {wrong} of {C.size} elements wrong"
    return NONE, f"{4 + subject.scaled} launches back to back, each on what the last left: exact"


def aliasing(subject: Subject) -> Verdict:
    """A and B in one array; inputs that stay; the path for read-only data; C in A's place."""
    on, edge = subject.on, subject.edge
    A, B, C = subject.matrices((edge,) * 3)
    paths = _Paths()
    before = [X.copy() for X in (A, B, C)]
    fault = caught(subject.prepare(*before, 0.5 * subject.scaled, watch=paths).run)
    if both := sorted(paths.read_only & paths.written):
        return FOUND, f"it reads {both[0]} as data that nobody writes (ld.global.nc) and writes it"
    a, b, c = (on.asarray(X.copy()) for X in (A, B, C))
    function = subject.function()
    fault = fault or caught(lambda: subject.run(function, a, b, c))
    for name, before, after in (("A", A, a), ("B", B, b)):
        if not np.array_equal(on.asnumpy(after), before):
            return FOUND, f"it writes to {name}, an input"
    if wrong := subject.alone((edge,) * 3):
        return wrong
    if fault := fault or caught(lambda: subject.run(function, a, a, c)):
        return FOUND, f"with one array for A and B: {fault}"
    if wrong := np.count_nonzero(on.asnumpy(c) != _product(A, A)):
        return FOUND, f"with one array for A and B, {wrong} of {C.size} elements are wrong"
    over = A.copy()
    in_place = subject.prepare(over, B, over)
    in_place.batch = 1  # one block after another: later ones read what earlier ones wrote
    caught(in_place.run)
    wrong = np.count_nonzero(over != _product(A, B))
    try:
        launch(subject.variant, a, b, a, on=on)
    except ValueError:
        return NONE, (
            f"A·A is right; A and B stay as they were; C in A's place would get {wrong} of "
            f"{over.size} elements wrong: launch() refuses it"
        )
    return FOUND, "launch() takes a C that lies over A"


class _Paths:
    """Watches which arrays a launch writes, and which it loads as read-only data."""

    def __init__(self):
        self.read_only, self.written = set(), set()

    def access(self, batch, access, space, reach, start) -> None:
        region = batch.launch.memory.find(start) if space == "global" else None
        if region and access.kind != "load":
            self.written.add(region.name)
        elif region and ".nc" in access.ins.opcode:
            self.read_only.add(region.name)


# --- numbers --------------------------------------------------------------------------------------


def numbers(subject: Subject) -> Verdict:
    found = check(subject.variant, on=subject.on)
    if not found.ok:
        return FOUND, found.failures[0]
    for name, A, B in _hard(subject.edge + subject.edge % 2):
        if problem := _differs(subject, A, B):
            return FOUND, f"{name}, {_shown((len(A), B.shape[1], len(B)))}: {problem}"
    return NONE, (
        f"{len(found.shapes)} shapes, worst error {found.worst:.2f} of √K·eps·(|A||B|); sums that "
        "cancel, subnormals, Inf and NaN as in float64"
    )


def _hard(edge: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(what is hard about it, A, B); edge: rows and columns, an even number."""
    rng = np.random.default_rng(0)
    A, B = (rng.uniform(0.5, 1, (edge, edge)).astype(np.float32) for _ in range(2))
    twice, opposite = A.copy(), B.copy()
    twice[:, 1::2], opposite[1::2] = twice[:, ::2], -opposite[::2]
    twice[:, 0] += np.float32(2**-12)  # this is left when all else has cancelled
    yield "sums that cancel", twice, opposite
    yield "subnormal products", A * np.float32(2**-70), B * np.float32(2**-70)
    for value in (np.inf, np.nan):
        wild, zero = A.copy(), B.copy()
        wild[1, 2], zero[2, 3] = value, 0  # Inf · 0 is NaN
        yield f"{value} in A", wild, B
        yield f"{value} in A against a zero in B", wild, zero
        yield f"{value} in B", B, wild
    large, column = A.copy(), B.copy()
    large[0], column[5] = 0, 4
    large[0, 5] = 3e38
    yield "a product beyond the largest float", large, column


def _differs(subject: Subject, A: np.ndarray, B: np.ndarray) -> str:
    """The first element of C that float64 has otherwise; empty if there is none."""
    on = subject.on
    C = np.empty((len(A), B.shape[1]), np.float32)
    C.view(np.uint32)[...] = NAN
    out = on.asarray(C)
    if fault := caught(lambda: subject.run(subject.function(), on.asarray(A), on.asarray(B), out)):
        return str(fault)
    got = on.asnumpy(out)
    with np.errstate(all="ignore"):
        exact = _product(A, B)
        right = exact.astype(np.float32)
        bound = np.sqrt(len(B)) * EPS * _product(np.abs(A), np.abs(B)) + len(B) * 2.0**-149
        if on is not ptx:  # CuPy compiles with -ftz=true: what is subnormal may be 0
            bound = np.maximum(bound, len(B) * 2.0**-126)
        same = (got == right) | (np.isnan(got) & np.isnan(right)) | (np.abs(got - exact) <= bound)
    if same.all():
        return ""
    i, j = map(int, np.argwhere(~same)[0])
    return f"C[{i}, {j}] is {got[i, j]:.7g} and should be {right[i, j]:.7g}"


# --- macros and launches --------------------------------------------------------------------------


def coupling(subject: Subject) -> Verdict:
    """Macros against each other and against the launch; a grid that is larger than need be."""
    step = subject.step
    legal = step.variants() if step.macros else ()
    tried = dict.fromkeys(legal[n * (len(legal) - 1) // 3] for n in range(4)) if legal else ()
    for variant in tried:
        m, n, k = (size if size > 1 else 32 for size in variant.tile)
        found = check(variant, [(m + 1, n + 2, 2 * k + 3)], on=subject.on)
        if not found.ok:
            return FOUND, f"with {variant.label}, {found.failures[0]}"
    illegal = [f"{macro.name}={n}" for macro in step.macros for n in (-1, *macro.shown)]
    for setting in illegal:
        try:
            nvrtc.compile_ptx(step.source, (f"-D{setting}",), filename=step.filename)
        except nvrtc.CompileError:
            continue
        return FOUND, f"{setting} compiles, though no launch of it can be right"
    if wrong := subject.plain:
        return wrong
    A, B, C = subject.matrices(subject.shapes[1])
    larger = "a grid one block larger each way"
    if fault := caught(subject.prepare(A, B, C, more=1).run):
        return FOUND, f"{larger}: {fault}"
    if wrong := np.count_nonzero(_product(A, B) != C):
        return FOUND, f"{larger} makes {wrong} of {C.size} elements wrong"
    macros = f"{len(tried)} of {len(legal)} legal settings are right, {len(illegal)} illegal ones "
    return NONE, f"{bool(legal) * (macros + 'do not compile; ')}{larger} changes nothing"
