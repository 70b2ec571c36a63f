"""Weights of `transformers`: GPT-2 and Llama as it builds them, saved, read by us, and compared."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold import LanguageModel, ThreefoldError
from threefold.models.presets import gpt2, llama
from threefold.models.pretrained.transformers import load_transformers

VOCABULARY = 61
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 40, "vocab_size": VOCABULARY}
LLAMA = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2, relu": ("GPT2", {**GPT2, "activation_function": "relu", "n_inner": 80}),
    "llama": ("Llama", {**LLAMA, "rms_norm_eps": 1e-5}),
    "llama, grouped": (
        "Llama",
        {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 500.0},
    ),
    "llama, biases": ("Llama", {**LLAMA, "num_key_value_heads": 1, "attention_bias": True}),
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(their model, the folder it was saved in) by case; skipped without `transformers`."""
    pytest.importorskip("transformers", reason="transformers is not installed: threefold[interop]")

    @cache
    def made(case: str) -> tuple[Any, Path]:
        import transformers

        family, sizes = CASES[case]
        config = getattr(transformers, f"{family}Config")(**sizes)
        endings = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM"}
        torch.manual_seed(0)
        model = getattr(transformers, family + endings[family])(config).eval()
        with torch.no_grad():  # biases and norms that are not 0 and 1
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        folder = tmp_path_factory.mktemp("theirs")
        model.save_pretrained(folder)
        return model, folder

    return made


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(1))


@every_case
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_are_theirs(case: str, side: str, folders: Any) -> None:
    theirs, folder = folders(case)
    ours = load_transformers(folder)
    assert isinstance(ours, LanguageModel) and not ours.training
    given, places = tokens(), torch.arange(17)
    lengths = torch.tensor([17, 9, 1] if side != "none" else [17] * 3).unsqueeze(1)
    mask = (places.flip(0) if side == "left" else places) < lengths
    with torch.no_grad():
        expected = theirs(
            given,
            attention_mask=mask.long(),
            position_ids=(mask.long().cumsum(1) - 1).clamp(min=0),
        ).logits
        logits, _ = ours(given, mask=mask)
        assert_close(logits[mask], expected[mask])
        assert (logits[~mask] == 0).all()


@every_case
def test_steps_are_their_whole_pass(case: str, folders: Any) -> None:
    theirs, folder = folders(case)
    ours, given = load_transformers(folder), tokens()
    state = None
    with torch.no_grad():
        expected = theirs(given).logits
        for t in range(given.shape[1]):
            logits, state = ours.step(given[:, t], state)
            assert_close(logits, expected[:, t], what=f"token {t}")


def test_gradients_are_theirs(folders: Any) -> None:
    theirs, folder = folders("gpt2")
    ours, given = load_transformers(folder), tokens()
    theirs.zero_grad()
    theirs(given).logits.square().mean().backward()
    ours(given)[0].square().mean().backward()
    other, block = theirs.transformer, ours.stack.blocks[0]
    for mine, expected in (
        (ours.embedding.weight, other.wte.weight.grad),
        (ours.embedding.positions.table, other.wpe.weight.grad),
        (block.channel.input.weight, other.h[0].mlp.c_fc.weight.grad.T),
        (block.mixer.heads.value.weight, other.h[0].attn.c_attn.weight.grad.T[96:]),
    ):
        assert_close(mine.grad, expected, "gradient")


def test_presets_are_the_published_sizes() -> None:
    """Parameters counted without making them."""
    with torch.device("meta"):
        assert LanguageModel(gpt2()).parameter_count == 124_439_808
        assert LanguageModel(llama()).parameter_count == 6_738_415_616


def test_bad_folders_are_refused(folders: Any, tmp_path: Path) -> None:
    with pytest.raises(ThreefoldError, match=r"config.json: cannot be read"):
        load_transformers(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lama"}))
    with pytest.raises(ThreefoldError, match="model_type 'lama'; did you mean 'llama'"):
        load_transformers(tmp_path)
    for kind in ("delta_net", "gla", "rwkv7"):  # of flash-linear-attention: no layout, so refused
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "use_gate": True}))
        with pytest.raises(ThreefoldError, match=f"unknown model_type '{kind}'"):
            load_transformers(tmp_path)
    _, folder = folders("llama")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ThreefoldError, match="contains no safetensors file"):
        load_transformers(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    for change, message in (
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' is supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"num_hidden_layers": 2}, r"has unknown layers.2"),
        ({"num_hidden_layers": 4}, r"layers\.3.*is missing"),
        ({"intermediate_size": 96}, r"gate_proj.weight is \(80, 48\), expected \(96, 48\)"),
        ({"attention_bias": True}, r"layers.0.self_attn.q_proj.bias is missing"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ThreefoldError, match=message):
            load_transformers(tmp_path)
