"""A Mamba language model in llama.cpp, with our weights, as a prebuilt library of PyPI has it.

`xllamacpp` bundles llama.cpp and exports its C functions, which are called here as they are; `gguf`
writes the file. llama.cpp stores what we store in fewer bits: products and embedding, but not those
that make a step.
"""

from __future__ import annotations

import ctypes
import tempfile
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Contender
from threefold.models.language import LanguageModel

# Our weights below `stack.blocks.<n>.mixer.`, and those below `blk.<n>.` of a GGUF file.
WHOLE = {
    "conv.weight": "ssm_conv1d.weight",
    "conv.bias": "ssm_conv1d.bias",
    "select.weight": "ssm_x.weight",
    "delta.weight": "ssm_dt.weight",
    "delta_bias": "ssm_dt.bias",
    "D": "ssm_d",
}
NARROW = {"input.weight": "ssm_in.weight", "out.weight": "ssm_out.weight"}
TYPES = ("F32", "F16", "Q8_0")


class Parameters(ctypes.Structure):
    """What llama.cpp passes by value; only its beginning is read here, and its size is less."""

    _fields_ = (("words", ctypes.c_uint32 * 128),)


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (("tokens", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6))


Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = Log(lambda *_: None)


def installed() -> bool:
    """Whether llama.cpp and the writer of its files are installed."""
    return peers.installed("xllamacpp") and peers.installed("gguf")


@cache
def library() -> Any:
    """llama.cpp's functions."""
    spec = find_spec("xllamacpp")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    loaded = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    pointer, parameters = ctypes.c_void_p, Parameters
    for name, result, arguments in (
        ("llama_log_set", None, [Log, pointer]),
        ("llama_model_default_params", parameters, []),
        ("llama_context_default_params", parameters, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, parameters]),
        ("llama_init_from_model", pointer, [pointer, parameters]),
        ("llama_set_n_threads", None, [pointer, ctypes.c_int32, ctypes.c_int32]),
        ("llama_batch_get_one", Batch, [pointer, ctypes.c_int32]),
        ("llama_decode", ctypes.c_int32, [pointer, Batch]),
        ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    loaded.llama_log_set(_silent, None)
    loaded.llama_backend_init()
    return loaded


def write(model: LanguageModel, path: Path, kind: str) -> None:
    """The weights of a Mamba language model as a GGUF file, the large ones in `kind` of TYPES."""
    gguf = import_module("gguf")
    file, spec = gguf.GGUFWriter(path, "mamba"), model.spec
    mixer = model.get_submodule("stack.blocks.0.mixer")
    channels, state = mixer.A_log.shape  # type: ignore[union-attr,misc]
    file.add_context_length(2**20)
    file.add_embedding_length(spec.width)
    file.add_feed_forward_length(0)
    file.add_head_count(0)
    file.add_block_count(spec.depth)
    file.add_ssm_conv_kernel(mixer.conv.weight.shape[-1])  # type: ignore[union-attr]
    file.add_ssm_inner_size(channels)
    file.add_ssm_state_size(state)
    file.add_ssm_time_step_rank(mixer.delta.weight.shape[1])  # type: ignore[union-attr]
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(spec.vocabulary)
    file.add_tokenizer_model("none")
    type_ = gguf.GGMLQuantizationType[kind]

    def add(name: str, weight: Tensor, narrow: bool = False) -> None:
        array = weight.detach().float().contiguous().numpy()
        if narrow and kind != "F32":
            file.add_tensor(name, gguf.quants.quantize(array, type_), raw_dtype=type_)
        else:
            file.add_tensor(name, array)

    weights = model.state_dict()
    add("token_embd.weight", weights["embedding.weight"], True)
    add("output_norm.weight", weights["norm.weight"])
    for block in range(spec.depth):
        ours, theirs = f"stack.blocks.{block}", f"blk.{block}"
        add(f"{theirs}.attn_norm.weight", weights[f"{ours}.mixer_norm.weight"])
        add(f"{theirs}.ssm_a", -weights[f"{ours}.mixer.A_log"].exp())
        for name, other in (*WHOLE.items(), *NARROW.items()):
            add(f"{theirs}.{other}", weights[f"{ours}.mixer.{name}"], name in NARROW)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def decoder(model: LanguageModel, kind: str, steps: int) -> Contender:
    """That many tokens, one call each, continuing from the state of the last call."""
    llama, threads = library(), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(model, path, kind)
        # Read through a memory map, which outlives the name of the file.
        loaded = llama.llama_model_load_from_file(
            str(path).encode(), llama.llama_model_default_params()
        )
        context = loaded and llama.llama_init_from_model(
            loaded, llama.llama_context_default_params()
        )
    if not context:
        raise RuntimeError(f"llama.cpp cannot load a Mamba model with weights in {kind}")
    llama.llama_set_n_threads(context, threads, threads)
    vocabulary = model.spec.vocabulary

    def run() -> list[Tensor]:
        token = (ctypes.c_int32 * 1)(1)
        for _ in range(steps):
            if llama.llama_decode(context, llama.llama_batch_get_one(token, 1)):
                raise RuntimeError("llama.cpp failed to decode a token")
        logits = np.ctypeslib.as_array(llama.llama_get_logits(context), (vocabulary,))
        return [torch.from_numpy(logits.copy()).unsqueeze(0)]

    return run
