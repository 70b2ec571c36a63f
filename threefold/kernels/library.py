"""variant = the last of baseline < v3 < v4 (or neon) that is built and that this machine can run

Finds the compiled kernels, chooses the best variant and calls it through ctypes.
`THREEFOLD_KERNELS` overrides the choice: auto, reference, baseline, v3, v4 or neon.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Imported before any kernel is loaded: torch brings its own OpenMP, and a process must have one.
import torch
from torch import Tensor

import threefold.kernels
from threefold.errors import ThreefoldError

VARIANT_VARIABLE = "THREEFOLD_KERNELS"
# For developers: another folder to load the kernels from (`make sanitize` uses it).
FOLDER_VARIABLE = "THREEFOLD_KERNELS_FOLDER"

# In order of preference; the numbers are bits of threefold_runnable_variants.
VARIANTS = {"baseline": 1, "v3": 2, "v4": 4, "neon": 8}
CHOICES = ("auto", "reference", *VARIANTS)
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}

STATUS = {
    1: "a size is negative, or beyond what the kernel supports",
    2: "a row's length is outside 0 … L",
    3: "a log-decay is above 0 (a growth, not a decay)",
    4: "a token or a position is outside its table",
    5: "what it was recorded from has changed",
    6: "the logits contain NaN",
}
STALE, BAD_INDEX, NOT_A_NUMBER = 5, 4, 6


@dataclass(frozen=True)
class Signature:
    """How many arguments of each type a C function takes; their order is always the same."""

    pointers: int
    integers: int
    numbers: int = 0

    @property
    def types(self) -> list[type]:
        return (
            [ctypes.c_void_p] * self.pointers
            + [ctypes.c_int64] * self.integers
            + [ctypes.c_double] * self.numbers
        )


# One line for each function in native/operations.h.
SIGNATURES = {
    "cell_recurrence_forward": Signature(pointers=10, integers=6),
    "cell_recurrence_backward": Signature(pointers=12, integers=6),
    "cell_recurrence_workspace": Signature(pointers=1, integers=7),
    "legs_recurrence_forward": Signature(pointers=10, integers=6),
    "legs_recurrence_backward": Signature(pointers=13, integers=6),
    "legs_recurrence_workspace": Signature(pointers=1, integers=5),
    "diagonal_recurrence_forward": Signature(pointers=6, integers=6),
    "diagonal_recurrence_backward": Signature(pointers=9, integers=6),
    "reservoir_forward": Signature(pointers=9, integers=5, numbers=1),
    "reservoir_backward": Signature(pointers=9, integers=5, numbers=1),
    "decay_recurrence_forward": Signature(pointers=13, integers=9),
    "decay_recurrence_backward": Signature(pointers=20, integers=8),
    "decay_recurrence_workspace": Signature(pointers=1, integers=11),
    "delta_recurrence_forward": Signature(pointers=15, integers=9),
    "delta_recurrence_backward": Signature(pointers=23, integers=9),
    "delta_recurrence_workspace": Signature(pointers=1, integers=10),
    "short_convolution_forward": Signature(pointers=8, integers=7),
    "short_convolution_backward": Signature(pointers=12, integers=7),
    "long_convolution_forward": Signature(pointers=8, integers=8),
    "long_convolution_backward": Signature(pointers=10, integers=8),
    "online_convolution_spectrum": Signature(pointers=3, integers=4),
    "online_convolution": Signature(pointers=10, integers=6),
    "cauchy_forward": Signature(pointers=6, integers=4),
    "cauchy_backward": Signature(pointers=10, integers=4),
    "vandermonde_product": Signature(pointers=6, integers=6),
    "vandermonde_moments": Signature(pointers=7, integers=6),
    "linear": Signature(pointers=5, integers=4),
    "linear_narrow": Signature(pointers=5, integers=5),
    "linear_codes": Signature(pointers=6, integers=4),
    "rms_norm_forward": Signature(pointers=4, integers=5, numbers=1),
    "rms_norm_backward": Signature(pointers=8, integers=6, numbers=1),
    "swiglu_forward": Signature(pointers=3, integers=2),
    "swiglu_backward": Signature(pointers=5, integers=2),
    "rotary": Signature(pointers=5, integers=8),
    "token_shift_forward": Signature(pointers=6, integers=5),
    "token_shift_backward": Signature(pointers=10, integers=5),
    "selective_scan_forward": Signature(pointers=14, integers=13),
    "selective_scan_backward": Signature(pointers=25, integers=12),
    "time_warping": Signature(pointers=6, integers=6, numbers=1),
    "time_warping_workspace": Signature(pointers=1, integers=4),
    "random_convolutions": Signature(pointers=9, integers=6),
    "random_convolutions_workspace": Signature(pointers=1, integers=4),
    "word_vectors": Signature(pointers=7, integers=8, numbers=2),
    "word_vectors_workspace": Signature(pointers=1, integers=3),
    "spiking_reservoir": Signature(pointers=20, integers=8, numbers=8),
    "pointwise": Signature(pointers=5, integers=2, numbers=2),
    "reduce": Signature(pointers=3, integers=2, numbers=1),
    "product": Signature(pointers=4, integers=1),
    "convert": Signature(pointers=3, integers=1),
    "gather": Signature(pointers=3, integers=4),
    "from_integers": Signature(pointers=2, integers=2),
    "to_integers": Signature(pointers=2, integers=2),
    "history_step": Signature(pointers=11, integers=11, numbers=1),
    "test_function": Signature(pointers=2, integers=3),
}

Function = Callable[..., int]


@dataclass(frozen=True)
class Native:
    """A loaded variant of the kernels: its functions by (name, dtype)."""

    variant: str
    openmp: bool
    functions: dict[tuple[str, torch.dtype], Function]
    program: Function
    run_steps: Function
    checksum: Function

    def function(self, name: str, dtype: torch.dtype) -> Function:
        """The function of that name and dtype, or its replacement inside `calling`."""
        return (_replacements.functions or self.functions)[name, dtype]


class _Replacements(threading.local):
    functions: dict[tuple[str, torch.dtype], Function] | None = None


_replacements = _Replacements()


def built() -> dict[str, Path]:
    """The paths of the compiled variants next to the package, by name."""
    # An editable install keeps them in site-packages, so the package has two folders.
    folders = [Path(folder) for folder in threefold.kernels.__path__]
    if os.environ.get(FOLDER_VARIABLE):
        folders = [Path(os.environ[FOLDER_VARIABLE])]
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    found = {}
    for variant in VARIANTS:
        paths = (folder / f"libthreefold_kernels_{variant}{suffix}" for folder in folders)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            found[variant] = path
    return found


@cache
def runnable() -> tuple[str, ...]:
    """The built variants that this machine can run, slowest first."""
    found = built()
    # baseline and neon load on every machine of their kind, and report which others run.
    safe = next((found[variant] for variant in ("baseline", "neon") if variant in found), None)
    if safe is None:
        return ()
    bits = ctypes.CDLL(os.fspath(safe)).threefold_runnable_variants()
    return tuple(variant for variant in found if VARIANTS[variant] & bits)


def chosen() -> str:
    """The value of THREEFOLD_KERNELS, checked."""
    choice = os.environ.get(VARIANT_VARIABLE) or "auto"
    if choice not in CHOICES:
        raise ThreefoldError(f"{VARIANT_VARIABLE}={choice!r}: expected one of {', '.join(CHOICES)}")
    return choice


@cache
def load(variant: str) -> Native:
    """Load one variant, or raise with the reason why it cannot be used."""
    path = built().get(variant)
    if path is None:
        raise ThreefoldError(f"kernels {variant!r} are not built; built: {_names(built())}")
    if variant not in runnable():
        raise ThreefoldError(
            f"this machine cannot run the kernels {variant!r}; it can run: {_names(runnable())}"
        )
    library = ctypes.CDLL(os.fspath(path))
    _check_interface(library, path)
    functions = {
        (name, dtype): _bind(library, f"threefold_{name}_{suffix}", signature)
        for name, signature in SIGNATURES.items()
        for dtype, suffix in SUFFIXES.items()
    }
    program = _bind(library, "threefold_program", Signature(pointers=1, integers=1))
    run_steps = _bind(library, "threefold_run_steps", Signature(pointers=2, integers=0))
    total = _bind(library, "threefold_checksum", Signature(pointers=1, integers=1))
    total.restype = ctypes.c_uint64  # type: ignore[attr-defined]
    openmp = bool(library.threefold_has_openmp())
    return Native(variant, openmp, functions, program, run_steps, total)


def _names(variants: dict[str, Path] | tuple[str, ...]) -> str:
    return ", ".join(variants) or "none"


def _bind(library: ctypes.CDLL, name: str, signature: Signature) -> Function:
    function = getattr(library, name)
    function.argtypes = signature.types
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def _check_interface(library: ctypes.CDLL, path: Path) -> None:
    """Raise if the library was built from other sources: arguments and numbers may differ.

    A wheel has no sources: there both come from one build.
    """
    library.threefold_interface.restype = ctypes.c_char_p
    folder = Path(__file__).parent / "native"
    if not any(folder.glob("*.cpp")):
        return
    sources = sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h"))
    digests = (hashlib.sha256(path.read_bytes()).hexdigest() for path in sources)
    expected = hashlib.sha256("".join(digests).encode()).hexdigest()
    if library.threefold_interface().decode() != expected:
        raise ThreefoldError(f"{path} was built from other sources; rebuild it (`make setup`)")


@dataclass(frozen=True)
class Choice:
    """What runs: the native kernels, or plain torch and the reason for it."""

    native: Native | None
    reason: str | None = None


_current: Choice | None = None


def current() -> Choice:
    """What runs; decided at the first call."""
    global _current
    if _current is None:
        _current = _choose(chosen())
    return _current


def _choose(choice: str) -> Choice:
    if choice == "reference":
        return Choice(None, f"{VARIANT_VARIABLE}=reference")
    if choice != "auto":
        return Choice(load(choice))
    if not runnable():
        return Choice(None, _why_not_built())
    try:
        return Choice(load(runnable()[-1]))
    except (OSError, ThreefoldError) as error:
        return Choice(None, str(error))


def _why_not_built() -> str:
    for folder in threefold.kernels.__path__:
        note = Path(folder) / "build_failure.txt"
        if note.is_file():
            return note.read_text(encoding="utf-8").strip()
    return (
        "there are no compiled kernels next to the package: it runs from its sources, not installed"
    )


@contextlib.contextmanager
def using(choice: str) -> Iterator[Choice]:
    """Run with another choice inside `with`; for tests and benchmarks, in one thread."""
    global _current
    before, _current = _current, _choose(choice)
    try:
        yield _current
    finally:
        _current = before


@contextlib.contextmanager
def calling(functions: dict[tuple[str, torch.dtype], Function] | None) -> Iterator[None]:
    """Call these functions instead of the native ones inside `with`, in this thread."""
    before, _replacements.functions = _replacements.functions, functions
    try:
        yield
    finally:
        _replacements.functions = before


def contiguous(x: Tensor | None) -> Tensor | None:
    """x as a contiguous tensor; copied only if it is not contiguous."""
    return None if x is None else x.contiguous()


def with_unit_stride(x: Tensor) -> Tensor:
    """x with stride 1 along its last axis; a slice of a wider tensor is not copied."""
    return x if x.stride(-1) == 1 else x.contiguous()


def evenly_spaced(x: Tensor) -> tuple[Tensor, int]:
    """x [B, L, D] and the stride of its elements; a slice of a wider tensor is not copied."""
    batch, length, width = x.shape
    of_rows, of_elements, of_numbers = x.stride()
    if of_numbers == 1 or width == 1:
        if length == 1:
            return x, of_rows
        if batch == 1 or of_rows == length * of_elements:
            return x, of_elements
    return x.contiguous(), width


def call(
    name: str,
    outputs: Sequence[Tensor | None],
    inputs: Sequence[Tensor | None],
    sizes: Sequence[int],
    numbers: Sequence[float] = (),
    *,
    strides: Sequence[int] | None = None,
    laid_out: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Call a native function, with the number of threads after the other sizes.

    Outputs and workspace are new tensors, so contiguous. Inputs are made contiguous, unless they
    are `laid_out` as the function expects, or `strides` are passed after them. None is passed as
    null. The function is the one for the first output's dtype, unless `dtype` is given.
    """
    # The list keeps copies alive until the call returns: nothing else may own their memory.
    as_they_are = laid_out or strides is not None
    tensors = [*outputs, *(inputs if as_they_are else map(contiguous, inputs))]
    pointers: list[Any] = [None if x is None else x.data_ptr() for x in tensors]
    if strides is not None:
        pointers.append((ctypes.c_int64 * len(strides))(*strides))
    dtype = dtype or next(x.dtype for x in outputs if x is not None)
    invoke(name, dtype, pointers, sizes, numbers)


def workspace(name: str, like: Tensor, sizes: Sequence[int]) -> Tensor:
    """A buffer of the size that the native function `name` asks for."""
    elements = ctypes.c_int64()
    invoke(name, like.dtype, [ctypes.byref(elements)], sizes)
    return like.new_empty(elements.value)


def run_program(request: array[int], done: Any) -> int:
    """Run a program once or in a loop; returns the status. See native/program_loop.cpp."""
    native = current().native
    if native is None:
        raise ThreefoldError(f"a recorded program needs native kernels: {current().reason}")
    return native.run_steps(request.buffer_info()[0], done)


def checksum(address: int, size: int) -> int:
    """A number that changes with any of these bytes of memory."""
    native = current().native
    if native is None:
        return zlib.crc32(ctypes.string_at(address, size)) if size else 0
    return native.checksum(address, size)


def checksum_of(tensor: Tensor) -> int:
    """A number that changes with any of the tensor's numbers."""
    storage = tensor.untyped_storage()
    return checksum(storage.data_ptr(), storage.nbytes())


def invoke(
    name: str,
    dtype: torch.dtype,
    pointers: Sequence[Any],
    sizes: Sequence[int],
    numbers: Sequence[float] = (),
) -> None:
    """Call a native function with raw pointers; the caller keeps their tensors alive."""
    choice = current()
    if choice.native is None:
        raise ThreefoldError(f"{name} needs native kernels: {choice.reason}")
    function = choice.native.function(name, dtype)
    status = function(*pointers, *sizes, torch.get_num_threads(), *numbers)
    if status:
        raise ThreefoldError(f"{name}: {STATUS.get(status, f'status {status}')}")
