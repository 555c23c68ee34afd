import configparser
import importlib.util
import re
import subprocess
import sys

import pytest
from helpers import tiny

from xlme_jax import api
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary
from xlme_jax.validation.extras import EXTRAS


def test_each_extra_has_its_package():
    setup = configparser.ConfigParser()
    setup.read(tiny.REPOSITORY / "setup.cfg")
    packages = setup["options.extras_require"]
    for package, extra in EXTRAS.items():
        assert package.replace("_", "-") in packages[extra].replace("_", "-"), package


def test_seqio_is_missing_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqio", None)
    with pytest.raises(ValueError, match=r"SeqIO or TFDS needs seqio.*pip install 'xlme_jax\[data"):
        api.load_tasks()


TEXT = "--tasks=cc100 --cc100_dir=mono --output=prepared"
PREPARE = f"{TEXT} --vocabulary=text.model"
ONNX = "--checkpoint=run --output=out --sentence_transformers --layer=1 --onnx=float32"
QUICKSTART = "--gin_file=gin_configs/runs/quickstart.gin --gin.MODEL_DIR=run"
# (package that is missing, command, its flags): every one that an extra is for.
COMMANDS = [
    ("apache_beam", "prepare", f"{PREPARE} --runner=DirectRunner"),
    ("fasttext", "prepare", f"{PREPARE} --keep_identified=text.model"),
    ("flask", "demo", "--checkpoint=run"),
    ("gcsfs", "train", f"{QUICKSTART} --gin.DATA_DIR=gs://bucket/data"),
    ("huggingface_hub", "export", "--checkpoint=run --output=out --push=owner/name"),
    ("huggingface_hub", "prepare", f"{PREPARE} --tasks=table --hf_dataset=owner/name"),
    ("onnx", "export", ONNX),
    ("onnxruntime", "export", ONNX),
    ("onnxscript", "export", ONNX),
    ("torch", "export", ONNX),
    ("transformers", "export", ONNX),
    ("py3langid", "prepare", f"{TEXT} --inspect --identify"),
    ("py3langid", "prepare", f"{PREPARE} --keep_identified=py3langid"),
    ("pyarrow", "prepare", f"{PREPARE} --tasks=table --table_dir=tables"),
    ("pyarrow", "train_vocabulary", "--tasks=table --table_dir=tables --output=new.model"),
    ("rensa", "prepare", f"{PREPARE} --near_duplicates=.8"),
    ("sacrebleu", "report", "--translations=mono/en.txt,mono/en.txt"),
    ("safetensors", "export", "--checkpoint=run --output=out"),
    ("safetensors", "import_hf", "--source=mono --output=out"),
    ("seqio", "prepare", f"{PREPARE} --tasks=task_of_seqio"),
    ("seqio", "train_vocabulary", "--tasks=task_of_seqio --output=new.model"),
    ("tensorflow", "prepare", f"{PREPARE} --tasks=task_of_seqio"),
    ("tensorflow_datasets", "prepare", f"{PREPARE} --tasks=task_of_seqio"),
    ("tensorflow_text", "prepare", f"{PREPARE} --tasks=task_of_seqio"),
    ("wandb", "train", f"{QUICKSTART} --gin.Train.trackers=(@WandB(),)"),
]
WITHOUT = """
import runpy, sys
package, command = sys.argv[1:3]
sys.modules[package] = None
sys.argv = sys.argv[2:]
runpy.run_module(f"xlme_jax.{command}", run_name="__main__", alter_sys=True)
"""


def test_every_package_has_a_command_or_a_class():
    packages = {package for package, *_ in COMMANDS}
    assert packages | {"mteb"} == set(EXTRAS)  # MtebEncoder: tests/huggingface/test_mteb_encoder.py


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with text, a table that is none, and a vocabulary."""
    path = tmp_path_factory.mktemp("extras")
    (path / "mono").mkdir()
    (path / "mono" / "en.txt").write_text("a house\n" * 40)
    (path / "tables").mkdir()
    (path / "tables" / "en.parquet").write_bytes(b"PAR1 PAR1")
    vocabulary = train_vocabulary(["a house"] * 9, 20, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, path / "text.model")
    return path


@pytest.mark.parametrize(
    ("package", "command", "arguments"), tiny.slow_except(COMMANDS[:1], COMMANDS)
)
def test_a_command_without_its_package_ends_in_one_line(package, command, arguments, folder):
    """The line says what needs which package, and how to install it."""
    process = tiny.start(
        ["-c", WITHOUT, package, command, *arguments.split()],
        modules=("xlme_jax.api",),
        cwd=folder,
        stderr=subprocess.PIPE,
    )
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    install = rf"which is not installed: pip install 'xlme_jax\[{EXTRAS[package]}\]'"
    named = re.search(rf" needs (\w+), {install}", line)
    assert named, line
    # Another package of the extra may be missing here, too.
    assert named[1] == package or importlib.util.find_spec(named[1]) is None
