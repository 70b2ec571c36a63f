"""Images as arrays: PNG and other files through Pillow, and the idx files of MNIST."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.readers import file_error, read_bytes
from threefold.errors import ThreefoldError

MOST_PIXELS = 1 << 26
IDX_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_image(path: Path, colours: str = "RGB") -> NDArray[np.uint8]:
    """An image [height, width, 3], or [height, width] with `colours` "L" (grey)."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ThreefoldError("reading images needs Pillow; run: pip install pillow") from error
    read_bytes(path)
    try:
        with Image.open(path) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width} × {image.height} pixels"
                raise file_error(path, None, f"{size}, expected at most {MOST_PIXELS:,}")
            if image.mode == "F" or image.mode.startswith("I"):
                return _from_deep_pixels(path, np.asarray(image), colours)
            # Cameras store how the picture was held beside its pixels.
            return np.array(ImageOps.exif_transpose(image).convert(colours))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, ThreefoldError):
            raise
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise file_error(path, None, f"not an image, or damaged{why}; convert it") from error


def _from_deep_pixels(path: Path, pixels: NDArray[Any], colours: str) -> NDArray[np.uint8]:
    """Grey pixels of 16 bits as 8 bits, which Pillow would cut off at 255."""
    if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() >= 1 << 16:
        what = "numbers with a decimal point" if pixels.dtype.kind == "f" else "beyond 16 bits"
        raise file_error(path, None, f"its pixels are {what}; convert it to 8 or 16 bits per pixel")
    grey = (pixels.astype(np.int64) >> 8).astype(np.uint8)
    return grey if colours == "L" else np.repeat(grey[..., None], 3, axis=-1)


def is_grey(pixels: NDArray[np.uint8]) -> bool:
    """Whether an image [height, width, 3] has no colours."""
    return bool((pixels == pixels[..., :1]).all())


def resize_image(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """An image [height, width(, 3)] in another size, by Pillow's bilinear filter."""
    from PIL import Image

    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def read_idx(path: Path) -> NDArray[Any]:
    """Read an array in MNIST's format (0 0 dtype dimensions, sizes, numbers); .gz is unpacked."""
    content = read_bytes(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise file_error(path, None, f"cannot be unpacked ({error})") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_DTYPES:
        raise file_error(
            path, None, "not an idx file: it does not begin with 0 0 and a known number type"
        )
    begin = 4 + 4 * content[3]
    sizes = tuple(np.frombuffer(content[4:begin], ">u4").tolist())
    numbers = np.dtype(IDX_DTYPES[content[2]])
    wanted = begin + int(np.prod(sizes)) * numbers.itemsize
    if len(sizes) != content[3] or len(content) != wanted:
        raise file_error(path, None, f"{len(content)} bytes, expected {wanted} for {sizes}")
    return np.frombuffer(content[begin:], numbers).reshape(sizes)
