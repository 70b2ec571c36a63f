"""Which columns of a table are a source and the text that is written for it.

source, target     two texts         seq2seq
image, text        files, texts      captioner of images
x, y, …, text      numbers, texts    captioner of vectors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from threefold.data.cells import is_blank
from threefold.data.column_types import ColumnFacts
from threefold.data.preprocessing import Roles
from threefold.data.tables import Table
from threefold.errors import AmbiguousError, ThreefoldError, option
from threefold.tasks.user_data.pictures import IMAGE_SUFFIXES
from threefold.tasks.user_data.questions import list_types, name_columns
from threefold.tasks.user_data.settings import ReadSettings

SOURCE_NAMES, TARGET_NAMES = ("source", "src", "input"), ("target", "tgt", "output")
CAPTION_NAMES = ("text", "caption", "sentence", "description", "title")
WORDS = ("text", "category")  # types of columns of texts
Ambiguous = Callable[[str, Sequence[str]], AmbiguousError]


def pair_roles(
    facts: Mapping[str, ColumnFacts], settings: ReadSettings, ambiguous: Ambiguous
) -> Roles:
    """A column of sources and one of their translations."""
    texts = [name for name in facts if facts[name].type in WORDS]
    targets = [n for n in texts if n in settings.target_names] or [
        n for n in texts if n.lower() in TARGET_NAMES
    ]
    if len(texts) < 2:
        raise ThreefoldError(
            f"translation needs two columns of texts; the columns are {list_types(facts)}"
        )
    if len(targets) != 1:
        choices = [name_columns(kind="seq2seq", target=name) for name in texts[:6]]
        raise ambiguous("which column is the translation?", choices)
    sources = settings.feature_names or tuple(n for n in texts if n != targets[0])
    if len(sources) != 1:
        raise ambiguous("several sources", [name_columns(features=n) for n in sources])
    return Roles(texts=tuple(sources), label=targets[0])


def image_columns(table: Table) -> list[str]:
    """The columns whose cells are names of image files."""
    return [name for name, cells in table.cells.items() if _are_images(cells)]


def _are_images(cells: Sequence[object]) -> bool:
    names = [cell for cell in cells if not is_blank(cell)]
    return bool(names) and all(
        isinstance(name, str) and PurePath(name).suffix.lower() in IMAGE_SUFFIXES for name in names
    )


def shows_captions(table: Table, facts: Mapping[str, ColumnFacts], settings: ReadSettings) -> bool:
    """Whether a table has images and one column of texts, and nothing that may be a label."""
    images, wanted = image_columns(table), settings.feature_names
    if not images or (wanted is not None and not set(images) & set(wanted)):
        return False
    texts = [name for name in facts if name not in images and facts[name].type in WORDS]
    if not any(facts[n].type == "text" or n.lower() in CAPTION_NAMES for n in texts):
        raise ThreefoldError(
            f"{table.name}: images ({images[0]}) and no column of texts that describe them; for "
            "classes put the images into one subfolder per class and give the folder"
        )
    return len(images) == len(texts) == 1


def caption_roles(
    table: Table,
    facts: Mapping[str, ColumnFacts],
    settings: ReadSettings,
    numbers: Sequence[str],
    ambiguous: Ambiguous,
) -> Roles:
    """Images or rows of numbers, and the column of texts that describe them."""
    images = image_columns(table)
    wanted = settings.feature_names
    chosen = images if wanted is None else [name for name in images if name in wanted]
    if len(chosen) > 1:
        choices = [name_columns(kind="captioner", features=name) for name in chosen[:6]]
        raise ambiguous("several columns of images", choices)
    text = _caption_column(facts, settings, images, ambiguous)
    if chosen:
        return Roles(image=chosen[0], label=text)
    features = tuple(name for name in numbers if name != text)
    if not features:
        raise ThreefoldError(
            f"{table.name}: a captioner reads images or numbers, but no column has names of image "
            f"files ({', '.join(IMAGE_SUFFIXES)}) or numbers; for two texts: "
            f"{option('kind', 'seq2seq')}"
        )
    return Roles(features=features, label=text)


def _caption_column(
    facts: Mapping[str, ColumnFacts],
    settings: ReadSettings,
    images: Sequence[str],
    ambiguous: Ambiguous,
) -> str:
    if len(settings.target_names) == 1:
        return settings.target_names[0]
    texts = [n for n in facts if n not in images and facts[n].type in WORDS]
    named = [name for name in texts if name.lower() in CAPTION_NAMES]
    found = named if len(named) == 1 else texts
    if len(found) != 1 or settings.target_names:
        choices = [name_columns(kind="captioner", target=name) for name in texts[:6]]
        raise ambiguous("which column has the texts to write?", choices or [option("target")])
    return found[0]
