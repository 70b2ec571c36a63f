"""The libraries we compare with: `pip install 'threefold[bench]'` installs all of them.

A missing peer is reported in one line and skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

# Import name to package name.
PACKAGES = {
    "transformers": "transformers",
    "mambapy": "mambapy",
    "fla": "fla-core",
    "reservoirpy": "reservoirpy",
    "gensim": "gensim",
    "onnxruntime": "onnxruntime",
    "xllamacpp": "xllamacpp",
    "gguf": "gguf",
}


@cache
def installed(name: str) -> bool:
    """Whether a peer is installed; prints one line the first time it is not."""
    if importlib.util.find_spec(name) is not None:
        return True
    package = PACKAGES[name]
    print(f"skipped: {package} is not installed (pip install 'threefold[bench]')", file=sys.stderr)
    return False


def versions() -> dict[str, str | None]:
    """The version of each peer, None if it is not installed."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES.values():
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def transformers() -> ModuleType:
    """The transformers module, without its warnings about missing faster kernels."""
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    return module


@cache
def fla_naive(operation: str) -> ModuleType:
    """Load `fla/ops/<operation>/naive.py` by its path, because the package imports triton."""
    spec = importlib.util.find_spec("fla")
    assert spec is not None and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "ops" / operation / "naive.py"
    name = f"fla_naive_{operation.replace('/', '_')}"
    loaded = importlib.util.spec_from_file_location(name, path)
    assert loaded is not None and loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module
