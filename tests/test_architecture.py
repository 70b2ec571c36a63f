"""The rules of ARCHITECTURE.md that a machine can check, from the sources without running them.

Each rule is a function from sources to complaints; `TestCheckersFail` shows each of them a fault.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import threefold
from threefold.layers.table import MIXERS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "threefold"

# Highest first.  A folder imports only from rows below its own.
ROWS = (
    ("cli",),
    ("testing", "lab"),
    ("estimators",),
    ("training",),
    ("runtime",),
    ("tasks", "models"),
    ("blocks",),
    ("layers",),
    ("memory", "classical"),
    ("kernels", "data"),
    ("drawing",),
)
RANK = {folder: len(ROWS) - i for i, row in enumerate(ROWS) for folder in row}
# Modules beside the folders: below all of them, except those that only open the door.
BELOW_ALL = {"errors", "_version", "plugins"}
DOORS = {"__init__", "__main__"}

# Mixers longer than the ceiling, with the reason.
CEILING = 120
LONGER: dict[str, str] = {
    "performer": "causal by the linear memory with a running maximum, not causal by plain sums",
    "reformer": "hashing, sorting, chunks, and the union of what several rounds show",
    "rwkv7": "six mixtures and four low-rank gates, each with its published initial values",
}

# Lines of any file of the package, and the files that still have more.
FILE_LINES = 400
LONGER_FILES: tuple[str, ...] = ()

# Lines of a function: the most that any has, and that half and nine tenths of all have.
FUNCTION_LINES = 45
FUNCTION_SHARES = {0.5: 7, 0.9: 20}

# Parameters of a function, `self` aside: the most that any has, where they are no configuration.
PARAMETERS = 8
# Functions that may have more: each parameter is an option of a command, of a published layer or
# model, or a tensor of an operation.
MANY_PARAMETERS: dict[str, str] = {
    "threefold.cli.*": "the options of a command",
    "threefold.kernels.*": "the tensors of an operation and what its backward pass needs",
    "threefold.blocks.*.__init__": "the constructor is the configuration",
    "threefold.layers.*.__init__": "the constructor is the configuration",
    "threefold.estimators.*.__init__": "the constructor is the configuration",
    "threefold.models.presets.*": "the sizes and options of published models",
    "threefold.memory.linear.recurrence.linear_recurrence": "a public operation",
    "threefold.memory.linear.recurrence.recur": "the same for mixers, with lengths",
    "threefold.memory.linear.selective.selective_scan": "a public operation",
    "threefold.memory.linear.selective.selective_recurrence": "the same for mixers, with lengths",
    "threefold.runtime.generation.generate": "a public operation",
    "threefold.runtime.streaming.stream": "a public operation",
    "threefold.training.api.train": "a public operation",
    "threefold.training.loop.train": "a public operation",
    "threefold.training.evaluations.evaluation.evaluate": "a public operation",
    "threefold.lab.race.race.compare": "a public operation",
}

PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
TIME_WORDS = {"length", "lengths", "time", "steps", "seq_len"}

# Written in pieces, so that this file keeps its own rule.
MACHINE_PATHS = re.compile(
    r"(?<![\w.~])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "tm" + "p"]) + ")/"
)
REGISTRIES = re.compile(
    r"https?://\S*(?:/sim"
    + r"ple\b|py"
    + r"pi\b|artifac"
    + r"tory|whl/)|--(?:extra-)?index"
    + r"-url"
    r"|--trusted" + r"-host"
)

Sources = dict[str, str]  # module name, e.g. threefold.layers.gla, to its text


def read_sources(package: Path = PACKAGE) -> Sources:
    """Every module of the package by its dotted name; a package's own name is its `__init__`."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


SOURCES = read_sources()


# ------------------------------------------------------------------------------- imports


def imports_in(nodes: Iterable[ast.AST], module: str) -> Iterator[tuple[str, str | None]]:
    """(module, name or None) of every import, use of the lazy root and `import_module` call."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, base] if base else package)
            for alias in node.names:
                yield base, alias.name
        elif isinstance(node, ast.Attribute):  # `threefold.load` after `import threefold`
            if isinstance(node.value, ast.Name) and node.value.id == "threefold":
                yield "threefold", node.attr
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.JoinedStr):
                first = first.values[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value.rstrip("."), None


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def home_of(module: str, name: str | None) -> str:
    """The module an import reaches; names of the lazy root count as where they live."""
    if module == "threefold" and name is not None:
        if name == "__version__":
            return "threefold._version"
        return threefold._HOMES.get(name, f"threefold.{name}")
    return module


def folder_of(module: str) -> str:
    """threefold.layers.gla → layers; the root itself → __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def wrong_imports(sources: Sources) -> list[str]:
    """Imports that look up or sideways, wherever in a file they stand."""
    wrong = []
    for module, text in sources.items():
        mine = folder_of(module)
        for target, name in dict.fromkeys(imports_in(ast.walk(ast.parse(text)), module)):
            if target.split(".")[0] != "threefold" or (target, name) == ("threefold", None):
                continue
            theirs = folder_of(home_of(target, name))
            if not may_import(mine, theirs):
                wrong.append(f"{module} imports {target}{f'.{name}' if name else ''}")
    return wrong


def may_import(mine: str, theirs: str) -> bool:
    if mine in DOORS or theirs in BELOW_ALL or mine == theirs:
        return True
    return mine in RANK and theirs in RANK and RANK[mine] > RANK[theirs]


def at_import_time(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that run when a module is imported: not functions, not `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += node.decorator_list if not isinstance(node, ast.Lambda) else []
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def reached_from(start: str, sources: Sources) -> dict[str, str]:
    """Every module imported when `start` is, with the module that asked for it."""
    reached = {start: start}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module not in sources:
            continue
        for target, name in imports_in(at_import_time(ast.parse(sources[module])), module):
            inner = f"{target}.{name}"
            parts = (inner if name and inner in sources else target).split(".")
            for i in range(1, len(parts) + 1):
                found = ".".join(parts[:i])
                if found not in reached:
                    reached[found] = module
                    waiting.append(found)
    return reached


def heavy_at_start(sources: Sources, heavy: tuple[str, ...] = ("torch", "numpy")) -> list[str]:
    """Heavy packages that `threefold.cli` imports before a command runs."""
    reached = reached_from("threefold.cli", sources)
    return [f"{reached[name]} imports {name}" for name in heavy if name in reached]


# ------------------------------------------------------------------------- what files hold


def unpickling(sources: Sources) -> list[str]:
    """Imports of pickle and its like, and every torch.load."""
    wrong = []
    for module, text in sources.items():
        nodes = list(ast.walk(ast.parse(text)))
        for target, name in imports_in(nodes, module):
            if target.split(".")[0] in PICKLES or (target, name) == ("torch", "load"):
                wrong.append(f"{module} imports {target}{f'.{name}' if name else ''}")
        for node in nodes:
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                wrong.append(f"{module}:{node.lineno} uses torch.load")
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                wrong.append(f"{module}:{node.value.lineno} uses allow_pickle")
    return wrong


def loops_over_time(sources: Sources) -> list[str]:
    """Loops in layers over a length, or with a variable t; mixer.py owns the only one."""
    wrong = []
    for module, text in sources.items():
        if folder_of(module) != "layers" or module == "threefold.layers.mixer":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.While):
                wrong.append(f"{module}:{node.lineno} has a while loop")
            elif isinstance(node, ast.For | ast.comprehension) and over_time(node):
                wrong.append(f"{module}:{node.target.lineno} loops over time")
    return wrong


def over_time(loop: ast.For | ast.comprehension) -> bool:
    if isinstance(loop.target, ast.Name) and loop.target.id == "t":
        return True
    if not isinstance(loop.iter, ast.Call):
        return False
    if called(loop.iter) == "unbind":
        return any(isinstance(n, ast.Constant) and n.value == 1 for n in loop.iter.args)
    return called(loop.iter) == "range" and any(map(is_length, ast.walk(loop.iter)))


def is_length(node: ast.AST) -> bool:
    """`length`, or x.shape[1] and x.size(1)."""
    if isinstance(node, ast.Name):
        return node.id in TIME_WORDS
    second = ast.dump(ast.Constant(1))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return node.value.attr == "shape" and ast.dump(node.slice) == second
    if isinstance(node, ast.Call) and called(node) == "size":
        return any(ast.dump(argument) == second for argument in node.args)
    return False


def poor_headers(sources: Sources, names: Iterable[str]) -> list[str]:
    """Mixer files without a header that has an equation and a dated reference."""
    wrong = []
    for name in names:
        text = sources.get(f"threefold.layers.{name}")
        if text is None:
            wrong.append(f"{name}: there is no threefold/layers/{name}.py")
            continue
        header = ast.get_docstring(ast.parse(text)) or ""
        if not re.search(r"\w\S* = \S", header.split("\n\n")[0]):
            wrong.append(f"{name}: the header does not begin with an equation")
        if not re.search(r"\b(19|20)\d\d\b", header):
            wrong.append(f"{name}: the header names no paper with its year")
    return wrong


def too_long(sources: Sources, most: int, allowed: Iterable[str]) -> list[str]:
    """Files above `most` lines that are not excused, and excuses that are not needed."""
    lines = {name: len(text.splitlines()) for name, text in sources.items()}
    over = {name for name, count in lines.items() if count > most}
    return [f"{n}: {lines[n]} lines, above {most}" for n in sorted(over - set(allowed))] + [
        f"{n}: excused, but only {lines.get(n, 0)} lines" for n in sorted(set(allowed) - over)
    ]


def drawn_elsewhere(sources: Sources) -> list[str]:
    """Modules outside threefold/drawing that import matplotlib."""
    wrong = []
    for module, text in sources.items():
        imports = imports_in(ast.walk(ast.parse(text)), module)
        targets = {target.split(".")[0] for target, _ in imports}
        if folder_of(module) != "drawing" and "matplotlib" in targets:
            wrong.append(module)
    return wrong


def shell_options(sources: Sources) -> list[str]:
    """Options spelled as in a shell, in messages that Python's users read too.

    `errors.option` spells them as their reader types them.  Whole commands (`threefold …`) and the
    arguments of other programs, which are single words, may have them.  Left out are the pages of
    races, which show the command that made them, and the studies, which are commands only.
    """
    wrong = []
    for module, text in sources.items():
        left_out = (
            "threefold.cli",
            "threefold.errors",
            "threefold.lab.report",
            "threefold.lab.studies",
        )
        if module.startswith(left_out):
            continue
        for message in strings_in(ast.parse(text)):
            bare = re.sub(r"(^|[`>])threefold [^`<]*|pip download .*", "", message)
            if " " in message and re.search(r"(?<![\w-])--[a-z]", bare):
                wrong.append(f"{module}: {message!r}")
    return wrong


def strings_in(tree: ast.Module) -> Iterator[str]:
    """The strings of a module that are no docstrings, with {} for what is computed."""
    nodes = list(ast.walk(tree))
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    skipped |= {id(p) for node in nodes if isinstance(node, ast.JoinedStr) for p in node.values}
    for node in nodes:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if id(node) not in skipped:
            known = [p.value if isinstance(p, ast.Constant) else "{}" for p in parts]
            yield "".join(text for text in known if isinstance(text, str))


def classes_of_one_name(sources: Sources) -> list[str]:
    """Public classes that share their name with another one."""
    homes: dict[str, list[str]] = {}
    for module, text in sources.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    return [f"{name}: {', '.join(modules)}" for name, modules in homes.items() if len(modules) > 1]


def function_lengths(sources: Sources) -> dict[str, int]:
    """Lines of every function, by module, name and line."""
    return {
        f"{module}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, text in sources.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def long_functions(sources: Sources) -> list[str]:
    """Functions above the ceiling; then, whether half and nine tenths of all are short."""
    lengths = function_lengths(sources)
    wrong = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > FUNCTION_LINES]
    in_order = sorted(lengths.values()) or [0]
    for share, most in FUNCTION_SHARES.items():
        lines = in_order[int(share * (len(in_order) - 1))]
        if lines > most:
            wrong.append(f"{share:.0%} of functions have up to {lines} lines, expected {most}")
    return wrong


def functions_of(
    node: ast.AST, where: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below a node, with its dotted name."""
    for child in ast.iter_child_nodes(node):
        name = f"{where}.{getattr(child, 'name', '')}" if hasattr(child, "name") else where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from functions_of(child, name)


def many_parameters(sources: Sources, excused: Iterable[str] = ()) -> list[str]:
    """Functions with too many parameters that are not excused, and excuses that are not needed."""
    wrong, needed = [], set()
    for module, text in sources.items():
        for name, function in functions_of(ast.parse(text), module):
            given = function.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in every)
            if count > PARAMETERS:
                reasons = [pattern for pattern in excused if fnmatchcase(name, pattern)]
                needed.update(reasons)
                wrong += [] if reasons else [f"{name}: {count} parameters, above {PARAMETERS}"]
    return wrong + [f"{e}: excused without need" for e in excused if e not in needed]


def tracked_files() -> list[Path]:
    """What git tracks or would track; every file of the tree where there is no git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.*")]
    paths = (ROOT / name for name in run.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def local_traces(files: Iterable[Path]) -> list[str]:
    """Paths of one machine and addresses of package registries."""
    wrong = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            found = MACHINE_PATHS.search(line) or REGISTRIES.search(line)
            if found:
                wrong.append(f"{path.name}:{number} has {found.group()!r}")
    return wrong


# --------------------------------------------------------------------------------- the tests


def test_folders_import_only_from_below() -> None:
    assert wrong_imports(SOURCES) == []


def test_every_folder_has_a_row() -> None:
    folders = {folder_of(module) for module in SOURCES}
    assert folders - set(RANK) - BELOW_ALL - DOORS == set()


def test_command_line_starts_without_torch() -> None:
    assert heavy_at_start(SOURCES) == []


def test_nothing_is_unpickled() -> None:
    assert unpickling(SOURCES) == []


def test_layers_have_no_loop_over_time() -> None:
    assert loops_over_time(SOURCES) == []


@pytest.mark.parametrize("name", MIXERS)
def test_mixer_file(name: str) -> None:
    assert poor_headers(SOURCES, [name]) == []


def test_mixers_are_short() -> None:
    mixers = {name: SOURCES.get(f"threefold.layers.{name}", "") for name in MIXERS}
    assert too_long(mixers, CEILING, LONGER) == []


def test_files_are_short() -> None:
    assert too_long(SOURCES, FILE_LINES, LONGER_FILES) == []


def test_one_name_for_one_class() -> None:
    assert classes_of_one_name(SOURCES) == []


def test_messages_spell_options_as_their_reader_types_them() -> None:
    assert shell_options(SOURCES) == []


def test_one_place_draws() -> None:
    assert drawn_elsewhere(SOURCES) == []


def test_functions_are_short() -> None:
    assert long_functions(SOURCES) == []


def test_functions_have_few_parameters() -> None:
    assert many_parameters(SOURCES, MANY_PARAMETERS) == []


def test_nothing_of_this_machine_is_tracked() -> None:
    assert local_traces(tracked_files()) == []


class TestCheckersFail:
    """Each checker on a deliberate fault."""

    @pytest.mark.parametrize(
        ("module", "text"),
        [
            ("threefold.memory.bad", "from threefold.layers import gla"),
            ("threefold.memory.bad", "def f():\n    import threefold.layers.gla"),
            ("threefold.memory.bad", "from ..layers.gla import GatedLinearAttention"),
            ("threefold.memory.bad", "from threefold import mixer"),
            ("threefold.memory.bad", "import threefold\nthreefold.mixer('gla', width=64)"),
            ("threefold.memory.bad", "import_module(f'threefold.layers.{name}')"),
            ("threefold.kernels.bad", "import threefold.data.python_manual"),
            ("threefold.tasks.bad", "from threefold.models import spec"),
            ("threefold.errors", "from threefold.memory import state"),
        ],
    )
    def test_imports(self, module: str, text: str) -> None:
        assert len(wrong_imports({module: text})) == 1

    def test_imports_that_are_right(self) -> None:
        text = (
            "import torch\nimport threefold\nfrom threefold.memory import state\n"
            "from threefold import __version__\n"
            "print(threefold.__version__, threefold.linear_recurrence)"
        )
        assert wrong_imports({"threefold.layers.good": text}) == []

    def test_shell_options(self) -> None:
        bad = "raise ThreefoldError(f'{name}: use --missing carry')"
        fine = "'''Use --set.'''\nrun('--quiet')\nsay(f'`threefold train {x} --steps 3`')"
        assert len(shell_options({"threefold.data.bad": bad})) == 1
        assert shell_options({"threefold.data.good": fine, "threefold.cli.good": bad}) == []

    def test_torch_at_start(self) -> None:
        sources = {
            "threefold": "",
            "threefold.cli": "from threefold.cli import one",
            "threefold.cli.one": "if True:\n    import threefold.memory.two",
            "threefold.memory": "",
            "threefold.memory.two": "import torch.nn",
        }
        assert heavy_at_start(sources) == ["threefold.memory.two imports torch"]
        later = "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch"
        assert heavy_at_start({**sources, "threefold.cli.one": later}) == []

    @pytest.mark.parametrize(
        "text",
        [
            "import pickle",
            "def f():\n    from pickle import loads",
            "torch.load(path)",
            "from torch import load",
            "numpy.load(path, allow_pickle=True)",
        ],
    )
    def test_pickle(self, text: str) -> None:
        assert len(unpickling({"threefold.models.bad": text})) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "for t in times: pass",
            "for i in range(x.shape[1]): pass",
            "for i in range(0, length, 2): pass",
            "y = [f(i) for i in range(x.size(1))]",
            "for element in x.unbind(1): pass",
            "while True: pass",
        ],
    )
    def test_loop(self, text: str) -> None:
        assert len(loops_over_time({"threefold.layers.bad": text})) == 1
        assert loops_over_time({"threefold.layers.mixer": text, "threefold.memory.a": text}) == []

    def test_loop_that_is_right(self) -> None:
        text = "for name in names: pass\nfor i in range(x.shape[0] + heads): pass"
        assert loops_over_time({"threefold.layers.good": text}) == []

    def test_header(self) -> None:
        bad = {"threefold.layers.bad": '"""A layer."""'}
        assert len(poor_headers(bad, ["bad"])) == 2
        assert len(poor_headers(bad, ["absent"])) == 1

    def test_length(self) -> None:
        sources = {"threefold.layers.long": "\n" * 9, "threefold.layers.short": "\n" * 8}
        long, short = sources
        assert too_long(sources, 8, []) == [f"{long}: 9 lines, above 8"]
        assert too_long(sources, 8, [long]) == []
        assert len(too_long(sources, 8, [long, short])) == 1

    def test_classes_of_one_name(self) -> None:
        sources = {"threefold.a": "class Plan: pass", "threefold.b": "class Plan: pass"}
        assert classes_of_one_name(sources) == ["Plan: threefold.a, threefold.b"]
        assert classes_of_one_name({**sources, "threefold.b": "class _Plan: pass"}) == []

    def test_drawing(self) -> None:
        text = "def f():\n    from matplotlib.figure import Figure"
        assert drawn_elsewhere({"threefold.lab.bad": text}) == ["threefold.lab.bad"]
        assert drawn_elsewhere({"threefold.drawing.good": text}) == []

    def test_long_functions(self) -> None:
        body = "\n    pass" * FUNCTION_LINES
        assert len(long_functions({"threefold.a": f"def f():{body}"})) == 3
        assert long_functions({"threefold.a": "def f():\n    pass"}) == []

    def test_many_parameters(self) -> None:
        nine = ", ".join("abcdefghi")
        text = f"class A:\n    def f(self, {nine}): pass\n    def g(self, *, a, b): pass"
        sources = {"threefold.a": text}
        assert many_parameters(sources) == ["threefold.a.A.f: 9 parameters, above 8"]
        assert many_parameters(sources, ["threefold.a.*"]) == []
        assert many_parameters(sources, ["threefold.a.A.f"]) == []
        assert len(many_parameters(sources, ["threefold.a.A.f", "threefold.a.A.g"])) == 1

    @pytest.mark.parametrize(
        "line",
        [
            "open('/" + "tmp/x')",
            "cd /" + "work/x",
            "PATH=/ro" + "ot/bin",
            "pip install --index" + "-url x",
            "https://example.org/sim" + "ple/torch",
        ],
    )
    def test_traces(self, line: str, tmp_path: Path) -> None:
        path = tmp_path / "file.txt"
        path.write_text(f"first\n{line}\n", encoding="utf-8")
        assert len(local_traces([path])) == 1
        path.write_text("see https://example.org/paper and network/tmp_x", encoding="utf-8")
        assert local_traces([path]) == []
