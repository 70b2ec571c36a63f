"""If the compiler fails, the build still makes a wheel, which says why it has no kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("scikit_build_core", reason="building needs scikit-build-core")

BUILD = "import scikit_build_core.build as build; build.build_wheel('wheels')"
# The hook of an editable install would take precedence over the wheel, so it is removed.
FORGET = (
    "import sys\n"
    "sys.meta_path = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
)
SHOW = (
    "import threefold, torch; from threefold.kernels import library, ops; print(library.current());"
    "print(ops.short_convolution(torch.ones(1, 3, 2), torch.ones(2, 4))[0][0, :, 0])"
)


def run(code: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_compiler_gives_a_pure_wheel(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path)
    for name in ("__init__.py", "_version.py", "errors.py"):
        (tmp_path / "threefold").mkdir(exist_ok=True)
        shutil.copy(ROOT / "threefold" / name, tmp_path / "threefold")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "threefold/kernels", tmp_path / "threefold/kernels", ignore=ignored)

    run(BUILD, tmp_path, CXX="no-such-compiler")
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    shown = run(FORGET + SHOW, tmp_path / "installed")
    assert "reason='the kernels could not be compiled when threefold was installed" in shown
    assert "[1., 2., 3.]" in shown
