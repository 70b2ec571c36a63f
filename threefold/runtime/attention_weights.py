"""Where a trained model looks: the attention weights of its layers for one raw input.

weights = threefold.attention_weights(model, "I loved it")
weights.layers["1"]                     [heads, queries, keys], the second block
weights.draw("attention.svg")           rows are queries, columns the keys that they read
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.text import Tokenize, WordNumbers
from threefold.drawing.attention import draw_attention_on_image, draw_weights
from threefold.errors import ThreefoldError, nearest, option
from threefold.layers.attention import Attention
from threefold.layers.attention_parts.cross_attention import CrossAttention
from threefold.models.model import Model
from threefold.models.saving import load
from threefold.models.seq2seq import Seq2Seq
from threefold.runtime.decoding import eval_mode
from threefold.runtime.prediction import empty_input, encode, find_preprocessing, translate
from threefold.runtime.raw_inputs import read_raw_inputs
from threefold.runtime.table_forecasts import forecast_series, history_series
from threefold.tasks.pairs import BEGIN, END

MOST_LABELS = 100  # of a picture; more are not readable


@dataclass(frozen=True)
class AttentionWeights:
    """Weights [heads, queries, keys] by layer, and what queries and keys stand for."""

    layers: dict[str, Tensor]
    queries: list[str]
    keys: list[str]
    image: Tensor | None = None  # of a captioner: what the queries look at
    grid: tuple[int, int] | None = None  # rows and columns of keys in it

    def draw(self, path: str | PathLike[str] | None = None, layer: str | None = None) -> Any:
        """Draw the heads of a layer, by default the last, or where in an image each word looks.

        Needs matplotlib (the extra `plot`).
        """
        name = list(self.layers)[-1] if layer is None else layer
        if name not in self.layers:
            raise ThreefoldError(f"no layer {name!r} with attention; {nearest(name, self.layers)}")
        if self.image is not None and self.grid is not None:
            weights = self.layers[name][0]
            return draw_attention_on_image(weights, self.image, self.grid, path, words=self.queries)
        queries, keys = (
            labels if len(labels) <= MOST_LABELS else None for labels in (self.queries, self.keys)
        )
        return draw_weights(self.layers[name], path, queries=queries, keys=keys)


def attention_weights(model: Model | str | PathLike[str], inputs: Any) -> AttentionWeights:
    """The attention weights of every layer that has them, for one raw input.

    Causal models: row i reads columns 0 … i.  Translators: rows are the tokens of the model's own
    translation, columns those of the source; captioners: those of its caption, and the positions in
    the image.  Layers without softmax attention have no weights.
    """
    network: Any = model if isinstance(model, Model) else load(model)
    if network.kind == "hierarchical":
        raise ThreefoldError(
            "a hierarchical model has weights for every sentence apart, not for one sequence; "
            "call the mixers of model.words and model.document instead"
        )
    preprocessing = find_preprocessing(network)
    with torch.no_grad(), eval_mode(network), _watch(network) as layers:
        if network.kind == "forecaster":
            labels = _run_forecaster(network, preprocessing, inputs)
            return AttentionWeights(_found(network, layers), labels, labels)
        rows = read_raw_inputs(preprocessing, inputs)
        if len(rows) != 1:
            raise ThreefoldError(f"{len(rows)} inputs; attention weights are those of one input")
        encoded = encode(preprocessing.inputs, rows[0])
        if not len(encoded):
            raise empty_input(rows[0])
        if network.kind == "captioner":
            return _captioner(network, preprocessing, encoded)
        keys = _labels(preprocessing.inputs, encoded.tolist(), rows[0].value)
        if network.kind in ("seq2seq", "transformer"):
            return _translator(network, preprocessing, encoded, keys)
        tokens = encoded.dtype.kind in "iu"
        dtype = torch.int64 if tokens else network.embedding.weight.dtype
        network(torch.from_numpy(encoded).to(network.device, dtype).unsqueeze(0))
    return AttentionWeights(_found(network, layers), keys, keys)


@contextmanager
def _watch(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the weights of the first call of every layer with attention."""
    layers: dict[str, Tensor] = {}
    watched = [(n, m) for n, m in model.named_modules() if isinstance(m, Attention)]
    hooks = [
        module.register_forward_hook(_cross_hook(layers, _short(name)))
        for name, module in model.named_modules()
        if isinstance(module, CrossAttention)
    ]
    for name, module in watched:
        module.mix = _watched_mix(module, layers, _short(name))  # type: ignore[method-assign]
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()
        for _, module in watched:
            del module.mix


def _watched_mix(module: Attention, layers: dict[str, Tensor], name: str) -> Any:
    mix = module.mix

    def watched(x: Tensor, state: Any, form: str, lengths: Tensor | None) -> Any:
        if name not in layers:
            layers[name] = module.weights(x)[0]
        return mix(x, state, form, lengths)

    return watched


def _cross_hook(layers: dict[str, Tensor], name: str) -> Any:
    def record(module: Any, arguments: tuple[Any, ...], outputs: Any) -> None:
        layers[name] = module.weights(arguments[0], outputs[1])[0]

    return record


def _short(name: str) -> str:
    """stack.blocks.3.mixer → 3; both directions and encoders keep what tells them apart."""
    words = [part for part in name.split(".") if part not in ("stack", "blocks", "attention")]
    return ".".join(word for word in words if word != "mixer") or "0"


def _found(model: Model, layers: dict[str, Tensor]) -> dict[str, Tensor]:
    if not layers:
        mixers = ", ".join(dict.fromkeys(name for name, _ in model.spec.entries))
        raise ThreefoldError(
            f"no layer of this model has attention weights: its mixers are {mixers}; train one "
            f"with attention, e.g. {option('mixers', 'attention')} or a hybrid such as "
            f"{option('mixers', 'gru+attention')}"
        )
    return layers


def _labels(chain: Chain, elements: Sequence[Any], value: Any) -> list[str]:
    """A text for every element: its token, its word, or its number."""
    step = chain.find(Tokenize)
    if step is not None:
        return [repr(step.invert([token]))[1:-1] or str(token) for token in elements]
    if chain.find(WordNumbers) is not None:
        return [str(word) for word in value[: len(elements)]]
    return [str(number) for number in range(1, len(elements) + 1)]


def _run_forecaster(model: Any, preprocessing: Preprocessing, history: Any) -> list[str]:
    series = history_series(preprocessing, history)[0]
    forecast_series(model, preprocessing, series, 1)
    count = min(len(series.values), preprocessing.context or len(series.values))
    return [str(number) for number in range(1 - count, 1)]


def _translator(
    model: Any, preprocessing: Preprocessing, source: Any, keys: list[str]
) -> AttentionWeights:
    """The weights of the model's own translation over the source."""
    tokens, queries = _written(model, preprocessing, source)
    row = torch.tensor([[BEGIN, *source.tolist(), END]], device=model.device)
    keys = ["begin", *keys, "end"]
    if isinstance(model, Seq2Seq):
        return AttentionWeights({"decoder": model.align(row, tokens)}, queries, keys)
    with _watch(model) as layers:
        model(tokens, model.encode(row))
    cross = {name: part for name, part in layers.items() if "cross" in name}
    return AttentionWeights(cross, queries, keys)


def _captioner(model: Any, preprocessing: Preprocessing, image: Any) -> AttentionWeights:
    """The weights of the model's own caption over the positions of an image."""
    if model.encoder.grid is None:
        raise ThreefoldError(
            "this captioner reads vectors, which have no positions to look at; attention weights "
            "are those of a captioner of images"
        )
    tokens, queries = _written(model, preprocessing, image)
    pixels = torch.from_numpy(image)
    layers = {"decoder": model.align(pixels.to(model.device, model.dtype).unsqueeze(0), tokens)}
    down, across = model.encoder.grid
    keys = [f"{row},{column}" for row in range(down) for column in range(across)]
    return AttentionWeights(layers, queries, keys, pixels, model.encoder.grid)


def _written(model: Any, preprocessing: Preprocessing, source: Any) -> tuple[Tensor, list[str]]:
    """The tokens [1, L] that the decoder reads while it writes its text, and what each writes."""
    made = translate(model, preprocessing, [source])[0]
    queries = [repr(preprocessing.outputs.invert([t]))[1:-1] or "end" for t in made]
    return torch.tensor([[BEGIN, *made[:-1]]], device=model.device), queries
