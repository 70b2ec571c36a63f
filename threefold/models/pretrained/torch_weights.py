"""Load the weights of torch.nn.RNN, LSTM and GRU into mixers that compute the same outputs.

torch has two biases where only their sum matters; only the candidate of the GRU needs both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.cell_mixer import CellMixer
from threefold.layers.gru import GRU
from threefold.layers.lstm import LSTM
from threefold.layers.rnn import RNN

GATES = {LSTM: 4, GRU: 3, RNN: 1}


def load_torch_weights(
    mixer: CellMixer,
    source: nn.RNNBase | Mapping[str, Tensor],
    *,
    layer: int = 0,
    reverse: bool = False,
) -> None:
    """Copy one layer of a torch module, or of its state dict, into an rnn, lstm or gru in place.

    The mixer must compute what torch does: `gru` with `reset_after=True`, `rnn` with the module's
    activation and `readout=False`, and the module's sizes.  If hidden is not the width, the
    read-out of the mixer keeps its weights.  `reverse` takes the weights of the backward direction.
    """
    _check(mixer, source)
    weights = source.state_dict() if isinstance(source, nn.RNNBase) else source
    ending = f"l{layer}{'_reverse' if reverse else ''}"
    names = {name: f"{name}_{ending}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    tensors = {name: weights.get(full) for name, full in names.items()}
    targets = {"weight_ih": mixer.input.weight, "weight_hh": mixer.recurrent[0]}
    for name, target in targets.items():
        tensor = tensors[name]
        if tensor is None or tensor.shape != target.shape:
            shape = "missing" if tensor is None else f"{tuple(tensor.shape)}"
            raise ThreefoldError(
                f"{mixer.name}: {names[name]} is {shape}, expected {tuple(target.shape)} for "
                f"width={mixer.width}, hidden={mixer.hidden}; the source has {sorted(weights)}"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])  # type: ignore[arg-type]
        _copy_biases(mixer, tensors["bias_ih"], tensors["bias_hh"])


def _copy_biases(mixer: CellMixer, outer: Tensor | None, inner: Tensor | None) -> None:
    bias = mixer.input.bias
    bias.zero_()
    if outer is None or inner is None:
        outer, inner = torch.zeros_like(bias), torch.zeros_like(bias)
    bias.add_(outer.to(bias))
    if isinstance(mixer, GRU) and mixer.inner_bias is not None:
        of_gates = 2 * mixer.hidden
        bias[:of_gates].add_(inner[:of_gates].to(bias))
        mixer.inner_bias[0].copy_(inner[of_gates:])
    else:
        bias.add_(inner.to(bias))


def _check(mixer: CellMixer, source: nn.RNNBase | Mapping[str, Tensor]) -> None:
    if type(mixer) not in GATES:
        known = ", ".join(cls.__name__ for cls in GATES)
        raise ThreefoldError(f"{mixer.name}: torch has no such layer; only {known} can be loaded")
    if isinstance(mixer, GRU) and mixer.cell.kind != "gru_after":
        raise ThreefoldError(
            "GRU: torch applies the reset gate after the product, and its gate z keeps the old "
            'state; make it with reset_after=True, as in mixer("gru", width=…, reset_after=True)'
        )
    if mixer.out is not None and mixer.hidden == mixer.width:
        raise ThreefoldError(
            f"{mixer.name}: torch has no read-out; make the mixer with readout=False"
        )
    if isinstance(source, nn.RNNBase):
        _check_module(mixer, source)
    elif any("weight_hr" in name for name in source):
        raise ThreefoldError(f"{mixer.name}: projections (proj_size) are not supported")


def _check_module(mixer: CellMixer, module: nn.RNNBase) -> None:
    expected = {"LSTM": LSTM, "GRU": GRU}.get(module.mode, RNN)
    if not isinstance(mixer, expected):
        raise ThreefoldError(
            f"{mixer.name}: cannot take the weights of a torch.nn.{type(module).__name__}"
        )
    if module.proj_size:
        raise ThreefoldError(f"{mixer.name}: projections (proj_size) are not supported")
    if isinstance(mixer, RNN) and mixer.cell.kind != module.mode.lower():
        raise ThreefoldError(
            f"RNN: the module's activation is {module.mode.removeprefix('RNN_').lower()}, the "
            f"mixer's {mixer.cell.kind.removeprefix('rnn_')}"
        )
