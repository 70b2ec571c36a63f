"""Small models, where the calls take longer than the numbers: one step, one generated token.

Width 64, two layers, 256 tokens, about 140,000 weights, one thread. A peer is plain torch with
`nn.LSTMCell`, and the same network exported with its state to onnxruntime, where it is installed.
Contenders that are other models are not compared in their results. Times are per step: each
contender takes `STEPS` of them.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import threefold
from benchmarks.measure import Comparison, Contender, max_ratio, min_speedup, on_one_thread
from threefold.memory.state import State
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.runtime.native_loop import read_steps

MEMORY = ("default",)
STEPS = 200
MANY = 1000  # tokens of a model whose state does not grow
VOCABULARY = 256
STEPPED = (
    "lstm",
    "gru",
    "mamba",
    "gated_delta_net",
    "s4d",
    "rwkv7",
    "attention",
    "local_attention",
)
GENERATED = ("lstm", "gru", "mamba", "gated_delta_net", "s4d", "rwkv7", "attention")
TORCH, ONNX = "torch, LSTMCell", "onnxruntime, LSTM"


def language_model(mixer: str, width: int = 64, depth: int = 2) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Spec("language", width, depth, mixer, vocabulary=VOCABULARY)).eval()


class ExportedNorm(nn.Module):
    """The RMS norm in operations that the exporter knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Peer(nn.Module):
    """The LSTM language model of the same size in plain torch, one step with its state."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(depth))
        hidden = 176
        self.gates = nn.ModuleList(nn.Linear(width, 2 * hidden) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(hidden, width) for _ in range(depth))
        self.norms = nn.ModuleList(ExportedNorm(width) for _ in range(2 * depth + 1))

    def forward(self, token: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embedding(token)
        after = []
        for layer, unit in enumerate(self.cells):
            h, c = unit(self.norms[2 * layer](x), (hidden[layer], cell[layer]))
            after.append((h, c))
            x = x + h
            value, gate = self.gates[layer](self.norms[2 * layer + 1](x)).chunk(2, -1)
            x = x + self.outs[layer](value * nn.functional.silu(gate))
        logits = nn.functional.linear(self.norms[-1](x), self.embedding.weight)
        return logits, torch.stack([h for h, _ in after]), torch.stack([c for _, c in after])


def torch_steps(peer: Peer, rows: int = 1, count: int = STEPS) -> Contender:
    """Greedy tokens, one call of the module each."""
    state = [torch.zeros(2, rows, 64), torch.zeros(2, rows, 64)]

    @torch.no_grad()
    def run() -> list[Tensor]:
        token = torch.ones(rows, dtype=torch.int64)
        for _ in range(count):
            logits, *state[:] = peer(token, *state)
            token = logits.argmax(-1)
        return []

    return run


def onnx_steps(peer: Peer, count: int = STEPS) -> Contender | None:
    """The same exported with its state; None where onnxruntime is not installed."""
    if not all(map(importlib.util.find_spec, ("onnxruntime", "onnx"))):
        return None
    import onnxruntime

    file, given = io.BytesIO(), (torch.ones(1, dtype=torch.int64), *torch.zeros(2, 2, 1, 64))
    names = ["token", "hidden", "cell"], ["logits", "hidden_after", "cell_after"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            peer, given, file, input_names=names[0], output_names=names[1], dynamo=False
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options)
    first = [x.numpy() for x in given]

    def run() -> list[Tensor]:
        token, hidden, cell = first
        for _ in range(count):
            feed = {"token": token, "hidden": hidden, "cell": cell}
            logits, hidden, cell = session.run(None, feed)
            token = logits.argmax(-1)
        return []

    return run


def steps(model: LanguageModel, rows: int = 1, context: int = 256) -> Contender:
    """`model.step`, one call for each token, from a context of that many tokens."""
    with torch.no_grad():
        _, start = model(torch.randint(VOCABULARY, (rows, context - STEPS)))

    @torch.no_grad()
    def run() -> list[Tensor]:
        state: State = start
        token = torch.ones(rows, dtype=torch.int64)
        for _ in range(STEPS):
            _, state = model.step(token, state)
        return []

    return run


def generated(model: LanguageModel, temperature: float, count: int = STEPS) -> Contender:
    """`threefold.generate`, prompt included; with STEPS tokens the context ends at 256."""
    prompt = torch.randint(VOCABULARY, (1, 256 - STEPS))

    def run() -> list[Tensor]:
        threefold.generate(model, prompt, max_tokens=count, temperature=temperature, seed=0)
        return []

    return run


def read_samples(mixer: str) -> Contender:
    """A forecaster of width 32 with one layer that reads a signal sample by sample."""
    spec = Spec("forecaster", 32, 1, mixer, options={"channels": 1, "horizon": 1})
    model: Any = threefold.build(spec).eval()
    samples = torch.randn(1, STEPS, 1)

    @torch.no_grad()
    def run() -> list[Tensor]:
        found = read_steps(model, samples, model.empty_state(1))
        assert found is not None
        return []

    return run


def compared(title: str, contenders: dict[str, Contender], **more: Any) -> Comparison:
    one_thread = {name: on_one_thread(run) for name, run in contenders.items()}
    return Comparison(
        f"{title}, {more.pop('count', STEPS)} steps",
        one_thread,
        unchecked=tuple(contenders),
        rounds=more.pop("rounds", 15),
        **more,
    )


def run(make: Callable[..., Comparison] = compared) -> Iterator[Comparison]:
    """One row by steps and by the native loop, sixteen rows, and a signal sample by sample."""
    peer = Peer().eval()
    others = {TORCH: torch_steps(peer)}
    onnx = onnx_steps(peer)
    if onnx is not None:
        others[ONNX] = onnx
    models = {name: language_model(name) for name in STEPPED}
    ours = {f"threefold, {name}": steps(model) for name, model in models.items()}
    yield make("model.step, width 64 × 2", {**ours, **others}, targets=(max_ratio(0.5, TORCH),))
    names = [name for name in GENERATED if name != "attention"]
    loops = {f"threefold, {name}": generated(models[name], 1.0, MANY) for name in names}
    loops[TORCH] = torch_steps(peer, count=MANY)
    exported = onnx_steps(peer, MANY)
    if exported is not None:
        loops[ONNX] = exported
    yield make("generate, width 64 × 2", loops, count=MANY, targets=(min_speedup(2.0, ONNX),))
    short = {"threefold, attention": generated(models["attention"], 1.0)}
    yield make("generate, context 256", short)
    rows = {f"threefold, {name}": steps(models[name], 16) for name in STEPPED}
    many = {**rows, TORCH: torch_steps(peer, 16)}
    yield make("model.step of 16 rows", many, targets=(max_ratio(0.5, TORCH),))
    yield make(
        "samples, width 32 × 1", {f"threefold, {n}": read_samples(n) for n in ("lstm", "s4d")}
    )


def quick() -> Iterator[Comparison]:
    """One model, two rounds."""
    model = language_model("lstm")
    yield compared("model.step", {"threefold, lstm": steps(model)}, rounds=2)
    yield compared("generate", {"threefold, lstm": generated(model, 0.0)}, rounds=2)
    yield compared("samples", {"threefold, lstm": read_samples("lstm")}, rounds=2)
