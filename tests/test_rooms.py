"""Imports between folders follow one table of allowed arrows."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = {
    "data",
    "data.batches",
    "data.benchmarks",
    "data.cldr",
    "data.prepared",
    "data.text",
}
CORE = DATA | {"checkpoints", "model", "objectives", "ops", "storage", "validation"}
RUN = CORE | {"configuration", "evaluation", "preparation", "studies", "tools.tuning", "training"}
# {folder: folders it may import}. Folders that are not listed import nothing of this project.
ALLOWED = {
    "model": {"ops", "validation"},
    "data": {"storage", "validation"},
    "data.text": {"data", "storage"},
    "data.cldr": {"data"},
    "data.benchmarks": {"data", "data.cldr", "data.text", "storage"},
    "data.prepared": {"data", "storage"},
    "data.batches": {"data", "data.benchmarks", "data.prepared", "storage", "validation"},
    "objectives": {"data", "data.benchmarks", "model", "ops", "validation"},
    "checkpoints": {"objectives", "storage"},
    "preparation": DATA | {"storage", "validation"},
    "vocabularies": {"data", "preparation", "storage"},
    "training": {"checkpoints", "model", "objectives", "storage", "validation"},
    "tools.tuning": {"ops", "storage"},
    "evaluation": DATA | {"objectives", "storage", "training", "validation"},
    "studies": DATA
    | {"checkpoints", "evaluation", "objectives", "preparation", "storage", "training"}
    | {"vocabularies"},
    "configuration": CORE | {"evaluation", "preparation", "training"},
    "runs": RUN,
    "studies.sweeps": RUN,
    "tools.planning": RUN | {"runs"},
    "huggingface": RUN | {"runs"},
    "tools.serving": {"data", "data.prepared", "evaluation", "runs", "storage", "studies"},
    "tasks": DATA | {"preparation", "storage"},
    "api": RUN | {"huggingface", "runs", "tasks"},
    "command": RUN
    | {"api", "huggingface", "runs", "studies.sweeps", "tools.planning", "tools.serving"}
    | {"vocabularies"},
}
COMMANDS = {"average", "demo", "evaluate", "export", "import_hf", "inspect", "plan", "prepare"}
COMMANDS |= {"report", "sampling", "selfcheck", "sweep", "train", "train_vocabulary", "translate"}


def modules():
    """Returns {name without "xlme_jax.": file} of all modules."""
    found = {}
    for top in ("xlme_jax", "tasks"):
        for file in (ROOT / top).rglob("*.py"):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


@functools.cache
def room(module):
    """Returns the folder of a module; "command" for those of the root."""
    if module.split(".")[0] == "tasks":
        return "tasks"
    parts = module.split(".")[1:]
    if len(parts) < 2 and parts[0] in COMMANDS | {"api"}:
        return "api" if parts == ["api"] else "command"
    nested = ".".join(parts[:2])
    return nested if nested in ALLOWED else parts[0]


def imported(file, known):
    """Returns the project's modules that a file imports, lazily or not."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in names)


@functools.cache
def arrows():
    """Returns (module, imported module) of all imports."""
    known, found = modules(), []
    for module, file in known.items():
        if module == "xlme_jax":
            continue
        found += [(module, other) for other in imported(file, known)]
    return found


def test_imports_follow_the_table():
    wrong = [
        f"{module} imports {other}"
        for module, other in arrows()
        if room(module) != room(other) and room(other) not in ALLOWED.get(room(module), set())
    ]
    assert not wrong


def test_the_table_has_no_circle():
    order = []

    def visit(name, path):
        assert name not in path, f"{' -> '.join(path)} -> {name}"
        if name not in order:
            for other in sorted(ALLOWED.get(name, ())):
                visit(other, (*path, name))
            order.append(name)

    for name in ALLOWED:
        visit(name, ())


def test_no_module_imports_itself_through_others():
    graph = {}
    for module, other in arrows():
        graph.setdefault(module, set()).add(other)
    done = set()

    def visit(module, path):
        assert module not in path, f"{' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


@pytest.mark.parametrize("folder", ["data", "evaluation"])
def test_data_and_evaluation_know_nothing_of_the_loop(folder):
    assert not [
        module
        for module, other in arrows()
        if module.startswith(f"xlme_jax.{folder}.") and other == "xlme_jax.training.loop"
    ]


def test_the_root_holds_commands_and_the_api_alone():
    found = {file.stem for file in (ROOT / "xlme_jax").glob("*.py")}
    assert found == COMMANDS | {"api", "__init__", "__main__"}
