"""The table of mixers: a new mixer is one file and one line here, and the contract tests include it.

`register_mixer` adds a mixer of another package (`threefold/plugins.py`).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from threefold.errors import ThreefoldError, nearest
from threefold.plugins import Registry, how_to_load, plugin_of

if TYPE_CHECKING:
    from threefold.layers.mixer import Mixer


@dataclass(frozen=True)
class Entry:
    """One mixer: the file `layers/<name>.py`, or the module of a plugin, holds the class `cls`."""

    name: str
    cls: str
    title: str
    year: int
    family: str  # how the past is kept; `threefold mixers` explains the words
    equation: str
    module: str = ""  # of a registered mixer; "": layers/<name>.py
    plugin: str = ""  # what a user imports to register it

    def load(self) -> type[Mixer]:
        """Import and return the class."""
        if self.plugin:
            return _REGISTERED[self.name]
        loaded: type[Mixer] = getattr(import_module(f"threefold.layers.{self.name}"), self.cls)
        return loaded

    @property
    def origin(self) -> dict[str, str]:
        """Where a registered mixer comes from, as a saved model records it."""
        return {"class": f"{self.module}:{self.cls}", "plugin": self.plugin}


# fmt: off
_ENTRIES = (
    Entry("rnn", "RNN", "Elman's recurrent network", 1990, "nonlinear cell", "h = φ(W x + U h₋),  y = W_o h"),
    Entry("lstm", "LSTM", "Long short-term memory", 1997, "nonlinear cell", "c = f⊙c₋ + i⊙g,  h = o⊙tanh(c)"),
    Entry("peephole_lstm", "PeepholeLSTM", "LSTM with peepholes", 2000, "nonlinear cell", "i, f = σ(… + p⊙c₋),  c = f⊙c₋ + i⊙g,  o = σ(… + p⊙c)"),
    Entry("coupled_lstm", "CoupledLSTM", "LSTM with coupled gates", 2017, "nonlinear cell", "c = f⊙c₋ + (1−f)⊙g,  h = o⊙tanh(c)"),
    Entry("gru", "GRU", "Gated recurrent unit", 2014, "nonlinear cell", "h = z⊙h₋ + (1−z)⊙tanh(W x + U(r⊙h₋))"),
    Entry("esn", "ESN", "Echo state network", 2001, "nonlinear cell", "h = (1−α) h₋ + α tanh(W_in x + b + W h₋),  y = W_o [x; h],  W fixed"),
    Entry("bidirectional", "Bidirectional", "Both directions of any mixer", 1997, "wrapper", "y = W [ahead(x); back(x reversed) reversed]"),
    Entry("lmu", "LMU", "Legendre memory unit", 2019, "nonlinear cell", "u = e·[x; h₋; m₋],  m = Ā m₋ + B̄ u,  h = tanh(W x + U h₋ + V m)"),
    Entry("ur_lstm", "URLSTM", "LSTM with uniform and refine gates", 2020, "nonlinear cell", "c = g⊙c₋ + (1−g)⊙n,  g = r⊙(1−(1−f)²) + (1−r)⊙f²,  h = o⊙tanh(c)"),
    Entry("ur_gru", "URGRU", "GRU with uniform and refine gates", 2020, "nonlinear cell", "h = g⊙h₋ + (1−g)⊙tanh(W x + U(s⊙h₋)),  g = r⊙(1−(1−f)²) + (1−r)⊙f²"),
    Entry("lipschitz_rnn", "LipschitzRNN", "Lipschitz RNN", 2021, "nonlinear cell", "h = h₋ + ε A h₋ + ε tanh(W h₋ + U x),  A, W = (1−β)(M+Mᵀ) + β(M−Mᵀ) − γ I"),
    Entry("exp_rnn", "ExpRNN", "Exponential RNN (orthogonal)", 2019, "nonlinear cell", "h = modReLU(exp(A) h₋ + W x),  Aᵀ = −A"),
    Entry("hippo_rnn", "HippoRNN", "HiPPO-RNN", 2020, "nonlinear cell", "h = (1−g)⊙h₋ + g⊙tanh(W [x; h₋; c₋]),  c = Ā_t c₋ + B̄_t (w h)"),
    Entry("slstm", "SLSTM", "xLSTM's scalar LSTM", 2024, "nonlinear cell", "c = f c₋ + i z,  n = f n₋ + i,  h = o c/n"),
    Entry("min_gru", "MinGRU", "Minimal GRU", 2024, "linear recurrence", "h = (1−z)⊙h₋ + z⊙h̃"),
    Entry("min_lstm", "MinLSTM", "Minimal LSTM", 2024, "linear recurrence", "h = (f⊙h₋ + i⊙h̃) / (f+i)"),
    Entry("lru", "LRU", "Linear recurrent unit", 2023, "linear recurrence", "h = λ⊙h₋ + γ⊙(B x),  o = Re(C h) + D⊙x"),
    Entry("rg_lru", "RGLRU", "Real-gated linear recurrent unit (Griffin)", 2024, "linear recurrence", "h = a⊙h₋ + √(1−a²)⊙(i⊙x)"),
    Entry("attention", "Attention", "Attention", 2017, "attention", "o_i = Σ_j a_ij v_j,  a_i = softmax_j(q_iᵀk_j/√K),  j ≤ i"),
    Entry("local_attention", "LocalAttention", "Local attention (Longformer's window)", 2020, "attention", "o_i = Σ_j a_ij v_j,  i − window < j ≤ i"),
    Entry("longformer", "Longformer", "Longformer", 2020, "attention", "o_i = Σ_j a_ij v_j,  |i − j| < window or j global;  a global i reads all j"),
    Entry("transformer_xl", "TransformerXL", "Transformer-XL", 2019, "attention", "a_i = softmax_j((q_i+u)ᵀk_j + (q_i+w)ᵀW_r r_{i−j}),  i − memory < j ≤ i"),
    Entry("bigbird", "BigBird", "BigBird", 2020, "attention", "o_i = Σ_j a_ij v_j,  j in global, nearby and random blocks"),
    Entry("reformer", "Reformer", "Reformer", 2020, "attention", "o_i = Σ_j a_ij v_j,  h(q_j) = h(q_i),  k = q/|q|"),
    Entry("linformer", "Linformer", "Linformer", 2020, "attention", "Y = softmax(Q (E K)ᵀ) F V"),
    Entry("nystromformer", "Nystromformer", "Nyströmformer", 2021, "attention", "Y = softmax(Q K̃ᵀ) A⁺ softmax(Q̃ Kᵀ) V,  A = softmax(Q̃ K̃ᵀ)"),
    Entry("luna", "Luna", "Luna", 2021, "attention", "P' = attention(P, X, X),  Y = attention(X, P', P')"),
    Entry("fnet", "FNet", "FNet", 2022, "Fourier transform", "Y = Re(F_L X F_D)"),
    Entry("performer", "Performer", "Performer (FAVOR+)", 2021, "linear recurrence", "S = e^{m₋−m} S₋ + φ(k)⊗v,  o = Sᵀφ(q) / (z·φ(q)),  φ(x) = e^{Wx − |x|²/2 − m}"),
    Entry("based", "Based", "Based", 2024, "linear recurrence", "S = S₋ + φ(k)⊗v,  o = Sᵀφ(q) / (z·φ(q)) + window,  φ(q)·φ(k) = 1 + s + s²/2"),
    Entry("tcn", "TCN", "Temporal convolutional network", 2018, "filter", "x ← φ(φ(k ∗_d φ(k' ∗_d x)) + x),  d = 1, 2, 4, …"),
    Entry("lmu_fft", "LMUFFT", "Parallel Legendre memory unit", 2021, "filter", "u = φ(E x),  m = Ā m₋ + B̄ u,  y = φ(V m + W x)"),
    Entry("long_conv", "LongConv", "Long convolution", 2023, "filter", "y = k ∗ x + d⊙x,  k = sign(c)·max(|c| − λ, 0)"),
    Entry("ckconv", "CKConv", "Continuous kernel convolution", 2022, "filter", "z = φ(N(ψ₂ ∗ φ(N(ψ₁ ∗ x)))),  y = φ(z + x),  ψ(t) = W₃ sin(ω W₂ sin(ω W₁ t))"),
    Entry("h3", "H3", "H3 (hungry hungry hippos)", 2022, "filter", "o = q ⊙ SSM_diagonal(SSM_shift(k) ⊙ v)"),
    Entry("hyena", "Hyena", "Hyena", 2023, "filter", "v ← h_n ∗ (x_n⊙v) + d_n⊙(x_n⊙v),  o = x_N⊙v,  h(t) = window(t)⊙network(t)"),
    Entry("lssl", "LSSL", "Linear state-space layer", 2021, "filter", "s = Ā s₋ + B̄ x,  o = C s + D x"),
    Entry("s4", "S4", "Structured state space (S4)", 2022, "filter", "s = Ā s₋ + B̄ x,  o = C s + D x,  A = Diag(Λ) − P Pᴴ"),
    Entry("s4d", "S4D", "Diagonal state space (S4D)", 2022, "filter", "s = e^{Δa}⊙s₋ + B̄ x,  o = 2 Re(C s) + D x"),
    Entry("s5", "S5", "Simplified state space (S5)", 2023, "linear recurrence", "s = e^{Δa}⊙s₋ + B̄ x,  y = 2 Re(C s) + D⊙x,  o = g⊙σ(W g)"),
    Entry("linear_attention", "LinearAttention", "Linear attention", 2020, "linear recurrence", "S = S₋ + φ(k)⊗v,  o = Sᵀφ(q)"),
    Entry("delta_net", "DeltaNet", "DeltaNet", 2024, "linear recurrence", "S = (I − β k kᵀ) S₋ + β k⊗v,  o = Sᵀq"),
    Entry("gated_rfa", "GatedRFA", "Gated random feature attention", 2021, "linear recurrence", "S = g S₋ + (1−g) φ(k)⊗v,  o = Sᵀφ(q) / (z·φ(q))"),
    Entry("abc", "BoundedMemoryControl", "Attention with bounded-memory control", 2022, "linear recurrence", "Sᵏ = Diag(α) Sᵏ₋ + φ⊗k,  Sᵛ = Diag(α) Sᵛ₋ + φ⊗v,  o = Sᵛᵀ softmax(Sᵏ q)"),
    Entry("decaying_fast_weights", "DecayingFastWeights", "Decaying fast weights", 2022, "linear recurrence", "S = S₋ ⊙ (α βᵀ) + k⊗v,  o = Sᵀq"),
    Entry("retnet", "RetNet", "Retentive network", 2023, "linear recurrence", "S = γ S₋ + k⊗v,  o = Sᵀq"),
    Entry("mamba", "Mamba", "Mamba (selective state space)", 2023, "linear recurrence", "S = exp(ΔA) ⊙ S₋ + Δ B x,  o = C·S + D x"),
    Entry("gla", "GatedLinearAttention", "Gated linear attention", 2023, "linear recurrence", "S = Diag(α) S₋ + k⊗v,  o = Sᵀq"),
    Entry("rwkv6", "RWKV6", "RWKV-6 (Finch)", 2024, "linear recurrence", "S = Diag(α) S₋ + k⊗v,  o = (S₋ + (d⊙k)⊗v)ᵀ q"),
    Entry("hgrn2", "HGRN2", "Hierarchically gated recurrent network 2", 2024, "linear recurrence", "S = Diag(α) S₋ + (1−α)⊗v,  o = Sᵀq"),
    Entry("mlstm", "MLSTM", "xLSTM's matrix LSTM", 2024, "linear recurrence", "S = f S₋ + i k⊗v,  o = Sᵀq / max(1, |z·q|)"),
    Entry("mamba2", "Mamba2", "Mamba-2 (state space duality)", 2024, "linear recurrence", "S = exp(ΔA) S₋ + k⊗(Δ v),  o = Sᵀq + D v"),
    Entry("gsa", "GatedSlotAttention", "Gated slot attention", 2024, "linear recurrence", "Sᵏ = Diag(α) Sᵏ₋ + (1−α)⊗k,  Sᵛ = Diag(α) Sᵛ₋ + (1−α)⊗v,  o = Sᵛᵀ softmax(Sᵏ q)"),
    Entry("gated_delta_net", "GatedDeltaNet", "Gated DeltaNet", 2024, "linear recurrence", "S = α (I − β k kᵀ) S₋ + β k⊗v,  o = Sᵀq"),
    Entry("rwkv7", "RWKV7", "RWKV-7 (Goose)", 2025, "linear recurrence", "S = (Diag(w) + a bᵀ) S₋ + k⊗v,  o = Sᵀq"),
    Entry("kda", "KimiDeltaAttention", "Kimi delta attention", 2025, "linear recurrence", "S = (I − β k kᵀ) Diag(α) S₋ + β k⊗v,  o = Sᵀq"),
)
# fmt: on

_REGISTERED: dict[str, type[Mixer]] = {}  # classes of registered mixers by name
NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def register_mixer(
    name: str,
    cls: type[Mixer],
    *,
    title: str = "",
    equation: str = "",
    family: str = "plugin",
    year: int = 0,
) -> None:
    """Make a mixer of your own available by name, everywhere a mixer is named.

    cls derives from `threefold.layers.mixer.Mixer`; `threefold.testing.check_mixer(cls)` says
    whether it keeps the contract.  Call it where the class is defined: a saved model records that
    module, and whoever loads the model imports it first (`--plugin MODULE`).
    title, equation, family and year are for `threefold mixers`.
    """
    plugin = plugin_of(sys._getframe(1).f_globals.get("__name__", "__main__"))
    _check_class(name, cls)
    module, qualname = cls.__module__, cls.__qualname__
    taken = MIXERS.get(name)
    if taken is not None and (taken.module, taken.cls) != (module, qualname):
        owner = taken.origin["class"] if taken.plugin else "a mixer of Threefold"
        raise ThreefoldError(f"mixer {name!r}: the name is taken by {owner}; choose another")
    first_line = (cls.__doc__ or "").strip().partition("\n")[0]
    title = title or first_line.rstrip(".") or qualname
    MIXERS[name] = Entry(name, qualname, title, year, family, equation, module, plugin)
    _REGISTERED[name] = cls


def _check_class(name: Any, cls: Any) -> None:
    from threefold.layers.mixer import Mixer

    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ThreefoldError(
            f"mixer {name!r}: expected a name of letters, digits and _, such as 'my_mixer'"
        )
    if not isinstance(cls, type) or not issubclass(cls, Mixer):
        raise ThreefoldError(
            f"mixer {name!r}: given {cls!r}, expected a class that derives from "
            "threefold.layers.mixer.Mixer"
        )
    if "width" not in options_of(cls):
        raise ThreefoldError(
            f"mixer {name!r}: the constructor takes {', '.join(options_of(cls)) or 'nothing'}; "
            "expected `width`, and other keywords with defaults"
        )


MIXERS: Registry[Entry] = Registry(
    {entry.name: entry for entry in _ENTRIES}, "threefold.mixers", register_mixer
)


def mixer_entry(name: str) -> Entry:
    """The line of a mixer; an unknown name is refused."""
    return MIXERS.find(name, "mixer")


def registered_in(value: Any) -> dict[str, Entry]:
    """The registered mixers that are named anywhere in nested lists and mappings."""
    entries = {name: MIXERS[name] for name in _names_in(value) if name in _REGISTERED}
    return dict(sorted(entries.items()))


def _names_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _names_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _names_in(part)


def check_origins(origins: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse what a saved model needs and what is not registered, or registered otherwise."""
    for name, origin in origins.items():
        wanted, plugin = origin["class"], origin["plugin"]
        if name not in MIXERS:
            raise ThreefoldError(
                f"needs the mixer {name!r} ({wanted}), which is not registered; "
                f"{how_to_load(plugin)}"
            )
        # The module may have been renamed; a class of another name is another mixer.
        if MIXERS[name].cls != wanted.partition(":")[2]:
            raise ThreefoldError(
                f"needs the mixer {name!r} of {wanted}, but this name is that of "
                f"{MIXERS[name].origin['class'] if MIXERS[name].plugin else 'another mixer'}"
            )


def mixer(name: str, **options: Any) -> Mixer:
    """Make a mixer by name, e.g. `mixer("gla", width=256, heads=4)`."""
    return construct(mixer_entry(name).load(), f"mixer {name!r}", options)


LARGEST_WIDTH = 2**20  # as in a Spec


def construct(cls: type[Mixer], called: str, options: Mapping[str, Any]) -> Mixer:
    """Make a mixer; options that it does not have and a missing width are refused."""
    accepted = options_of(cls)
    for option in options:
        if option not in accepted:
            raise ThreefoldError(f"{called} has no option {option!r}; {nearest(option, accepted)}")
    if "width" not in options:
        raise ThreefoldError(f"{called} needs a width, e.g. width=64")
    width = options["width"]
    if isinstance(width, int) and width > LARGEST_WIDTH:
        raise ThreefoldError(f"{called}: width is {width}, expected at most {LARGEST_WIDTH}")
    return cls(**options)


def options_of(cls: type[Mixer]) -> tuple[str, ...]:
    """The keywords of a mixer's constructor."""
    return tuple(inspect.signature(cls).parameters)
