"""Imports go one way, and importing the package is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "piwm_gym"
# A module may import modules of its own layer and of those above it in this list.
LAYERS = [
    {"systems"},
    {"models"},
    {"world_model"},
    {"checkpoint"},
    {"env", "vector_env"},
    {"sb3", "planning", "cli", "real", "video", "imagine"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_level_imports(path: Path) -> set[str]:
    """Full names of what a file imports when it is imported itself."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
        elif not isinstance(node, ast.FunctionDef | ast.If):  # lazy, or for the type checker
            pending += ast.iter_child_nodes(node)
    return names


def unit(path: Path) -> str:
    """Name of the module or subpackage a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


GRAPH: dict[str, set[str]] = {}
for file in PACKAGE.rglob("*.py"):
    parts = [name.split(".") for name in module_level_imports(file)]
    imported = {p[1] for p in parts if p[0] == "piwm_gym" and len(p) > 1}
    GRAPH.setdefault(unit(file), set()).update(imported - {unit(file)})


def reachable(name: str) -> set[str]:
    """Everything that importing a module imports."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        for other in GRAPH.get(pending.pop(), set()) - seen:
            seen.add(other)
            pending.append(other)
    return seen


@pytest.mark.parametrize("name", sorted(RANK))
def test_imports_go_one_way(name: str) -> None:
    assert name in GRAPH
    upwards = {other for other in reachable(name) if RANK.get(other, -1) > RANK[name]}
    assert not upwards


def test_no_import_cycles() -> None:
    assert [name for name in GRAPH if name in reachable(name)] == []


def test_the_package_never_imports_training() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [module]
            assert not any((n or "").split(".")[0] == "training" for n in names), path


def test_importing_is_light() -> None:
    code = (
        "import sys, piwm_gym, gymnasium;"
        "assert 'PIWM-CartPole-v0' in gymnasium.registry;"
        "print([m for m in ('torch', 'gym', 'stable_baselines3', 'PIL') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"


def test_public_names() -> None:
    import piwm_gym

    for name in piwm_gym.__all__:
        assert getattr(piwm_gym, name).__module__.startswith("piwm_gym.")
        assert name in dir(piwm_gym)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        piwm_gym.laod  # noqa: B018
