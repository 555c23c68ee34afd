"""Runs the commands of the papers' sheets on tiny files: as printed, but for their size."""

import dataclasses
import functools
import os
import random
import re
import shlex
from pathlib import Path

from helpers import hf_folders, official_files, tiny
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset
from xlme_jax.evaluation import results
from xlme_jax.studies.papers.items import PAPERS, RECIPES
from xlme_jax.studies.papers.needs import Need, command

LENGTH = 64
_COSTS = {
    "flops_per_step": {"ours": 2e9, "table_4": 1e9},
    "inherited_flops": {"ours": 0, "table_4": 0},
    "encoder_parameters": 20_000,
}
# The system of $RUN.
OBJECTIVES = {"xlme": "xlme", "infoxlm": "infoxlm", "veco": "veco"}
# What is appended to the commands: sizes alone.
_TRAINED = (
    "--gin.Encoder.scan_layers=False",
    "--gin.Encoder.remat=False",
    *(f"--gin.{scope}Encoder.num_layers=1" for scope in ("", "generator/", "discriminator/")),
    "--gin.Encoder.hidden_size=32",
    "--gin.Encoder.num_heads=2",
    "--gin.Encoder.ffn_size=64",
    f"--gin.Encoder.max_length={LENGTH}",
    "--gin.Train.vocab_size=None",
    "--gin.Mesh.fsdp=1",
    *(
        f"--gin.{stream}.{field}={value}"
        for stream in ("monolingual/TextStream", "bitext/PairStream", "contrast/PairStream")
        for field, value in (("rows", 8), ("length", LENGTH))
    ),
    "--gin.TRAIN_STEPS=2",
    "--gin.CHECKPOINT_EVERY=1",
    "--gin.Optimizer.warmup_steps=1",
    "--gin.XLCo.layer=1",
    "--gin.XLCo.queue_size=16",
    "--gin.VECO.cross_attention_steps=1",
    "--gin.RobustSampling.updates=1",
    "--gin.Translate.decoder_layers=1",
)
# Flags of `_TRAINED` are of systems and streams that a run may lack.
_OF = {
    "XLCo": "infoxlm",
    "contrast/": "infoxlm",
    "VECO": "veco_large",
    "RobustSampling": "robust",
    "Translate": "wmt14",
    "generator/": r"^(?!.*_mlm\b).*(xl?me|xylent)",
    "discriminator/": r"^(?!.*_mlm\b).*(xl?me|xylent)",
}
_FINE_TUNED = (
    f"--gin.LENGTH={LENGTH}",
    "--gin.BATCH=8",
    "--gin.EPOCHS=1",
    "--gin.Optimizer.warmup_fraction=None",
    "--gin.Optimizer.warmup_steps=0",  # A printed grid may leave one step.
    "--gin.Prepare.stride=16",
    "--gin.TaskEvaluation.stride=16",
)
_ONE_POINT = "--grid=Optimizer.learning_rate=1e-3"
_DATA = (
    *("xlme_250k", "xlme_500k", "xylent_500k", "xylent_500k_ccaligned", "xlmr_250k", "xlmr_15"),
    *("veco_250k", "veco_quarter"),
    *("wmt14_en_de", "wmt14_en_fr", "opus_en_de"),
)


def every_command(paper):
    """Returns the commands of a paper's sheets: what measures, and what trains the rows."""
    found = []
    for item in PAPERS[paper]:
        found += [command(need, RECIPES.get(paper)) for need in item.needs]
        if item.has_large:
            found += [
                command(need, RECIPES.get(paper), is_large=True)
                for need in item.needs
                if not need.variant
            ]
        found += item.runs
    return list(dict.fromkeys(found))


@dataclasses.dataclass
class Workplace:
    """A folder in which commands are run; it must be the working folder.

    Attributes:
      folder: the folder.
      variables: {variable of the commands: value}.
      done: {command: folders of its results}.
    """

    folder: Path
    variables: dict[str, str]
    done: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def results_of(self, line):
        """Runs a command unless that is done; returns the folders of its results."""
        if line not in self.done:
            found = [self._run(part) for part in self.expanded(line).split(" && ")]
            self.done[line] = tuple(folder for folder in found if folder)
        return self.done[line]

    def expanded(self, line):
        """Replaces variables as a shell does."""
        return re.sub(r"\$\{?([A-Z_]+)\}?", lambda match: self._value(match[1]), line)

    def _value(self, name):
        if name in ("XNLI", "SQUAD"):  # A run that another command selects.
            task = {"XNLI": "xnli", "SQUAD": "squad"}[name]
            need = Need("xquad" if task == "squad" else task, "translate-train")
            (folder,) = self.results_of(command(need, RECIPES["veco"]))
            file, *_ = results.find(folder)
            return str(file.parents[2])
        return self.variables[name]

    def _run(self, text):
        python, option, module, *flags = shlex.split(text)
        assert (python, option) == ("python", "-m"), text
        name = module.removeprefix("xlme_jax.")
        return getattr(self, f"_{name}")(flags)

    def _call(self, name, flags):
        (done,) = tiny.run_each(name, flags)
        said = done.stdout + done.stderr
        if done.returncode:
            logs = [log.read_text()[-2_000:] for log in self.folder.rglob("*.log")]
            raise AssertionError("\n".join((shlex.join([name, *flags]), *logs, said[-4_000:])))
        return said

    def _train(self, flags):
        start = _value(flags, "gin.INIT_FROM", "").strip("'")
        if start.startswith("runs/") and not Path(start).exists():
            runs = (line for items in PAPERS.values() for item in items for line in item.runs)
            self.results_of(next(x for x in runs if f"gin.MODEL_DIR=\"'{start}'\"" in x))
        folder = Path(_value(flags, "gin.MODEL_DIR").strip("'"))
        assert not folder.exists(), f"{folder} is another command's"
        self._call("train", [*flags, *_small(" ".join(flags))])
        assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir())[-1] == 2
        return ""

    def _sweep(self, flags):
        # Of each axis of a printed grid, the first value.
        grid = [re.sub(r"(=[^=,]*=[^,]*),.*", r"\1", x) for x in flags if x[:6] == "--grid"]
        rest = [flag for flag in flags if flag[:6] != "--grid"]
        # Training would start a process for it, which imports TensorFlow.
        self._call("prepare", [x for x in (*rest, *_FINE_TUNED) if x.startswith("--gin")])
        sizes = (*_FINE_TUNED, "--seeds=1", *(grid or [_ONE_POINT]))
        self._call("tests.helpers.forked_sweep", [*rest, *sizes])
        return _value(flags, "output")

    def _evaluate(self, flags):
        self._call("evaluate", flags)
        return f"{_value(flags, 'checkpoint')}/evaluation"

    def _average(self, flags):
        self._call("average", [flag.replace("--last=10", "--last=2") for flag in flags])
        return ""

    def _translate(self, flags):
        self._call("translate", flags)
        return f"{_value(flags, 'checkpoint')}/evaluation"


def _value(flags, name, default=None):
    found = [flag.split("=", 1)[1] for flag in flags if flag.startswith(f"--{name}=")]
    return found[-1] if found else default


def _small(text):
    return [
        flag
        for flag in _TRAINED
        if all(re.search(system, text) for name, system in _OF.items() if f".{name}" in flag)
    ]


@functools.cache
def _words():
    return hf_folders.vocabulary()


def _write_pretraining_data(folder, languages):
    """Writes running text of each name in `languages`, and pairs of English, German and French."""
    rng, words, rows = random.Random(0), _words(), []

    def ids():
        text = " ".join("".join(rng.choices("abcdefghijklmnop", k=3)) for _ in range(3))
        return [0, *words.encode(text), 2]

    for split, count in (("train", 60), ("validation", 8)):
        for name in languages:
            writer = MonolingualWriter(folder, f"cc100_{name}", [name[:2]], words.size, split=split)
            for _ in range(count):
                writer.add(ids())
            rows.append(writer.close())
        for pair in (("de", "en"), ("en", "fr"), ("de", "fr")):
            name = f"bitext_{'_'.join(pair)}"
            writer = BitextWriter(folder, name, pair, words.size, split=split)
            for _ in range(count):
                writer.add([*ids(), *ids()[1:]])
            rows.append(writer.close())
    model = folder.parent / f"{folder.name}.model"
    model.write_bytes(words.model)
    write_dataset(folder, rows, model, words.size)


def workplace(folder, paper):
    """Writes the files of all benchmarks, data of pre-training and runs to start from.

    Args:
      folder: the folder.
      paper: the paper of the commands.
    """
    official_files.write(folder / "data" / "eval")
    _write_pretraining_data(folder / "prepared", ("en", "de", "fr"))
    for name in _DATA:
        os.symlink(folder / "prepared", folder / "data" / name)
    _write_pretraining_data(folder / "data" / "xylent_pubmed", ("en", "de", "fr", "en_pubmed"))
    tokenizer = folder / "bin" / "tokenizer.perl"
    tokenizer.parent.mkdir()
    tokenizer.write_text("#!/bin/sh\ncat\n")
    tokenizer.chmod(0o755)
    kinds = dict.fromkeys(("RUN", "LARGE", "CONTINUED"), OBJECTIVES[paper])
    kinds |= dict.fromkeys(("XLMR", "XLMR_LARGE"), "xlm")
    runs = {
        name: hf_folders.write_checkpoint(
            folder / "runs" / name.lower(), kind, record=_COSTS, Encoder__max_length=LENGTH
        )
        for name, kind in kinds.items()
    }
    variables = {name: str(run) for name, run in runs.items()}
    return Workplace(folder, {**variables, "DATA": str(folder / "data")})
