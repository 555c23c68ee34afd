"""The table of text sources: a new source needs one entry."""

import subprocess
import sys
import textwrap

import pytest

from xlme_jax import api
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.text import held_out
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary, write_vocabulary
from xlme_jax.preparation import sources
from xlme_jax.preparation.file_sources import DocumentFolder
from xlme_jax.preparation.jobs import list_jobs
from xlme_jax.preparation.prepare_config import PrepareConfig

LINES = {"en": ["One house.", "Two houses.", "Red."], "sw": ["Nyumba moja.", "Nyumba mbili."]}

# A format of its own: `<lang>.lines`, one document per line, repeated --toy_copies times.
TOY_MODULE = """
import functools

from xlme_jax.preparation import sources
from xlme_jax.preparation.source_types import Flag, Shard, Source, TextTask, setting, task_name


def read(copies, file, report):
    for line in file.read_text().splitlines() * copies:
        report.read += 1
        yield (line,)


class Toy(Source):
    flags = (Flag("toy_copies", "Copies of each line.", "integer", 1, 1),)

    def find(self, config, held_out):
        copies = setting(config, "toy_copies")
        return [
            TextTask(
                "toy",
                task_name("toy", file.stem),
                (file.stem,),
                {"train": [Shard(str(file), functools.partial(read, copies, file), (file,))]},
            )
            for file in sorted(self.folder(config).glob("*.lines"))
        ]


TOY = Toy("toy", "toys", "toy files (<lang>.lines)")
"""


@pytest.fixture
def raw(tmp_path, monkeypatch):
    for language, lines in LINES.items():
        (tmp_path / f"{language}.lines").write_text("".join(f"{line}\n" for line in lines))
    texts = [line for lines in LINES.values() for line in lines]
    vocabulary = train_vocabulary(texts, 60, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, tmp_path / "v.model")
    (tmp_path / "toy_source.py").write_text(textwrap.dedent(TOY_MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def documents(output, name, split="train"):
    dataset = PreparedDataset.load(output)
    vocabulary = Vocabulary.load(dataset.vocabulary_path)
    texts, ids = [], []
    for token in (i for r in dataset.records(dataset.task(name, split)) for i in r.tolist()):
        if token == 2:
            texts.append(vocabulary.decode(ids))
            ids = []
        elif token != 0:
            ids.append(token)
    return texts


def test_a_new_entry_is_prepared_and_gives_vocabulary_text(raw, monkeypatch):
    import toy_source

    monkeypatch.setitem(sources.SOURCES, "toy", toy_source.TOY)
    config = PrepareConfig(
        str(raw / "out"),
        tasks=("toy",),
        vocabulary=str(raw / "v.model"),
        options={"toy_dir": str(raw), "toy_copies": 2},
        workers=1,
    )
    api.prepare(config)
    assert documents(config.output, "toy_en") == LINES["en"] * 2
    assert documents(config.output, "toy_sw") == LINES["sw"] * 2
    found = api.find_text(config)
    assert {text.language: list(text.read()) for text in found} == {
        language: lines * 2 for language, lines in LINES.items()
    }
    with pytest.raises(
        ValueError,
        match=r"applies only to the tasks cc100, bitext, text, table, table_pairs; .* toy",
    ):
        api.prepare(PrepareConfig("x", ("toy",), validation="every:5"))


@pytest.mark.slow
def test_a_new_entry_has_flags_and_a_variable(raw, monkeypatch):
    def command(module, *arguments):
        code = (
            "import runpy, toy_source; toy_source.sources.SOURCES['toy'] = toy_source.TOY; "
            f"runpy.run_module('xlme_jax.{module}', run_name='__main__', alter_sys=True)"
        )
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=raw, capture_output=True, text=True
        )

    said = " ".join(command("train_vocabulary", "--help").stdout.split())
    assert "toys" in said and "--toy_copies=1 Copies of each line." in said
    assert "--toy_dir=... Folder of toy files (<lang>.lines) (default: $TOY_DIR)." in said
    monkeypatch.setenv("TOY_DIR", str(raw))
    arguments = ["--tasks=toy", "--toy_copies=3", "--vocabulary=v.model", "--output=out"]
    done = command("prepare", *arguments)
    assert done.returncode == 0, done.stderr
    assert documents(raw / "out", "toy_en") == LINES["en"] * 3
    assert PreparedDataset.load(raw / "out").command.endswith(f"--output=out --toy_dir={raw}")


def test_another_folder_of_documents_is_one_line(raw, monkeypatch):
    (raw / "wiki").mkdir()
    (raw / "wiki" / "en.txt").write_text("\n\n".join(LINES["en"]))
    wiki = DocumentFolder("wiki", "Wikipedia", "Wikipedia files (<lang>.txt)")
    monkeypatch.setitem(sources.SOURCES, "wiki", wiki)
    config = PrepareConfig(
        str(raw / "out"),
        tasks=("wiki",),
        vocabulary=str(raw / "v.model"),
        validation="every:3",
        workers=1,
    )
    with pytest.raises(DataError, match=r"pass --wiki_dir=FOLDER or set WIKI_DIR"):
        api.prepare(config)
    monkeypatch.setenv("WIKI_DIR", str(raw / "wiki"))
    api.prepare(config)
    assert documents(config.output, "wiki_en") == LINES["en"][:2]
    assert documents(config.output, "wiki_en", "validation") == LINES["en"][2:]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"output": "data"}, "output is 'data'"),
        ({"cc100_dir": "/data/mono"}, "cc100_dir is '/data/mono'"),
        ({"cc100_dir": None}, "cc100_dir is None"),
        ({"validation": "folder:held"}, "validation is 'held'"),
        ({"tasks": ("xnli",)}, "eval_dir is None"),
        ({"tasks": ("tfds",)}, r"\$TFDS_DATA_DIR is None"),
    ],
)
def test_dataflow_needs_paths_in_buckets(change, name, monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    given = {"output": "gs://b/out", "tasks": ("cc100",), "cc100_dir": "gs://b/mono"}
    sources.check(PrepareConfig(**given, runner="DataflowRunner"))
    sources.check(PrepareConfig(**given | change, runner="DirectRunner"))
    with pytest.raises(ValueError, match=f"^prepare: {name}, which the workers of Data.* cannot"):
        sources.check(PrepareConfig(**given | change, runner="DataflowRunner"))


def test_a_task_that_is_nearly_a_source_is_named():
    config = PrepareConfig("x", ("bitex",))
    with pytest.raises(ValueError, match="unknown task 'bitex'; did you mean 'bitext'"):
        sources.check(config)


@pytest.fixture
def mixed(tmp_path):
    """Returns a folder with text, pairs, a table, and files that no source reads."""
    (tmp_path / "more").mkdir()
    for name, lines in LINES.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
        (tmp_path / f"news.en-sw.{name}").write_text(f"{lines[0]}\n")
        (tmp_path / "more" / f"more.en-sw.{name}").write_text(f"{lines[1]}\n")
    (tmp_path / "zu.jsonl").write_text('{"text": "Indlu."}\n')
    (tmp_path / "sw_clean.txt").write_text("notes")
    (tmp_path / "other").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "listing", [lambda config: list_jobs(config, "0" * 64, api.load_tasks), api.find_text]
)
def test_only_files_that_no_source_reads_are_warned_of(listing, mixed, caplog):
    named = {f"{name}_dir": str(mixed) for name in ("cc100", "bitext")}
    options = {"table_dir": str(mixed)}
    config = PrepareConfig(".", ("cc100", "bitext", "table"), options=options, **named)
    listing(config)
    said = [record.getMessage() for record in caplog.records if "not read" in record.getMessage()]
    assert len(said) == 2
    for line, names in zip(said, [{"other/", "sw_clean.txt"}, {"sw_clean.txt"}]):
        listed = line.partition("not read: ")[2].partition("; name")[0]
        assert {part.split(" ")[0] for part in listed.split("), ")} == names, line


def test_a_source_alone_warns_of_the_files_of_others(mixed, caplog):
    together = PrepareConfig(".", ("cc100", "bitext"), cc100_dir=str(mixed), bitext_dir=str(mixed))
    api.find_text(together)
    caplog.clear()
    api.find_text(PrepareConfig(".", ("cc100",), cc100_dir=str(mixed)))
    assert all(name in caplog.text for name in ("news.en-sw.en", "more/", "zu.jsonl"))


def test_after_an_error_no_file_is_called_unread(mixed, caplog):
    # Pairs would be listed after text, which has no file of one of the languages.
    named = {f"{name}_dir": str(mixed) for name in ("cc100", "bitext")}
    with pytest.raises(ValueError, match="fr"):
        api.find_text(PrepareConfig(".", ("cc100", "bitext"), languages=("en", "fr"), **named))
    assert "not read" not in caplog.text


def test_text_and_pairs_of_a_held_out_folder_are_not_warned_of(tmp_path, caplog):
    for name, lines in LINES.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    (tmp_path / "en-sw.tsv").write_text("One house.\tNyumba moja.\n")
    corpora = held_out.HeldOutText(f"folder:{tmp_path}").folder_corpora()
    assert len(corpora.documents) == 2 and len(corpora.sources) == 1
    assert "not read" not in caplog.text
