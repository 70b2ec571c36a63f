"""`threefold doctor`: what is installed, which kernels run, and whether they compute correctly."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from threefold.cli import options, output

if TYPE_CHECKING:
    from torch import Tensor

    from threefold.layers.mixer import Mixer

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
# Relative error above which a self-check fails; the tests are stricter.
MAX_ERROR = 1e-4


def doctor(as_json: options.AsJson = False) -> None:
    """Show versions, processor, kernels and extras, and check that the kernels are correct."""
    report = examine()
    if as_json:
        output.say_json(report)
    else:
        say_report(report)
    if not all(check["passed"] for check in report["checks"]):
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Return the whole report as plain values."""
    import torch

    from threefold import __version__
    from threefold.kernels import ops

    return {
        "versions": {
            "threefold": __version__,
            "python": platform.python_version(),
            **{name: version_of(name) for name in PACKAGES},
        },
        "processor": {
            "name": processor_name(),
            "architecture": platform.machine(),
            "instruction_set": torch.backends.cpu.get_cpu_capability(),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "kernels": kernels(),
        "operations": ops.available(),
        "steps": steps(),
        "extras": extras(),
        "checks": [
            {"name": name, "error": error, "passed": error <= MAX_ERROR} for name, error in checks()
        ],
    }


def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    """Return the name of the processor, if the system provides it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
            return next(names, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def kernels() -> dict[str, Any]:
    """Return the variant in use, or why there is none, and which variants are built and can run."""
    from threefold.kernels import library

    current = library.current()
    built, runnable = list(library.built()), list(library.runnable())
    return {
        "requested": library.chosen(),
        "variant": None if current.native is None else current.native.variant,
        "openmp": current.native is not None and current.native.openmp,
        "reason": current.reason,
        "built": built,
        "runnable": runnable,
        "untested": [variant for variant in built if variant not in runnable],
    }


def steps() -> dict[str, Any]:
    """Whether steps run as native programs, and the mixers that do not, with the reasons."""
    import torch

    from threefold.kernels import library
    from threefold.kernels.replay.stepping import enabled, refusals
    from threefold.layers.table import MIXERS, mixer

    if library.current().native is None or not enabled():
        return {"native": False, "refused": {}}
    refused = {}
    for name, entry in MIXERS.items():
        if not entry.load().causal:
            continue
        layer = mixer(name, width=16).eval()
        with torch.no_grad():
            layer(torch.zeros(1, 1, 16), form="step")
        for reason in refusals(layer):
            refused[name] = reason
    return {"native": True, "refused": refused}


def extras() -> dict[str, list[str]]:
    """Return the optional extras of the package, and the missing packages of each."""
    from importlib import metadata

    try:
        requirements = metadata.requires("threefold") or []
    except metadata.PackageNotFoundError:
        return {}
    missing: dict[str, list[str]] = {}
    for line in requirements:
        match = re.fullmatch(r"([\w.-]+)([^;]*);.*\bextra == ['\"]([\w-]+)['\"].*", line)
        if match:
            package, version, extra = match.groups()
            absent = version_of(package) is None
            missing.setdefault(extra, []).extend([package + version.strip()] if absent else [])
    return missing


# For each native operation, a mixer that uses it and a sequence length for which it does.
CHECKED_WITH = {
    "short_convolution": ("mamba2", 33),
    "linear": ("gla", 1),
    "rms_norm": ("mamba2", 33),
    "rotary": ("attention", 33),
    "filter_step": ("s4d", 1),
    "token_shift": ("rwkv6", 33),
    "selective_scan": ("mamba", 33),
    "decay_recurrence": ("gla", 33),
    "delta_recurrence": ("gated_delta_net", 33),
    "cell_recurrence": ("lstm", 33),
    "legs_recurrence": ("hippo_rnn", 33),
    "diagonal_recurrence": ("lru", 33),
    "long_convolution": ("long_conv", 33),
    "online_convolution": ("long_conv", 1),
    "vandermonde": ("s4d", 33),
    "moments": ("s4d", 33),
    "reservoir": ("esn", 33),
    "cauchy": ("s4", 33),
    "history_step": ("attention", 1),
    "block_products": ("mlstm", 33),
}
# The form to use where `auto` would choose another.
CHECKED_FORM = {"cauchy": "parallel"}


def checks() -> Iterator[tuple[str, float]]:
    """Do small computations in two ways; yield (what must be equal, relative error)."""
    import torch

    from threefold.kernels import library
    from threefold.layers.table import mixer
    from threefold.memory.linear.recurrence import linear_recurrence

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    query, key, value = random(3, 1, 48, 2, 8).unbind(0)
    decay = -random(1, 48, 2, 8).abs()
    step, chunk, parallel = (
        linear_recurrence(query, key, value, log_decay=decay, form=form, chunk=16)[0]
        for form in ("step", "chunk", "parallel")
    )
    yield "linear_recurrence: step = chunk", relative_error(chunk, step)
    yield "linear_recurrence: step = parallel", relative_error(parallel, step)
    if library.current().native is None:
        return
    for operation, (name, length) in CHECKED_WITH.items():
        layer = mixer(name, width=32).eval()
        x, form = random(2, length, 32), CHECKED_FORM.get(operation, "auto")
        with torch.no_grad():
            native = answer_twice(layer, x, form)
            with library.using("reference"):
                expected = answer_twice(layer, x, form)
        yield f"{operation}: native = reference", relative_error(native, expected)
    for operation, run in classical_operations(random(4, 40, 2)).items():
        native = run()
        with library.using("reference"):
            yield f"{operation}: native = reference", relative_error(native, run())


def classical_operations(series: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The operations that no mixer has, on some series."""
    import torch

    from threefold.classical.random_convolutions import RandomConvolutions
    from threefold.classical.time_warping import time_warping_distances
    from threefold.classical.word_vectors import WordVectors
    from threefold.estimators.liquid_state_machine import LiquidStateMachine
    from threefold.kernels import ops
    from threefold.layers.linear import encode_rows

    convolutions = RandomConvolutions.fit(series, features=168)
    codes, scale = encode_rows(series[1])
    # One sentence is read by one thread: several would change the last digits.
    words = [f"w{number % 7}" for number in range(40)]

    def word_vectors() -> Tensor:
        vectors = WordVectors.fit([words], width=4, minimum_count=1, passes=20)
        return torch.from_numpy(vectors.vectors)

    def spikes() -> Tensor:
        states = LiquidStateMachine(input_scale=100.0).states(10 * series[0].abs())
        return torch.as_tensor(states)

    large = series.flatten().repeat(800).view(400, 640)
    return {
        "matrix_product": lambda: ops.linear(large, large[:64]),
        "linear_codes": torch.no_grad()(lambda: ops.linear_codes(series[0, :4], codes, scale)),
        "word_vectors": word_vectors,
        "spiking_reservoir": spikes,
        "random_convolutions": lambda: convolutions.transform(series),
        "swiglu": lambda: ops.swiglu(series, series.flip(0)),
        "time_warping": lambda: time_warping_distances(series, series.flip(0)),
    }


def answer_twice(layer: Mixer, x: Tensor, form: str) -> Tensor:
    """The outputs for x and, continuing from the state after it, for x again."""
    import torch

    first, state = layer(x, form=form)
    return torch.cat([first, layer(x, state, form=form)[0]], 1)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """max|a − b| / max|b|; infinite if a number is not finite."""
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    return float(error) if error == error else float("inf")


def say_report(report: dict[str, Any]) -> None:
    processor = report["processor"]
    versions = (f"{name} {version or 'missing'}" for name, version in report["versions"].items())
    output.say_facts(
        (
            ("versions", " · ".join(versions)),
            (
                "processor",
                f"{processor['name']} · {processor['architecture']} · "
                f"{processor['instruction_set']}",
            ),
            ("threads", f"{processor['threads']} of {processor['cpus']} processors"),
            ("kernels", kernel_lines(report["kernels"])),
            ("operations", operation_lines(report["operations"], report["kernels"]["reason"])),
            ("steps", step_lines(report["steps"])),
            ("extras", extra_lines(report["extras"])),
            ("checks", check_lines(report["checks"])),
        )
    )
    failed = sum(not check["passed"] for check in report["checks"])
    if failed:
        output.say("\n" + bad(f"{failed} of {len(report['checks'])} checks failed."))
    elif report["kernels"]["variant"] is None:
        output.say("\n" + weak("Everything works, but slowly: there are no native kernels."))
    else:
        output.say("\n" + good("Everything works."))


def kernel_lines(kernels: dict[str, Any]) -> Iterator[str]:
    variant = kernels["variant"]
    if variant is None:
        yield weak(f"plain PyTorch is used: {kernels['reason']}")
    else:
        yield good(
            f"native, variant {variant}, {'with' if kernels['openmp'] else 'without'} OpenMP"
        )
    yield f"  variants built: {', '.join(kernels['built']) or 'none'}"
    if kernels["untested"]:
        yield weak(
            f"cannot run on this processor, so not checked: {', '.join(kernels['untested'])}"
        )


def operation_lines(operations: dict[str, str], reason: str | None) -> Iterator[str]:
    for name, kind in operations.items():
        yield good(f"{name}: native") if kind == "native" else weak(f"{name}: {kind}, {reason}")
    yield "  all others: plain PyTorch"


def step_lines(steps: dict[str, Any]) -> Iterator[str]:
    if not steps["native"]:
        yield weak("run the ordinary way: no kernels, or THREEFOLD_REPLAY=0")
        return
    yield good("one native call, or many steps in one")
    for name, reason in steps["refused"].items():
        yield weak(f"{name}: the ordinary way ({reason})")


def extra_lines(extras: dict[str, list[str]]) -> Iterator[str]:
    if not extras:
        yield weak("unknown: threefold is not installed, it runs from its source folder")
    for name, missing in extras.items():
        yield weak(f"{name}: pip install {shlex.join(missing)}") if missing else good(name)


def check_lines(checks: list[dict[str, Any]]) -> Iterator[str]:
    for check in checks:
        line = f"{check['name']} (relative error {check['error']:.0e})"
        yield good(line) if check["passed"] else bad(line)


def good(text: str) -> str:
    return output.paint(f"✓ {text}", "good")


def weak(text: str) -> str:
    return output.paint(f"– {text}", "weak")


def bad(text: str) -> str:
    return output.paint(f"✗ {text}", "bad")
