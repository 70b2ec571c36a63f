"""Cells and small convolutions of the pixel tables against their papers, written out in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.layers.published import Case, Parameters, linear

σ, tanh = torch.sigmoid, torch.tanh


def refined(f: Tensor, r: Tensor) -> Tensor:
    """g of Gu et al. 2020, equation 10: between its bounds f² and 1 − (1−f)²."""
    return r * (1 - (1 - f) ** 2) + (1 - r) * f**2


def ur_lstm(p: Parameters, x: Tensor) -> Tensor:
    size = p["recurrent"].shape[-1]
    h, c, out = torch.zeros(size).double(), torch.zeros(size).double(), []
    for given in linear(p, "input", x):
        f, r, n, o = (given + p["recurrent"][0] @ h).chunk(4)
        g = refined(σ(f), σ(r))
        c = g * c + (1 - g) * tanh(n)
        h = σ(o) * tanh(c)
        out.append(h)
    return torch.stack(out)


def ur_gru(p: Parameters, x: Tensor) -> Tensor:
    size = p["recurrent"].shape[-1]
    gates, candidate = p["recurrent"][0].split((3 * size, size))
    h, out = torch.zeros(size).double(), []
    for given in linear(p, "input", x):
        s, f, r = σ(given[: 3 * size] + gates @ h).chunk(3)
        n = tanh(given[3 * size :] + candidate @ (s * h))
        g = refined(f, r)
        h = g * h + (1 - g) * n
        out.append(h)
    return torch.stack(out)


def lipschitz_rnn(p: Parameters, x: Tensor, beta: float = 0.75, gamma: float = 0.001) -> Tensor:
    size = p["recurrent"].shape[-1]
    A, W = (
        (1 - beta) * (M + M.T) + beta * (M - M.T) - gamma * torch.eye(size).double()
        for M in p["recurrent"][0].split(size)
    )
    h, out = torch.zeros(size).double(), []
    for given in linear(p, "input", x):
        h = h + 0.03 * (A @ h) + 0.03 * tanh(W @ h + given)
        out.append(h)
    return linear(p, "out", torch.stack(out))


def exp_rnn(p: Parameters, x: Tensor) -> Tensor:
    above = p["recurrent"][0].triu(1)
    skew, term = above - above.T, torch.eye(len(above)).double()
    orthogonal = term.clone()
    for k in range(1, 60):
        term = term @ skew / k
        orthogonal = orthogonal + term
    h, out = torch.zeros(len(above)).double(), []
    for given in linear(p, "input", x):
        a = orthogonal @ h + given
        h = a.sign() * (a.abs() + p["bias"][0]).clamp(min=0)
        out.append(h)
    return linear(p, "out", torch.stack(out))


def lmu_fft(
    p: Parameters, x: Tensor, order: int, window: float, memories: int = 1, activation: str = "relu"
) -> Tensor:
    """With A and B of Voelker et al. 2019, whose coefficient n is ours times (−1)ⁿ √(2n+1)."""
    n = torch.arange(order).double()
    A, B = torch.zeros(order, order).double(), torch.zeros(order).double()
    for i in range(order):
        B[i] = (2 * i + 1) * (-1.0) ** i / window
        for j in range(order):
            A[i, j] = (2 * i + 1) / window * (-1 if i < j else (-1.0) ** (i - j + 1))
    both = torch.zeros(order + 1, order + 1).double()
    both[:order, :order], both[:order, order] = A, B
    held = torch.linalg.matrix_exp(both)  # zero-order hold of Δ = 1
    A, B = held[:order, :order], held[:order, order]
    scale = (-1.0) ** n * (2 * n + 1).sqrt()
    squash = getattr(torch, activation)
    m, out = torch.zeros(memories, order).double(), []
    for x_t in x:
        u = torch.relu(linear(p, "encode", x_t))
        m = m @ A.T + u[:, None] * B
        read = linear(p, "out", (m / scale).flatten())
        out.append(squash(read + linear(p, "input", x_t)))
    return torch.stack(out)


def tcn(p: Parameters, x: Tensor, levels: int, taps: int, hidden: int = 16) -> Tensor:
    """Residual blocks of torch's own weight-normalised convolutions, as Bai et al. publish them."""

    def convolve(n: int, x: Tensor) -> Tensor:
        name, distance = f"convolutions.{n}", 2 ** (n // 2)
        v = p[f"{name}.direction"].transpose(1, 2)
        conv = weight_norm(nn.Conv1d(*v.shape[1::-1], taps, dilation=distance)).double()
        state = {
            "bias": p[f"{name}.bias"],
            "parametrizations.weight.original0": p[f"{name}.magnitude"].view(-1, 1, 1),
            "parametrizations.weight.original1": v,
        }
        conv.load_state_dict(state)
        conv.requires_grad_(False)
        padded = nn.functional.pad(x, ((taps - 1) * distance, 0))
        convolved: Tensor = conv(padded[None])[0]
        return torch.relu(convolved)

    y = x.T
    for level in range(levels):
        shortcut = linear(p, "shortcut", y.T).T if len(y) != hidden else y
        y = torch.relu(convolve(2 * level + 1, convolve(2 * level, y)) + shortcut)
    return linear(p, "out", y.T)


CASES: tuple[Case, ...] = (
    ("ur_lstm", ur_lstm, {}),
    ("ur_gru", ur_gru, {}),
    ("lipschitz_rnn", lipschitz_rnn, {}),
    ("lipschitz_rnn", lipschitz_rnn, {"beta": 0.6, "gamma": 0.5}),
    ("exp_rnn", exp_rnn, {}),
    ("lmu_fft", lmu_fft, {"order": 6, "window": 20.0}),
    ("lmu_fft", lmu_fft, {"order": 4, "window": 7.5, "memories": 3, "activation": "tanh"}),
    ("tcn", tcn, {"levels": 3, "taps": 2}),
    ("tcn", tcn, {"levels": 2, "taps": 4, "hidden": 12}),
)
