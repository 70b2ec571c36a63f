"""Plugins: mixers and tasks that live outside this package.

    threefold train notes.txt --mixers mine --plugin my_package     a module, or the path of a file
    THREEFOLD_PLUGINS=my_package,other.py                           the same, for child processes
    [project.entry-points."threefold.mixers"]                       of an installed package
    mine = "my_package.mixers:Mine"

A plugin is a module that calls `register_mixer` or `register_task`.  Saved models and runs say
which plugin they need, but nothing that a folder names is ever imported: the user names it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from threefold.errors import ThreefoldError, in_command, nearest, option

VARIABLE = "THREEFOLD_PLUGINS"
Value = TypeVar("Value")

_importing: list[str] = []  # plugins that are being imported, the outermost first
_registries: list[Registry[Any]] = []


class Registry(dict[str, Value], Generic[Value]):
    """A table by name that plugins extend; before a name counts as unknown, they are loaded.

    group: the entry points of installed packages.  add: registers what an entry point names.
    """

    def __init__(
        self, values: Mapping[str, Value], group: str, add: Callable[[str, Any], None]
    ) -> None:
        super().__init__(values)
        self.group, self.add = group, add
        self.loaded = False
        _registries.append(self)

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.load_plugins()
        return super().__contains__(name)

    def __missing__(self, name: str) -> Value:
        if name in self:
            return self[name]
        raise KeyError(name)

    def find(self, name: str, what: str) -> Value:
        """The value of a name; an unknown one is refused with the nearest that is known."""
        if not isinstance(name, str):
            raise ThreefoldError(
                f"a {what} is {name!r}, expected a name such as {next(iter(self))!r}"
            )
        if name not in self:
            raise ThreefoldError(f"unknown {what} {name!r}; {nearest(name, self)} {_your_own()}")
        return self[name]

    def load_plugins(self) -> None:
        """Import, once, what the environment and installed packages provide."""
        if self.loaded:
            return
        self.loaded = True  # before the imports, which register names
        for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
            load_plugin(name)
        for point in entry_points(group=self.group):
            if not super().__contains__(point.name):
                self._load_entry_point(point)

    def _load_entry_point(self, point: EntryPoint) -> None:
        """Register what an installed package names; a broken package disturbs nothing else."""
        try:
            with _import_of(point.module):
                value = point.load()
                if callable(value):
                    self.add(point.name, value)
        except (Exception, SystemExit) as error:
            warnings.warn(
                f"the entry point {point.name} = {point.value!r} of {self.group} is not available: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )


def load_plugin(name: str) -> None:
    """Import a plugin by the name of its module or by the path of its file.

    Child processes import it as well: its name is added to the environment.
    """
    path = Path(name)
    is_file = path.suffix == ".py"
    module = path.stem if is_file else name
    try:
        with _import_of(module):
            if is_file:
                _import_file(path.resolve(), module)
            else:
                _look_into(Path.cwd())
                import_module(module)
    except ThreefoldError as error:
        raise ThreefoldError(f"plugin {name}: {error}") from error
    except ImportError as error:
        raise ThreefoldError(
            f"plugin {name}: cannot be imported ({error}); expected the name of a module on "
            "Python's path or in this folder, or the path of a .py file"
        ) from error
    except SystemExit as error:
        raise ThreefoldError(
            f"plugin {name}: called sys.exit({error.code!r}) while it was imported; put what a "
            'script does under if __name__ == "__main__"'
        ) from error
    except Exception as error:
        raise ThreefoldError(
            f"plugin {name}: failed while it was imported ({type(error).__name__}: {error})"
        ) from error
    known = [part for part in os.environ.get(VARIABLE, "").split(",") if part]
    named = str(path.resolve()) if is_file else name
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*known, named]))


def plugin_of(caller: str) -> str:
    """What a user names to register the same again: the plugin being imported, or the caller."""
    return _importing[0] if _importing else caller


def missing_plugins(plugins: Iterable[str]) -> list[str]:
    """The plugins that neither the user nor an installed package provides."""
    wanted = list(plugins)
    if any(name not in sys.modules for name in wanted):
        for registry in _registries:
            registry.load_plugins()
    return [name for name in wanted if name not in sys.modules]


def _load(module: str) -> str:
    """How a user loads a plugin: an option in a shell, an import in Python."""
    if in_command():
        return f"pass {option('plugin', module)} (or the path of its file)"
    return f"import {module}"


def _your_own() -> str:
    """After an unknown name: where others come from."""
    how = option("plugin", "MODULE") if in_command() else "import its module"
    return f"(one of your own: {how})"


def how_to_load(plugin: str) -> str:
    """What a user does so that a plugin is available."""
    if plugin == "__main__":
        return (
            "it was registered in a script or notebook: put it into a module and "
            f"{_load('MODULE')}, or register it in Python before loading"
        )
    return f"{_load(plugin)} first; code is never imported because a saved folder names it"


@contextmanager
def _import_of(module: str) -> Iterator[None]:
    _importing.append(module)
    try:
        yield
    finally:
        _importing.pop()


def _import_file(path: Path, module: str) -> None:
    """Import a file as a module of its name, next to the modules of its folder."""
    before = sys.modules.get(module)
    if before is not None:
        if Path(getattr(before, "__file__", None) or "").resolve() != path:
            raise ThreefoldError(f"a module {module} is already imported; rename the file")
        return
    spec = importlib.util.spec_from_file_location(module, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ThreefoldError(f"{path}: file not found")
    _look_into(path.parent)
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException:
        del sys.modules[module]
        raise


def _look_into(folder: Path) -> None:
    """Let Python find modules in a folder, after everything else."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
