"""p(text | image or vector):  a = encoder(x),  s_0 = f(tanh(W mean(a))),  then word by word.

The decoder reads the encoder's vector first and then attends to its positions (bahdanau, luong), or
knows the vector alone (attention none).
Vinyals et al. 2015, "Show and Tell: A Neural Image Caption Generator" (the vector is the first
element that the decoder reads); Xu et al. 2015, "Show, Attend and Tell" (attention to positions).
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch import Tensor, nn

from threefold.drawing.attention import draw_attention_on_image
from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.memory.state import State
from threefold.models.decoder_model import DecoderModel, one_row
from threefold.models.source_encoders import ENCODERS
from threefold.models.spec import Spec

EXAMPLE_LENGTH = 16  # tokens of the texts that a measurement trains on
REMEDY = 'give these to the encoder with options={"encoder_mixers": …}'


class Captioner(DecoderModel):
    """An image [channels, height, width], or a vector, to a text.

    options: encoder, `patches` of images or `vector`; encoder_mixers and encoder_depth, if they
    differ from those of the decoder; attention, as in `Seq2Seq`.
    """

    kind = "captioner"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.check_decoder_options()
        name = spec.option("encoder")
        if name not in ENCODERS:
            raise ThreefoldError(
                f"{self.name}: unknown encoder {name!r}; {nearest(name, ENCODERS)}"
            )
        if spec.option("encoder_depth") < 0:
            raise ThreefoldError(
                f"{self.name}: encoder_depth is {spec.option('encoder_depth')}, expected 1 or "
                "more, or 0 for the same as the decoder"
            )
        self.encoder = ENCODERS[name](spec, self.name)
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.decoder = self.make_decoder(max(self.encoder.positions, 1), REMEDY)
        self.bridge = Linear(spec.width, spec.width)
        self.head = Linear(spec.width, spec.vocabulary)

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> State:
        """Encode images or vectors; returns the state from which their texts are predicted."""
        if mask is not None:
            raise ThreefoldError(f"{self.name}: images and vectors have no padding; leave out mask")
        self.encoder.check(source, self.dtype)
        positions = self.encoder(source)
        assert self.bridge is not None  # every captioner reads its vector first
        carried, top = self.read_summary(torch.tanh(self.bridge(positions.mean(1))))
        rows, count = positions.shape[:2]
        counts = torch.full((rows,), count, dtype=torch.int64, device=positions.device)
        return self._in_own_dtype(self.decoder.initial_state(carried, top, positions, counts))

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random images or vectors; they have no length."""
        return self.encoder.example_inputs(batch).to(self.device, self.dtype)

    def continuation(self, inputs: Tensor, count: int) -> Tensor:
        """Random tokens of a text."""
        return super().example_inputs(len(inputs), count)

    def training_outputs(self, inputs: Tensor) -> Tensor:
        """Logits of texts of a fixed length."""
        tokens = self.continuation(inputs, EXAMPLE_LENGTH)
        outputs: Tensor = self(tokens, self.encode(inputs))[0]
        return outputs

    def draw_alignment(
        self,
        image: Tensor,
        tokens: Tensor | Sequence[int],
        path: str | PathLike[str],
        *,
        words: Sequence[str] | None = None,
    ) -> Tensor:
        """Draw where in an image [channels, height, width] each token [L] but the first looks.

        The first token is the one that decoding starts from.  words: texts of all tokens.  The
        suffix of `path` chooses the format.  Returns the weights [L − 1, positions].
        """
        row = one_row(tokens, "text")
        if row.shape[1] < 2 or self.encoder.grid is None:
            raise ThreefoldError(
                f"{self.name}: {row.shape[1]} tokens and the encoder "
                f"{self.spec.option('encoder')!r}; expected an encoder of images, and the token "
                "that decoding starts from with at least one after it"
            )
        with torch.no_grad():
            pixels = image.to(self.device, self.dtype).unsqueeze(0)
            weights = self.align(pixels, row[:, :-1].to(self.device))[0]
        texts = [str(int(token)) for token in row[0]] if words is None else list(words)
        draw_attention_on_image(weights, image, self.encoder.grid, path, words=texts[1:])
        return weights
