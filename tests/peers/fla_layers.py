"""flash-linear-attention's layers without triton: its layer code over its plain-torch functions.

A layer file is executed with stand-ins for the modules that need triton.  Norms, convolutions and
rotary embeddings are torch's operations; recurrences are the package's own `naive` functions.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.peers.parity import package

ACTIVATIONS = {"swish": F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}


class Norm(nn.Module):
    """RMSNorm and FusedRMSNormGated."""

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        activation: str = "swish",
        **_: Any,
    ) -> None:
        super().__init__()
        self.eps, self.activation, self.bias = eps, ACTIVATIONS[activation], None
        self.weight = nn.Parameter(torch.ones(hidden_size)) if elementwise_affine else None

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        y = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return y if gate is None else y * self.activation(gate)


class Convolution(nn.Module):
    """ShortConvolution."""

    def __init__(self, hidden_size: int, kernel_size: int, activation: str | None, **_: Any):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size, 1, kernel_size))
        self.activation = activation

    def forward(self, x: Tensor, **_: Any) -> tuple[Tensor, None]:
        padded = F.pad(x.mT, (self.weight.shape[-1] - 1, 0))
        y = F.conv1d(padded, self.weight, groups=len(self.weight)).mT
        return (F.silu(y) if self.activation else y), None


class GroupNorm(nn.GroupNorm):
    """GroupNorm over the channels of each element."""

    def __init__(self, num_groups: int, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(num_groups, hidden_size, eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view_as(x)


class Rotary(nn.Module):
    """RotaryEmbedding; `frequencies` may be set to another library's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.frequencies = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def forward(self, query: Tensor, key: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        place = torch.arange(query.shape[1], dtype=torch.float64).unsqueeze(1)
        angle = (place * self.frequencies).unsqueeze(1)
        cos, sin = angle.cos().to(query.dtype), angle.sin().to(query.dtype)
        halves = (x.chunk(2, -1) for x in (query, key))
        turned = [torch.cat([a * cos - b * sin, b * cos + a * sin], -1) for a, b in halves]
        return turned[0], turned[1]


@cache
def naive(path: str) -> ModuleType:
    """A plain-torch file of `fla/ops`, loaded by its path."""
    folder = Path(package("fla").__path__[0]) / "ops"
    return execute(folder / f"{path}.py", f"fla_{path.replace('/', '_')}")


def execute(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: module}):
        spec.loader.exec_module(module)
    return module


def heads_first(*fields: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2) for x in fields]


def gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor, **_: Any) -> tuple[Tensor, None]:
    return naive("gla/naive").naive_recurrent_gla(q, k, v, gk)[0], None


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **options: Any) -> tuple[Tensor, None]:
    if options["use_qk_l2norm_in_kernel"]:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    out, _ = naive("delta_rule/naive").delta_rule_recurrence(*heads_first(q, k, v, beta))
    return out.transpose(1, 2), None


def gsa(
    q: Tensor, k: Tensor, v: Tensor, s: Tensor, g: Tensor, scale: float, **_: Any
) -> tuple[Tensor, None]:
    return naive("gsa/naive").naive_recurrent_gsa(q, k, v, s, g, scale=scale)[0], None


def abc(q: Tensor, k: Tensor, v: Tensor, s: Tensor, **_: Any) -> tuple[Tensor, None]:
    out, _state = naive("abc/naive").naive_recurrent_abc(*heads_first(q, k, v, s))
    return out.transpose(1, 2), None


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, normalize: bool, **_: Any
) -> tuple[Tensor, None]:
    function = naive("linear_attn/naive").naive_recurrent_linear_attn
    return function(q, k, v, normalize=normalize)[0], None


def retention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, None]:
    return naive("retention/naive").naive_retention(*heads_first(q, k, v)).transpose(1, 2), None


def rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float, **_: Any
) -> tuple[Tensor, None]:
    function = naive("rwkv6/recurrent_naive").naive_recurrent_rwkv6
    return function(*heads_first(r, k, v, w), u, scale=scale)[0].transpose(1, 2), None


def rms_norm_linear(
    x: Tensor, weight: Tensor, bias: None, out: Tensor, out_bias: None, eps: float = 1e-5
) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps) @ out.T


def token_shift(x: Tensor, cu_seqlens: None = None) -> Tensor:
    return F.pad(x, (0, 0, 1, -1)) - x


MODULES: dict[str, dict[str, Any]] = {
    "fla.modules": {
        "RMSNorm": Norm,
        "FusedRMSNormGated": Norm,
        "ShortConvolution": Convolution,
        "GroupNorm": GroupNorm,
        "RotaryEmbedding": Rotary,
    },
    "fla.modules.activations": {
        "ACT2FN": ACTIVATIONS,
        "swish": F.silu,
        "elu_p1": lambda x: F.elu(x) + 1,
    },
    "fla.modules.feature_map": {"SwishFeatureMap": nn.SiLU},
    "fla.modules.layernorm": {"rms_norm_linear": rms_norm_linear},
    "fla.modules.rotary": {"RotaryEmbedding": Rotary},
    "fla.modules.token_shift": {"token_shift": token_shift},
    "fla.layers.utils": {
        "get_layer_cache": lambda layer, cache: None,
        "update_layer_cache": lambda *arguments, **options: None,
        "unpad_hidden_states": lambda x, cu_seqlens, mask, length: (x, None, None),
        "repad_hidden_states": lambda x, indices, batch, length: x,
    },
    "fla.ops.abc.chunk": {"chunk_abc": abc},
    "fla.ops.delta_rule": {"fused_recurrent_delta_rule": delta},
    "fla.ops.gla": {"fused_recurrent_gla": gla},
    "fla.ops.gsa": {"fused_recurrent_gsa": gsa},
    "fla.ops.linear_attn": {"chunk_linear_attn": linear_attention},
    "fla.ops.retention": {"chunk_retention": retention},
    "fla.ops.rwkv6": {"fused_recurrent_rwkv6": rwkv6},
    "fla.ops.utils.index": {},
}


class StandIn(ModuleType):
    """A module of which the layer may import any name; what is not given must not be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def layer_class(file: str, name: str) -> Any:
    """The class `name` of `fla/layers/<file>.py`."""
    # The package has parts of two distributions, which may be installed in two folders.
    folders = [Path(path) / "layers" for path in package("fla").__path__]
    folder = next((folder for folder in folders if folder.exists()), None)
    if folder is None:
        pytest.skip("flash-linear-attention is not installed; `make test-peers` installs it")
    stand_ins: dict[str, ModuleType] = {}
    for key, members in MODULES.items():
        stand_ins[key] = StandIn(key)
        stand_ins[key].__dict__.update(members)
    with mock.patch.dict(sys.modules, stand_ins):
        return getattr(execute(folder / f"{file}.py", f"fla_layer_{file}"), name)
