"""Names: values by what they are, one word for one thing, one name for one class or file."""

import ast
import functools
from collections import defaultdict

import pytest
from test_rooms import COMMANDS, modules

VAGUE = {
    "found",
    "one",
    "place",
    "wanted",
    "kept",
    "own",
    "shown",
    "others",
    "held",
    "known",
    "what",
}
VAGUE |= {"ahead", "behind", "here", "there", "same", "some", "theirs", "thing", "those", "which"}
# Written for users of Hugging Face, with the names that they expect.
EXPORTED = {"modeling_xlme.py", "configuration_xlme.py"}
# Commands are named by what they do, and SeqIO's tasks by the sources that they register.
OUTSIDE_ROOMS = {f"{name}.py" for name in COMMANDS} | {"__init__.py", "__main__.py"}
# The front of all commands, and a process that must end at once.
PRINTING = {"command_line.py", "leases.py"}


@functools.cache
def nodes():
    """Returns (file, all nodes of its syntax) of each file of the package and of the tasks."""
    return [(file, list(ast.walk(ast.parse(file.read_text())))) for file in modules().values()]


def functions():
    """Yields (file, function) of all functions and methods."""
    for file, of_file in nodes():
        for node in of_file:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield file, node


def local_names(function):
    """Returns the arguments of a function and the names that it assigns."""
    stored = (
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    arguments = (argument.arg for argument in (*function.args.args, *function.args.kwonlyargs))
    return {*stored, *arguments}


def test_values_are_named_by_what_they_are():
    assert not [
        f"{file}:{function.lineno}: {sorted(names)}"
        for file, function in functions()
        if (names := local_names(function) & VAGUE)
    ]


def test_no_call_packs_its_arguments():
    packed = [
        f"{file}:{node.lineno}"
        for file, of_file in nodes()
        for node in of_file
        if isinstance(node, ast.Call)
        and any(isinstance(a, ast.Starred) and isinstance(a.value, ast.Tuple) for a in node.args)
    ]
    assert not packed


def test_rooms_do_not_print():
    printing = [
        f"{file}:{node.lineno}"
        for file, of_file in nodes()
        if file.name not in OUTSIDE_ROOMS | PRINTING
        for node in of_file
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not printing


def test_loggers_have_one_name():
    assert not [file for file, _ in nodes() if "_logger" in file.read_text()]


@pytest.mark.parametrize("kind", ["class", "file"])
def test_no_two_have_one_name(kind):
    names = defaultdict(set)
    for file, of_file in nodes():
        if file.name in EXPORTED | OUTSIDE_ROOMS:
            continue
        if kind == "file":
            names[file.name].add(file)
        else:
            for node in of_file[0].body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    names[node.name].add(file)
    assert not {name: files for name, files in names.items() if len(files) > 1}
