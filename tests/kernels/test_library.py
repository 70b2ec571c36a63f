"""Finding, choosing and calling the compiled kernels, and saying why not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.kernels.declaration import Prototype
from threefold.kernels.declarations import PROTOTYPES

NATIVE = Path(library.__file__).parent / "native"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def in_header(text: str) -> dict[str, Prototype]:
    """The functions as native/operations.h declares them."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = {}
    for name, arguments in re.findall(r"THREEFOLD_NAME\((\w+)\)\s*\((.*?)\);", text, re.DOTALL):
        groups: dict[str, list[str]] = {"output": [], "input": [], "int64_t": [], "double": []}
        for argument in map(str.split, arguments.replace("*", " * ").split(",")):
            pointer = "*" in argument
            kind = ("input" if argument[0] == "const" else "output") if pointer else argument[0]
            groups[kind].append(argument[-1] + "?" * ("optional" in argument))
        order = [*groups["output"], *groups["input"], *groups["int64_t"], *groups["double"]]
        names = [argument.split()[-1].strip("*") for argument in arguments.split(",")]
        assert [one.strip("?") for one in order] == names, (
            f"{name}: outputs, inputs, sizes, numbers"
        )
        assert groups["int64_t"][-1] == "threads", name
        found[name] = Prototype(
            name,
            tuple(groups["output"]),
            tuple(groups["input"]),
            tuple(groups["int64_t"][:-1]),
            tuple(groups["double"]),
        )
    return found


def test_declarations_are_the_header() -> None:
    """Names, their order, and what may be null; so no two arguments can be exchanged."""
    text = (NATIVE / "operations.h").read_text()
    assert in_header(text) == PROTOTYPES
    exchanged = text.replace("const real *x, const real *share", "const real *share, const real *x")
    assert exchanged != text
    assert in_header(exchanged) != PROTOTYPES


def test_status_codes_are_the_header() -> None:
    codes = re.findall(
        r"THREEFOLD_(?:BAD_|STALE|NOT_)\w* = (\d+)", (NATIVE / "threefold.h").read_text()
    )
    assert [int(code) for code in codes] == list(library.STATUS)


def test_variant_bits_are_the_header() -> None:
    text = (NATIVE / "threefold.h").read_text()
    for variant, bit in library.VARIANTS.items():
        assert f"THREEFOLD_{variant.upper()} = {bit}," in text


def test_kernels_are_built_and_in_use() -> None:
    """The kernel tests would be meaningless if they ran the reference."""
    assert library.current().native is not None, library.current().reason
    assert library.current().reason is None
    assert set(library.runnable()) <= set(library.built())
    assert set(ops.available().values()) == {"native"}


def test_best_variant_is_chosen() -> None:
    with library.using("auto") as choice:
        assert choice.native is not None
        assert choice.native.variant == library.runnable()[-1]
        assert choice.native.openmp


def test_variant_that_cannot_run_is_refused() -> None:
    for variant in library.VARIANTS:
        if variant not in library.built():
            with pytest.raises(ThreefoldError, match=f"{variant}.*not built; built: "):
                library.load(variant)
        elif variant not in library.runnable():
            with pytest.raises(ThreefoldError, match=f"cannot run the kernels '{variant}'"):
                library.load(variant)


def test_reference_by_environment() -> None:
    code = (
        "import torch; from threefold.kernels import library, ops\n"
        "y, state = ops.short_convolution(torch.ones(1, 3, 2), torch.ones(2, 4))\n"
        "kinds = set(ops.available().values())\n"
        "print(library.current().native, library.current().reason, kinds, y[0, :, 0])"
    )
    done = python(code, THREEFOLD_KERNELS="reference")
    assert done.returncode == 0, done.stderr
    assert "None THREEFOLD_KERNELS=reference {'reference'}" in done.stdout
    assert "[1., 2., 3.]" in done.stdout


def test_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_KERNELS", "fastest")
    expected = "THREEFOLD_KERNELS='fastest': expected one of auto, reference, baseline, v3, v4"
    with pytest.raises(ThreefoldError, match=expected):
        library.chosen()


def test_missing_kernels_give_the_reference_and_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THREEFOLD_KERNELS_FOLDER", str(tmp_path))
    monkeypatch.setattr(library, "runnable", library.runnable.__wrapped__)
    assert library.built() == {}
    with library.using("auto") as choice:
        assert choice.native is None
        assert choice.reason is not None
        assert choice.reason.startswith("there are no compiled kernels")


def test_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"another interface")
    with pytest.raises(ThreefoldError, match="built from other sources; rebuild it"):
        library.load.__wrapped__(library.runnable()[0])


def test_status_becomes_an_error(variant: str) -> None:
    x = torch.zeros(3)
    with pytest.raises(ThreefoldError, match="test_function: a size is negative"):
        library.call("test_function", [x], [x], [-1, 0])


def test_call_without_kernels_says_why() -> None:
    with library.using("reference"), pytest.raises(ThreefoldError, match="needs native kernels"):
        library.call("test_function", [torch.zeros(3)], [torch.zeros(3)], [3, 0])
