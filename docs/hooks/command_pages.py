"""Reference of the commands: their docstrings and flags, as `--help` prints them."""

import functools
import importlib
import inspect
import re
import textwrap

from absl import flags
from repository import ROOT

# In the order of work. Flags of one command are removed before the next defines its own.
COMMANDS = (
    "train_vocabulary",
    "prepare",
    "mine",
    "train",
    "inspect",
    "evaluate",
    "report",
    "sweep",
    "average",
    "translate",
    "export",
    "import_hf",
    "demo",
    "plan",
    "selfcheck",
    "sampling",
)
_INTRODUCTION = """
# Commands

Every command is a module, `python -m xlme_jax.NAME` or `xlme-jax NAME`, and prints this page's text
with `--help`.
Flags with a value take `--flag=value`, lists `--flag=a,b`, switches `--flag` or `--noflag`. Paths
may be in a bucket, `gs://BUCKET/...` ([Pods and buckets](../guide/pods.md)). Commands that read gin
files ({gin}) take `--gin_file=FILE`, repeatable, and `--gin.NAME=VALUE` for any field of the
[configurables](configurables.md).

An error that a user can fix is printed in one line without a traceback; `XLME_TRACEBACK=1` shows
it. `--verbosity=0` shows the logs of libraries.
"""


@functools.cache  # `mkdocs serve` asks again; a module defines its flags only once.
def page() -> str:
    """Returns the page with a section for each command."""
    # Those that share flags come last, because shared flags stay and others have the same names.
    shared = [c for c in COMMANDS if "source_flags" in _source(c)]
    order = [*(c for c in COMMANDS if c not in shared), *shared]
    sections = {command: _section(command) for command in order}
    gin = ", ".join(f"`{c}`" for c in COMMANDS if "reads_gin=False" not in _source(c))
    return _INTRODUCTION.format(gin=gin) + "\n".join(sections[command] for command in COMMANDS)


def _source(command: str) -> str:
    return (ROOT / "xlme_jax" / f"{command}.py").read_text()


def _section(command: str) -> str:
    name = f"xlme_jax.{command}"
    module = importlib.import_module(name)
    rows = [_row(flag) for flag in flags.FLAGS.get_key_flags_for_module(name)]
    for flag in list(flags.FLAGS.flags_by_module_dict().get(name, [])):
        delattr(flags.FLAGS, flag.name)
    lines = [f"## {command}", "", _docstring(module.__doc__ or ""), ""]
    return "\n".join([*lines, "| flag | default | |", "|---|---|---|", *rows, ""])


def _docstring(text: str) -> str:
    """Returns a docstring as Markdown; its examples are shell commands."""
    blocks = re.split(r"\n\n", inspect.cleandoc(text).replace("::\n", ":\n"))
    shown = []
    for block in blocks:
        if block.startswith("    "):
            shown.append(f"```bash\n{textwrap.dedent(block)}\n```")
            continue
        text = re.sub(r"(?<![`\w=<])(--\w+(?:=[\w\[\]/{}.,+]+)?)", r"`\1`", block)
        shown.append(re.sub(r"`?docs/((?:\w+/)?\w+\.md)`?", r"[\1](../\1)", text))
    return "\n\n".join(shown)


def _row(flag: flags.Flag) -> str:
    help_text = re.sub(r"\s+", " ", flag.help or "")
    if isinstance(flag, flags.EnumFlag):
        choices = ", ".join(f"`{value}`" for value in flag.parser.enum_values)
        help_text = f"One of {choices}. {re.sub('^<.*?>: ', '', help_text)}"
    help_text = help_text.replace("|", "\\|").replace("<", "&lt;")
    if flag.using_default_value and flag.default is None:
        is_required = any("other than None" in (v.message or "") for v in flag.validators)
        default = "required" if is_required else ""
    else:
        value = flag.default_as_str.strip("'")
        # Long lists break after commas.
        default = f"<code>{value.replace(',', ',<wbr>')}</code>" if value else ""
    return f'| <code class="whole">--{flag.name}</code> | {default} | {help_text} |'
