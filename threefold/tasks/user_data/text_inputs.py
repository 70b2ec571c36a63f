"""How labelled texts become tokens: one sequence, or sentences for a hierarchical model."""

from __future__ import annotations

from collections.abc import Sequence

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.text import Tokenize, TokenizeSentences, split_sentences
from threefold.data.tokenizers import Tokenizer
from threefold.tasks.language_modelling import DEFAULT_VOCABULARY, learn_tokenizer
from threefold.tasks.user_data.settings import ReadSettings

MOST_TEXT_TOKENS = 4096  # of one example, unless `length` is given


def fit_texts(kind: str, texts: Sequence[str], settings: ReadSettings) -> Chain:
    """The steps of texts, fitted to those of the training split, for a kind of model."""
    length, vocabulary = settings.length or MOST_TEXT_TOKENS, settings.vocabulary
    vocabulary = vocabulary or DEFAULT_VOCABULARY
    if kind != "hierarchical":
        # What is learnt from unlabelled texts is mostly what words mean.
        default = "word" if settings.pretrain else "byte"
        tokenizer = learn_tokenizer(settings.tokenizer or default, texts, vocabulary)
        return Chain((texts_step(kind, tokenizer, length),))
    sentences = [sentence for text in texts for sentence in split_sentences(text)]
    tokenizer = learn_tokenizer(settings.tokenizer or "word", sentences, vocabulary)
    return Chain((texts_step(kind, tokenizer, length),))


def texts_step(kind: str, tokenizer: Tokenizer, length: int) -> Tokenize:
    """The step of a tokenizer for a kind of model."""
    return (TokenizeSentences if kind == "hierarchical" else Tokenize).by(tokenizer, length)
