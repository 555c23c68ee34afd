"""The project never executes its input: no pickle, no eval, no unsafe loader."""

import ast
import io

import fuzzing
import pytest
from helpers import tiny

FILES = sorted(
    path
    for folder in ("xlme_jax", "tasks")
    for path in (tiny.REPOSITORY / folder).rglob("*.py")
    if path.name != "__main__.py"  # Runs the commands of its own folder, and nothing that is read.
)
# Modules whose data can carry code.
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
MODULES |= {"jsonpickle", "runpy"}
# Calls by what follows the last dot; None: whatever the arguments.
CALLS = {
    "eval": None,
    "exec": None,
    "compile": "builtin",
    "__import__": None,
    "read_pickle": None,
    "to_pickle": None,
    "unsafe_load": None,
    "system": None,
    "popen": None,
    "extractall": None,
    "extract": None,
    "unpack_archive": None,
    "mktemp": None,
}
FLAGS = {"allow_pickle", "shell", "trust_remote_code"}


def findings(source):
    """Returns (line, finding) of everything unsafe in source code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _unsafe_call(node))
            continue
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in MODULES)


def _unsafe_call(node):
    function = node.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    owner = getattr(getattr(function, "value", None), "id", "")
    builtin = isinstance(function, ast.Name)
    if name in CALLS and (builtin or CALLS[name] is None):
        yield name
    if (owner, name) in {("yaml", "load"), ("torch", "load")}:
        yield f"{owner}.{name}"
    for keyword in node.keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in FLAGS and not off:
            yield keyword.arg


def test_nothing_that_is_read_is_run():
    found = {path: list(findings(path.read_text())) for path in FILES}
    assert found and not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import a, shelve",
        "def f():\n  import dill as d",
        "import cloudpickle.x",
        "eval(x)",
        "exec('1')",
        "compile(x, '', 'exec')",
        "np.load(x, allow_pickle=True)",
        "np.load(x, allow_pickle=y)",
        "yaml.load(x)",
        "torch.load(x)",
        "pd.read_pickle(x)",
        "archive.extractall()",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "__import__(x)",
    ],
)
def test_what_is_unsafe_is_found(source):
    assert list(findings(source))


def test_what_is_safe_is_not():
    source = "np.load(x, allow_pickle=False)\nre.compile(x)\nsubprocess.run([x])\nyaml.safe_load(x)"
    assert not list(findings(source))


def test_the_budgets_are_what_the_suites_promise():
    assert fuzzing.DEFAULT_CASES >= 500
    assert fuzzing.SLOW_CASES >= 8_000


def test_a_case_that_fails_fails_its_property():
    seen = io.BytesIO()

    def property_(data):
        seen.write(data)
        assert b"\0" not in data

    with pytest.raises(AssertionError):
        fuzzing.check(200, fuzzing.damaged([b"text"]), property_)
