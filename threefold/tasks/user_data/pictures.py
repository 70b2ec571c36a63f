"""Which images can be read together: their size and whether they have colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from threefold.data.images import is_grey, read_image
from threefold.data.preprocessing.media import ReadImage, ReadPicture
from threefold.errors import AmbiguousError, ThreefoldError, setting
from threefold.tasks.user_data.settings import ReadSettings

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def image_step(where: str, files: Sequence[Path], settings: ReadSettings) -> ReadImage:
    """The size of the images; different ones must be asked for."""
    if settings.image_size is not None:
        width, separator, height = settings.image_size.lower().partition("x")
        if not separator or not (width.isdigit() and height.isdigit()):
            raise ThreefoldError(
                f"data.image_size is {settings.image_size!r}, expected WIDTHxHEIGHT, e.g. 32x32"
            )
        return ReadImage(int(height), int(width), resized=True)
    sizes = Counter(read_image(file, "L").shape for file in files).most_common()
    if len(sizes) > 1:
        shown = ", ".join(f"{count} of {w} × {h}" for (h, w), count in sizes[:4])
        raise AmbiguousError(
            f"{where}: images of different sizes ({shown} pixels)",
            [f"{setting('data.image_size', f'{w}x{h}')}    scales all" for (h, w), _ in sizes[:4]],
        )
    height, width = sizes[0][0]
    return ReadImage(height, width)


def picture_step(where: str, files: Sequence[Path], settings: ReadSettings) -> ReadPicture:
    """The same for whole pictures, which are grey if all of them are."""
    size = image_step(where, files, settings)
    grey = all(is_grey(read_image(file)) for file in files)
    return ReadPicture(size.height, size.width, size.resized, "L" if grey else "RGB")
