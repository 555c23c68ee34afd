"""Commands with bad configurations, files and paths exit with code 1 and one line of error."""

import errno
import lzma
import os
import sys

import in_workers
import nasty
import pytest
from helpers import tiny

from xlme_jax.configuration import command_line
from xlme_jax.data.text.reading import read_documents
from xlme_jax.data.vocabulary import Vocabulary, write_vocabulary
from xlme_jax.preparation import workers


def command(module, *arguments):
    """Runs a command that must fail; returns the last line of its output."""
    (result,) = tiny.run_each(module, arguments)
    return last_error(result)


def last_error(result):
    """Returns the last error of a command that must have failed without a traceback."""
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    return [line for line in result.stderr.splitlines() if "Error: " in line][-1]


def test_train_with_a_file_that_includes_itself_and_an_unknown_flag(tmp_path):
    path = tmp_path / "x.gin"
    path.write_text(f"include '{path}'\n")
    mistakes = {
        f"ConfigError: {path}: includes itself; remove one `include`.": f"--gin_file={path}",
        "UnrecognizedFlagError: Unknown flag --gin_fiel. Did you mean --gin_f": "--gin_fiel=x.gin",
    }
    results = tiny.run_each("train", *([flag] for flag in mistakes.values()))
    for message, done in zip(mistakes, results, strict=True):
        assert last_error(done).startswith(message)


def test_train_vocabulary_with_a_truncated_file(tmp_path):
    data = "".join(f"line {i * i}\n" for i in range(20_000)).encode()
    path = tmp_path / "en.txt.xz"
    path.write_bytes(lzma.compress(data)[:-100])
    flags = ("--tasks=cc100", f"--cc100_dir={tmp_path}", f"--output={tmp_path / 'v.model'}")
    said = command("train_vocabulary", "--size=300", *flags)
    assert said.startswith(f"DataError: {path}: truncated or damaged: ")
    assert said.endswith("(`xz -t` checks it)")
    assert not (tmp_path / "v.model").exists()


def test_train_vocabulary_into_a_folder(tmp_path):
    (tmp_path / "en.txt").write_text("Text.\n")
    flags = ("--tasks=cc100", f"--cc100_dir={tmp_path}", f"--output={tmp_path}/en.txt/v.model")
    said = command("train_vocabulary", *flags)
    assert said.startswith(f"FileExistsError: {tmp_path}/en.txt: File exists; check the path")
    said = command("train_vocabulary", *flags[:-1], f"--output={tmp_path}")
    assert said.startswith(f"ValueError: --output={tmp_path} is a folder; give a file in it")


@pytest.fixture
def said(monkeypatch, capsys):
    """Runs a function as the main function of a failing command; returns its output."""
    monkeypatch.setattr(command_line, "define_flags", lambda: None)
    monkeypatch.setattr(command_line.app, "run", lambda main, **_: sys.exit(main(["command"])))

    def run(body):
        with pytest.raises(SystemExit) as end:
            command_line.run_app(lambda: body())
        assert end.value.code == 1
        *progress, line, rest = capsys.readouterr().err.split("\n")
        assert not rest and not any(word in str(progress) for word in ("Error", "Traceback"))
        return line

    return run


def test_bad_paths_are_named(tmp_path, said):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    below = tmp_path / "file" / "v.model"
    trained = Vocabulary(_model())
    assert f"{below.parent}: File exists" in said(lambda: write_vocabulary(trained, below))
    assert f"{tmp_path}/folder: Is a directory" in said(lambda: (tmp_path / "folder").read_bytes())
    assert f"{below}: Not a directory" in said(lambda: below.read_text())
    assert f"{tmp_path}/absent: No such file" in said(lambda: (tmp_path / "absent").read_text())
    assert "File name too long" in said(lambda: (tmp_path / ("x" * 5000)).write_text(""))
    if os.geteuid():
        (tmp_path / "folder").chmod(0o500)
        assert "folder/x: Permission denied" in said(lambda: (tmp_path / "folder" / "x").touch())


def test_full_disk_is_reported(said):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    assert said(full).startswith("OSError: No space left on device; check")


def test_other_errors_of_the_system_are_bugs(said):
    def bug():
        raise OSError(errno.EINVAL, "Invalid argument")

    with pytest.raises(OSError, match="Invalid argument"):
        said(bug)


def test_the_traceback_can_be_had(said, monkeypatch, tmp_path):
    monkeypatch.setenv("XLME_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        said(lambda: (tmp_path / "absent").read_text())


def test_a_name_cannot_steer_the_terminal(tmp_path, said):
    path = tmp_path / "\x1b[31m\x07\u202een.txt"
    path.write_bytes(b"")
    printed = said(lambda: list(read_documents(path)))
    assert printed.startswith(f"DataError: {tmp_path}/\\x1b[31m\\x07\\u202een.txt: no text")


def test_errors_of_workers_are_reported(tmp_path, said):
    paths = []
    for name, data in (("en.txt", b"text\n"), ("sw.txt.gz", nasty.COMPRESS["gz"](b"text\n")[:-4])):
        (tmp_path / name).write_bytes(data)
        paths.append(tmp_path / name)
    printed = said(lambda: list(workers.run(in_workers.read, paths, 2, in_workers.nothing)))
    assert printed.startswith(f"DataError: {tmp_path}/sw.txt.gz: truncated or damaged")


def _model():
    import io

    import sentencepiece

    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a small text"] * 9),
        model_writer=output,
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return output.getvalue()
