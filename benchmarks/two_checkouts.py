"""Is this checkout slower than another one?  The same work in both, taking turns in one run.

    python -m benchmarks.two_checkouts FOLDER [--kernels FOLDER] [--own-kernels FOLDER]
        [--rounds 15] [--mixers gla,s4d] [--only "forward and backward"]

FOLDER is another checkout of Threefold whose kernels are built, or with --kernels a folder that has
them; an editable install of this one has its kernels in `build/editable`.  Each checkout runs in
its own process, on one thread; both do one piece of work in each round, so that a slow moment of
the machine meets both.  Prints medians of the processor's time, and the median and the quartiles
of the ratios of the rounds, ours over theirs.  Without native kernels in both, it refuses.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SERVE = "--serve"
MIXERS = ("lstm", "gru", "attention", "s4d", "mamba", "mamba2", "gla", "gated_delta_net", "rwkv7")


def works(mixers: Sequence[str]) -> dict[str, Callable[[], None]]:
    """Pieces of work by name, of names that every version has."""
    import torch

    import threefold

    torch.manual_seed(0)
    torch.set_num_threads(1)
    found: dict[str, Callable[[], None]] = {}
    for name in mixers:
        spec = threefold.Spec("language", width=64, depth=2, mixers=name)
        model = threefold.build(spec).eval()
        tokens = torch.randint(256, (2, 256))

        def steps(model=model, tokens=tokens) -> None:  # type: ignore[no-untyped-def]
            with torch.no_grad():
                state = model.empty_state(1)
                for i in range(100):
                    _, state = model.step(tokens[:1, i], state)

        def training(model=model, tokens=tokens) -> None:  # type: ignore[no-untyped-def]
            logits, _ = model(tokens)
            logits.square().mean().backward()

        def padded(model=model, tokens=tokens) -> None:  # type: ignore[no-untyped-def]
            mask = torch.arange(256) < torch.tensor([[256], [100]])
            with torch.no_grad():
                model(tokens, mask=mask)

        found |= {f"{name}: 100 steps": steps, f"{name}: forward and backward": training}
        found[f"{name}: forward, padded"] = padded
    return found


def serve(folder: str, mixers: str) -> None:
    """Work in one checkout: do what standard input asks for, and answer how long it took."""
    sys.path[0] = folder
    # An editable install would import this checkout, whatever the path says.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in repr(finder)]
    from threefold.kernels import library

    native = library.current().native
    print(None if native is None else native.variant, flush=True)
    found = works(mixers.split(","))
    print(*found, sep="\t", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        found[line.rstrip("\n")]()
        print(time.process_time() - start, flush=True)


class Checkout:
    """A process that works in one checkout."""

    def __init__(self, folder: Path, kernels: Path | None, mixers: str) -> None:
        environment = dict(os.environ)
        if kernels is not None:
            environment["THREEFOLD_KERNELS_FOLDER"] = os.fspath(kernels.resolve())
        self.process = subprocess.Popen(
            [sys.executable, __file__, SERVE, os.fspath(folder), mixers],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.variant = self._answer()
        self.names = self._answer().split("\t")

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def seconds(self, name: str) -> float:
        """How long one piece of work takes."""
        assert self.process.stdin is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self._answer())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kernels", type=Path, help="folder with the kernels of that checkout")
    parser.add_argument("--own-kernels", type=Path, help="folder with the kernels of this one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mixers", default=",".join(MIXERS), help="names with commas between them")
    parser.add_argument("--only", default="", help="works whose name contains this")
    chosen = parser.parse_args()
    ours = Checkout(ROOT, chosen.own_kernels, chosen.mixers)
    theirs = Checkout(chosen.folder.resolve(), chosen.kernels, chosen.mixers)
    if ours.variant != theirs.variant or ours.variant == "None":
        sys.exit(f"kernels of this checkout: {ours.variant}, of the other one: {theirs.variant}; "
                 "give a folder with all variants of each")  # fmt: skip
    ratios = []
    for name in (name for name in ours.names if chosen.only in name):
        times: dict[Checkout, list[float]] = {ours: [], theirs: []}
        for turn in range(chosen.rounds + 2):
            for one in (ours, theirs) if turn % 2 else (theirs, ours):
                times[one].append(one.seconds(name))
        mine, other = times[ours][2:], times[theirs][2:]
        low, ratio, high = statistics.quantiles(
            [a / b for a, b in zip(mine, other, strict=True)], n=4
        )
        ratios.append(ratio)
        print(f"{name:36} {1000 * statistics.median(mine):9.2f} ms "
              f"{1000 * statistics.median(other):9.2f} ms {ratio:6.3f} × ({low:.3f} to {high:.3f})",
              flush=True)  # fmt: skip
    print(f"{'geometric mean':60} {statistics.geometric_mean(ratios):6.3f} ×, "
          f"largest {max(ratios):.3f}")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(*sys.argv[2:])
    else:
        main()
