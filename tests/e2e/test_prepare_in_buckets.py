"""`prepare` on Beam, with sources and output in a bucket.

The workers are processes with another HOME, working folder and TMPDIR than the command. A
sitecustomize.py refuses and records every attempt of theirs to open a file of the command's folder.
"""

import lzma
import random
import time

import pytest
from helpers import commands, tiny

pytest.importorskip("gcsfs", reason="needs the extra gcs")
pytest.importorskip("gcp_storage_emulator", reason="needs the extra test")
pytest.importorskip("apache_beam", reason="needs the extra beam")
pytest.importorskip("seqio", reason="needs the extra data")
from helpers import buckets

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("faultless")]

PROCESSES = (
    "--runner=DirectRunner",
    "--runner_options=--direct_num_workers=2,--direct_running_mode=multi_processing",
)
# Documents and pairs of several parts, so that their order matters.
SMALL_PARTS = """
from xlme_jax.preparation import tokenizing
tokenizing.PART_TEXTS.update(monolingual=15, bitext=7)
"""
ISOLATED = """
import os, sys, tempfile
if "apache_beam.runners.worker.sdk_worker_main" in sys.orig_argv:
    home = tempfile.mkdtemp(dir=os.environ["WORKERS"])
    os.environ.update(HOME=home, TMPDIR=home, XDG_CACHE_HOME=home)
    os.chdir(home)
    tempfile.tempdir = None
    import small_parts  # Workers import `--modules` for tasks of SeqIO alone.
    hidden, refused = os.environ["HIDDEN"], open("refused", "w", buffering=1)

    def refuse(event, arguments):
        for path in arguments:
            if isinstance(path, (str, bytes, os.PathLike)):
                if os.path.abspath(os.fsdecode(path)).startswith(hidden):
                    refused.write(f"{event} {path}\\n")
                    raise PermissionError(13, "belongs to the command", path)

    sys.addaudithook(refuse)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Returns a folder of documents and pairs, and a vocabulary."""
    folder = tmp_path_factory.mktemp("sources")
    texts = []
    for language, word in (("en", "House"), ("sw", "Nyumba")):
        documents = [f"{word} {i} one.\n{word} {i} two." for i in range(40)]
        texts += documents
        (folder / "mono").mkdir(exist_ok=True)
        packed = lzma.compress("\n\n".join(documents).encode())
        (folder / "mono" / f"{language}.txt.xz").write_bytes(packed)
    (folder / "pairs").mkdir()
    lines = [f"The house {i}.\tNyumba {i}.\n" for i in range(30)]
    (folder / "pairs" / "x.en-sw.tsv").write_text("".join([*lines, "one side only\t\n"]))
    vocabulary = train_vocabulary([*texts, *lines], 300, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, folder / "vocabulary.model")
    return folder


@pytest.fixture(scope="module")
def bucket(tmp_path_factory, sources):
    """Returns a bucket that holds the sources."""
    bucket = buckets.Bucket(tmp_path_factory.mktemp("bucket"))
    for file in sources.rglob("*.*"):
        bucket.write(f"sources/{file.relative_to(sources)}", file.read_bytes())
    yield bucket
    bucket.stop()


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Returns a folder of Python modules for the command and its workers."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "sitecustomize.py").write_text(ISOLATED)
    (folder / "small_parts.py").write_text(SMALL_PARTS)
    return folder


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory, sources, modules):
    """Returns a data set that was prepared on a disk, without Beam."""
    folder = tmp_path_factory.mktemp("disk")
    python = f"{modules}:{tiny.REPOSITORY}"
    tiny.run([*flags(sources, folder, sources), "--workers=1"], variables={"PYTHONPATH": python})
    return folder


def flags(sources, output, local, validation="every:5"):
    return [
        *("-m", "xlme_jax.prepare", "--tasks=cc100,bitext", f"--cc100_dir={sources}/mono"),
        *(f"--bitext_dir={sources}/pairs", f"--vocabulary={local / 'vocabulary.model'}"),
        *("--modules=small_parts", f"--output={output}"),
        f"--validation={validation}",
    ]


@pytest.fixture
def prepare(bucket, modules, sources, tmp_path):
    """Returns a function that starts the command, with the output gs://bucket/NAME."""
    hidden, workers = tmp_path / "command", tmp_path / "workers"
    for folder in (hidden, workers):
        folder.mkdir()
    (hidden / "vocabulary.model").write_bytes((sources / "vocabulary.model").read_bytes())
    variables = {
        **bucket.variables,
        "PYTHONPATH": f"{modules}:{tiny.REPOSITORY}",
        **{"HOME": str(hidden), "TMPDIR": str(hidden), "XDG_CACHE_HOME": str(hidden)},
        **{"HIDDEN": str(hidden), "WORKERS": str(workers)},
    }

    def start(name, *more, sources="gs://bucket/sources", **options):
        given = [*flags(sources, f"gs://bucket/{name}", hidden, **options), *(more or PROCESSES)]
        log = tmp_path / f"log-{name}"
        return commands.Command(
            given, place(bucket, name), log, variables=variables, python=(), cwd=hidden
        )

    yield start
    refused = [file.read_text() for file in workers.glob("*/refused")]
    assert "".join(refused) == ""
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("gs:")]


def place(bucket, name):
    """Returns the folder with a bucket's objects below a name."""
    return bucket.folder / ".cloudstorage" / "bucket" / name


def check(bucket, name, on_disk):
    """Checks that a data set in the bucket has the files and the bytes of one on a disk."""
    found = PreparedDataset.load(place(bucket, name))
    found.verify()
    expected = PreparedDataset.load(on_disk)
    assert found.digest == expected.digest
    for one, other in zip(found.tasks, expected.tasks, strict=True):
        assert {**one.to_json(), "fingerprint": ""} == {**other.to_json(), "fingerprint": ""}
    assert files(place(bucket, name)) == files(on_disk)


def files(folder):
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if name != ".prepare.lock")


def test_workers_need_only_the_bucket(bucket, prepare, tmp_path, on_disk):
    prepare("whole").finish()
    assert len(list((tmp_path / "workers").glob("*/refused"))) == 2
    check(bucket, "whole", on_disk)
    assert len(PreparedDataset.load(on_disk).task("cc100_sw").shards) == 3
    said = prepare("whole").finish()
    assert "6 parts, 6 finished before" in said


def test_bundles_that_are_run_again_leave_nothing(bucket, prepare, on_disk):
    again = "--runner_options=--direct_runner_bundle_repeat=2"
    prepare("repeated", "--runner=DirectRunner", again).finish()
    check(bucket, "repeated", on_disk)


def test_a_killed_command_resumes_and_repairs(bucket, prepare, on_disk):
    dice = random.Random(0)
    for _ in range(4):
        command = prepare("killed")
        assert command.until_said("finished before"), command.said()
        time.sleep(dice.uniform(0, 14))
        command.kill()
    prepare("killed").finish()
    check(bucket, "killed", on_disk)
    shard = PreparedDataset.load(on_disk).task("cc100_en").shards[0].file
    content = (place(bucket, "killed") / shard).read_bytes()
    bucket.write(f"killed/{shard}", content[:-1])
    said = prepare("killed").finish()
    assert "2 tasks that share it are prepared again" in said
    assert "4 finished before" in said
    check(bucket, "killed", on_disk)


def test_refused_requests_and_resets_are_survived(bucket, prepare, on_disk):
    bucket.inject(busy=0.1, resets=0.05, seed=1)
    prepare("faults").finish()
    check(bucket, "faults", on_disk)


def test_damaged_sources_are_named_and_the_other_tasks_are_kept(bucket, prepare, sources):
    for file in sources.rglob("*.*"):
        content = file.read_bytes()
        half = len(content) // (2 if file.name == "sw.txt.xz" else 1)
        bucket.write(f"damaged/{file.relative_to(sources)}", content[:half])
    # Held-out text would be collected by the command, before there are workers.
    given = {"sources": "gs://bucket/damaged", "validation": ""}
    command = prepare("broken", **given)
    assert command.end() == 1
    line = command.said().splitlines()[-1]
    assert line.startswith("DataError: gs://bucket/damaged/mono/sw.txt.xz: truncated")
    whole = (sources / "mono" / "sw.txt.xz").read_bytes()
    bucket.write("damaged/mono/sw.txt.xz", whole)
    said = prepare("broken", **given).finish()
    assert "2 finished before" in said
