"""The shape of the code: short functions, and modules that do not import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
LONGEST = 45  # lines of a function without its docstring


def module_name(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is None or first.end_lineno is None:
        return lines
    return lines - (first.end_lineno - first.lineno + 1)


def long_functions(source: Path) -> list[str]:
    return [
        f"{file.relative_to(source)}: {node.name} has {code_lines(node)} lines"
        for file in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > LONGEST
    ]


def executed_imports(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when a module is loaded: not those of functions or of type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from executed_imports(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody", "handlers"):
                for inner in getattr(node, field, []):
                    yield from executed_imports([inner] if isinstance(inner, ast.stmt) else inner.body)


def import_graph(source: Path) -> dict[str, set[str]]:
    """Module -> the modules of the package that it names in an import; `from package import module` names the module.

    The package around an imported module is not counted, although Python loads it too.
    """
    files = {module_name(file, source): file for file in source.rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for node in executed_imports(ast.parse(file.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.Import):
                named = {alias.name for alias in node.names}
            else:
                assert node.level == 0, f"{name} has a relative import, which this test does not follow"
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                named = {full if full in files else str(node.module) for full in inner.values()}
            graph[name] |= named & files.keys()
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle in the order of their imports; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def write_package(folder: Path, **modules: str) -> Path:
    (folder / "toy").mkdir()
    for name, text in modules.items():
        (folder / "toy" / f"{name}.py").write_text(text)
    return folder


def test_no_function_is_long() -> None:
    assert not long_functions(SOURCE)


def test_no_module_imports_itself_through_others() -> None:
    assert cycle(import_graph(SOURCE)) == []


def test_a_docstring_does_not_make_a_function_long(tmp_path: Path) -> None:
    lines = "    pass\n" * (LONGEST - 1)
    package = write_package(
        tmp_path,
        fits=f'def fits():\n    """One.\n\n    Two.\n    """\n{lines}',
        long=f"class Group:\n  async def long():\n{lines}    pass\n",
    )
    assert long_functions(package) == [f"{Path('toy', 'long.py')}: long has {LONGEST + 1} lines"]


@pytest.mark.parametrize(
    "text", ["import toy.b", "from toy import b", "from toy.b import x", "try:\n    import toy.b\nexcept E:\n    pass"]
)
def test_a_cycle_is_found(tmp_path: Path, text: str) -> None:
    package = write_package(tmp_path, a=text, b="class Late:\n    from toy.c import y", c="from toy import a")
    assert set(cycle(import_graph(package))) == {"toy.a", "toy.b", "toy.c"}


@pytest.mark.parametrize("text", ["def later():\n    import toy.b", "if TYPE_CHECKING:\n    from toy.b import x"])
def test_imports_that_do_not_run_on_loading_make_no_cycle(tmp_path: Path, text: str) -> None:
    package = write_package(tmp_path, a=text, b="import toy.a")
    assert import_graph(package) == {"toy.a": set(), "toy.b": {"toy.a"}}


def test_every_room_of_tests_is_a_package() -> None:
    rooms = {file.parent for file in Path(__file__).parents[1].rglob("test_*.py")}
    # Elsewhere two files of one name are one module to pytest, and only a run of all tests shows it.
    assert [room.name for room in sorted(rooms) if not (room / "__init__.py").exists()] == []
