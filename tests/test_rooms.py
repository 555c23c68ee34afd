"""Imports between folders follow one table of allowed arrows."""

import ast
import functools
import json
from pathlib import Path

import pytest
from helpers import tiny

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
RUN = CORE | {"configuration", "evaluation", "preparation", "studies.reports"}
RUN |= {"tools.tuning", "training"}
# {folder: folders it may import}. Folders that are not listed import nothing of this project.
ALLOWED = {
    "storage": {"validation"},
    "model": {"ops", "validation"},
    "data": {"storage", "validation"},
    "data.text": {"data", "storage", "validation"},
    "data.cldr": {"data"},
    "data.benchmarks": {"data", "data.cldr", "data.text", "storage"},
    "data.prepared": {"data", "storage"},
    "data.batches": {"data", "data.benchmarks", "data.prepared", "storage", "validation"},
    "objectives": {"data", "data.benchmarks", "model", "ops", "validation"},
    "checkpoints": {"model", "objectives", "storage"},
    "preparation": DATA | {"storage", "validation"},
    "vocabularies": {"data", "preparation", "storage"},
    "training": {"checkpoints", "model", "objectives", "storage", "validation"},
    "tools.tuning": {"ops", "storage"},
    "evaluation": DATA | {"model", "objectives", "storage", "training", "validation"},
    "studies.published": set(),
    "studies.reports": DATA
    | {"checkpoints", "evaluation", "model", "objectives", "preparation", "storage", "training"}
    | {"validation", "vocabularies"},
    "studies.papers": DATA
    | {"checkpoints", "evaluation", "model", "storage", "training"}
    | {"studies.published", "studies.reports"},
    "configuration": CORE | {"evaluation", "preparation", "training"},
    "runs": RUN,
    "studies.sweeps": RUN,
    "tools.planning": RUN | {"runs"},
    "huggingface": RUN | {"runs"},
    "tools.serving": {"data", "data.prepared", "evaluation", "runs", "storage", "studies.reports"}
    | {"validation"},
    "tasks": DATA | {"preparation", "storage"},
    "api": RUN | {"huggingface", "runs", "tasks"},
    "command": RUN
    | {"api", "huggingface", "runs", "studies.papers", "studies.sweeps", "tools.planning"}
    | {"tools.serving", "vocabularies"},
}
COMMANDS = {"average", "demo", "evaluate", "export", "import_hf", "inspect", "plan", "prepare"}
COMMANDS |= {
    "mine",
    "report",
    "sampling",
    "selfcheck",
    "sweep",
    "train",
    "train_vocabulary",
    "translate",
}


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


# Loads a run up to its first batch, and lists the project's modules that were imported.
_FIRST_BATCH = """
import json, sys
from xlme_jax import api, train
from xlme_jax.configuration import command_line
config = api.load_config(*json.loads(sys.argv[1]))
from xlme_jax.runs import assembly
run = assembly.assemble(config.train, config.text, config.prepare_command)
next(run.batches)
run.batches.close()
print("LOADED", json.dumps({n: m.__file__ for n, m in sys.modules.items() if n != "__main__"
                            and n.split(".")[0] in ("xlme_jax", "tasks") and m.__file__}))
print("OTHERS", json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


@pytest.fixture(scope="module")
def loaded(tiny_data, tmp_path_factory):
    """Returns the files of the modules that a run has loaded at its first batch, and packages."""
    values = {
        "MODEL_DIR": str(tmp_path_factory.mktemp("run")),
        "DATA_DIR": str(tiny_data),
        "Train.prepare_if_missing": False,
        "Train.evaluators": (),
        "Loop.samples_every": None,
    }
    arguments = json.dumps(["gin_configs/runs/quickstart.gin", values])
    output = tiny.run(["-c", _FIRST_BATCH, arguments])
    lines = dict(line.split(" ", 1) for line in output.splitlines() if line[:7] in _MARKS)
    return json.loads(lines["LOADED"]), json.loads(lines["OTHERS"])


_MARKS = ("LOADED ", "OTHERS ")


def test_a_run_loads_few_modules(loaded):
    modules, _ = loaded
    lines = sum(len(Path(file).read_text().splitlines()) for file in modules.values())
    assert len(modules) <= 105 and lines <= 18_700, (len(modules), lines)


def test_a_run_loads_neither_studies_nor_tools_nor_what_it_does_not_use(loaded):
    modules, others = loaded
    unused = ("studies", "tools", "data.text.reading", "preparation.preparing", "evaluation.bucc")
    unused += ("objectives.veco", "objectives.infoxlm", "huggingface.weights")
    assert not [n for n in modules if n.removeprefix("xlme_jax.").startswith(unused)]
    assert not {"tensorflow", "seqio", "matplotlib", "bokeh", "torch", "apache_beam"} & {*others}
