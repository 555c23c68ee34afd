"""Translates a file, or standard input, line by line.

    python -m xlme_jax.translate --checkpoint=runs/translate --target=fr < en.txt > fr.txt

The checkpoint is one of gin_configs/models/translate.gin. With --n_best above 1, each line of the
output has the number of the input's line, the score (log-probability over length^length_penalty)
and a translation, separated by tabs. --sample draws translations instead of searching them; --score
translates nothing and scores given translations: on each line, the sum of the log-probabilities of
its tokens (`</s>` included), and their mean.

    python -m xlme_jax.translate --checkpoint=runs/translate --target=fr --source=en.sgm \
        --references=fr.sgm --test_set=wmt14_en_fr --multi_bleu="tokenizer.perl -l fr"

--scripts=Cyrl writes no letter of another script, and --explain=FOLDER draws what the tokens of the
first 20 lines are made from.

With --references, BLEU and chrF are logged; --test_set adds them to the checkpoint's results.json.
BLEU has sacreBLEU's tokenizer for the script of --target; where there is none (Thai, Khmer, ...),
it counts characters.

    python -m xlme_jax.translate --checkpoint=runs/translate --target=fr --sample < en.txt
    python -m xlme_jax.translate --checkpoint=runs/translate --target=fr --score=fr.txt < en.txt
"""

import dataclasses
import logging
import sys
from collections.abc import Sequence

from absl import flags

from xlme_jax.configuration import command_line
from xlme_jax.data.text.lines import in_one_line, read_lines, split_lines
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.evaluation.translation_scores import (
    bleu,
    compare,
    multi_bleu,
    to_text,
    tokenized_by,
    tokenizer_of,
)
from xlme_jax.runs.translating import Translation, score, translate, write_results
from xlme_jax.storage.files import check_output, replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.training import host_memory, peers
from xlme_jax.training.mesh import MeshConfig
from xlme_jax.training.stopping import say
from xlme_jax.validation import shell

_log = logging.getLogger("xlme_jax.translate")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "MODEL_DIR of a run, or one of its checkpoints/STEP.", required=True
)
_TARGET = flags.DEFINE_string("target", None, "Language to translate into.", required=True)
_SOURCE = flags.DEFINE_string("source", "-", "File of lines, or WMT's .sgm; - for standard input.")
_OUTPUT = flags.DEFINE_string("output", "-", "File to write; - for standard output.")
_VOCABULARY = flags.DEFINE_string(
    "vocabulary", None, "SentencePiece model (default: the one in the run's DATA_DIR)."
)
_MESH = flags.DEFINE_list(
    "mesh",
    None,
    "Replicas, and devices that share the weights: data,fsdp,tensor, such as 1,8,1; one may be -1, "
    "the rest (default: the mesh of the run, with as many replicas as devices allow).",
)
_BEAMS = flags.DEFINE_integer("beams", 5, "Hypotheses that are followed at once; 1 is greedy.", 1)
_LENGTH_PENALTY = flags.DEFINE_float(
    "length_penalty", 1.0, "Above 1 favours long translations, below 1 short ones."
)
_EARLY_STOPPING = flags.DEFINE_enum(
    "early_stopping",
    "no",
    ["yes", "no", "never"],
    "When a line is done: as Hugging Face's option of this name (yes: True, no: False).",
)
_N_BEST = flags.DEFINE_integer("n_best", 1, "Translations of each line.", 1)
_SAMPLE = flags.DEFINE_bool("sample", False, "Draw translations; --n_best of each line.")
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "--sample: divides logits.")
_TOP_K = flags.DEFINE_integer("top_k", None, "--sample: among the k most probable tokens.", 1)
_TOP_P = flags.DEFINE_float(
    "top_p", 1.0, "--sample: among the fewest tokens that have this probability together."
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "--sample: a line's draws depend on it and the line's number alone."
)
_SCORE = flags.DEFINE_string("score", None, "File of translations to score instead of translating.")

_SCRIPTS = flags.DEFINE_list(
    "scripts",
    [],
    "ISO 15924 codes, such as Cyrl or Jpan: translations have letters of these scripts alone.",
)
_EXPLAIN = flags.DEFINE_string(
    "explain",
    None,
    "Folder for pictures and weights of the cross-attention (mean over heads and layers) of the "
    "best translations of the first 20 lines.",
)
_REFERENCES = flags.DEFINE_string(
    "references", None, "File of references; BLEU and chrF of the translations are logged."
)
_TEST_SET = flags.DEFINE_string(
    "test_set",
    None,
    "Name of the source in results.json, such as wmt14_en_de: scores of --references are written "
    "to MODEL_DIR/evaluation/STEP.",
)
_MULTI_BLEU = flags.DEFINE_string(
    "multi_bleu",
    None,
    "--references: command that tokenizes lines, such as 'tokenizer.perl -l de' of Moses, for "
    "BLEU of tokenized text without case, as multi-bleu.perl -lc.",
)


def main() -> None:
    """Reads the lines, translates them and writes the translations."""
    host_memory.keep_freed()
    peers.check_single()
    peers.check_devices(say)
    search, mesh = _search(), _mesh()
    references = None if _REFERENCES.value is None else read_lines(_REFERENCES.value)
    if _SOURCE.value == "-":
        name = "standard input"
        lines = split_lines(sys.stdin.buffer.read(), name)
    else:
        name = _SOURCE.value
        lines = read_lines(_SOURCE.value)
    if references is not None and len(references) != len(lines):
        raise ValueError(
            f"{name} has {len(lines):,} lines, {_REFERENCES.value} has {len(references):,}; line n "
            "of one must translate line n of the other"
        )
    if references is not None:
        _check_scores(references)
    if _OUTPUT.value != "-":
        check_output(as_path(_OUTPUT.value), "translations.txt")
    translations: list[list[Translation]] = []
    if _SCORE.value is not None:
        written = _scores(lines, name, _SCORE.value, mesh)
    else:
        translated = translate(
            _CHECKPOINT.value,
            lines,
            _TARGET.value,
            search,
            _N_BEST.value,
            _VOCABULARY.value,
            name=name,
            scripts=_SCRIPTS.value,
            mesh=mesh,
            explain=None if _EXPLAIN.value is None else as_path(_EXPLAIN.value),
        )
        translations = [
            [dataclasses.replace(each, text=in_one_line(each.text)) for each in best]
            for best in translated
        ]
        written = [line for of_line in translations for line in _written(of_line)]
    text = "".join(f"{line}\n" for line in written)
    if _OUTPUT.value == "-":
        sys.stdout.write(text)
    else:
        replace_file(as_path(_OUTPUT.value), text.encode())
    if references is not None:
        best = [of_line[0].text if of_line else "" for of_line in translations]
        _score_against(references, best, name)


def _check_scores(references: Sequence[str]) -> None:
    """Raises ValueError if translations could not be scored; runs before anything is translated."""
    bleu(tokenizer_of(_TARGET.value, references))
    if _MULTI_BLEU.value is not None:
        tokenized_by(_MULTI_BLEU.value, references)


def _score_against(references: Sequence[str], best: Sequence[str], name: str) -> None:
    """Logs the scores of translations; with --test_set, also writes them to results.json.

    Args:
      references: the reference translation of each line.
      best: the best translation of each line; "" for none.
      name: name of the source.
    """
    comparison = compare(references, {name: best}, language=_TARGET.value)
    _log.info("\n%s", to_text(comparison, [name]))
    scores = {metric.lower(): of_metric[0].score for metric, of_metric in comparison.scores.items()}
    signatures = [f"{metric}: {text}" for metric, text in comparison.signatures.items()]
    if _MULTI_BLEU.value is not None:
        scores["multi_bleu"] = multi_bleu(best, references, _MULTI_BLEU.value)
        signatures.append(f"multi_bleu: -lc, {_MULTI_BLEU.value}")
        _log.info("BLEU of tokenized text without case: %.2f", scores["multi_bleu"])
    if _TEST_SET.value is not None:
        command = shell.join(["python", "-m", "xlme_jax.translate", *sys.argv[1:]])
        about = _CHECKPOINT.value, _TEST_SET.value, _TARGET.value
        path = write_results(*about, scores, "; ".join(signatures), command)
        _log.info("Results: %s", path)


def _search() -> BeamSearch | Sampling:
    """Returns how to search or draw translations; ValueError for flags that exclude each other."""
    set_flags = {name for name in flags.FLAGS if flags.FLAGS[name].present}
    drawing = {"temperature", "top_k", "top_p", "seed"}
    searching = {"beams", "early_stopping"}
    translating = {"sample", "n_best", "references", "scripts", "explain"}
    if _SCORE.value is not None and (unused := set_flags & (drawing | searching | translating)):
        raise ValueError(f"--score translates nothing; leave out {_listed(unused)}")
    if _REFERENCES.value is None and (unused := set_flags & {"test_set", "multi_bleu"}):
        raise ValueError(f"{_listed(unused)}: only with --references")
    if _SAMPLE.value:
        if unused := set_flags & searching:
            raise ValueError(f"--sample does not search; leave out {_listed(unused)}")
        options = _TEMPERATURE.value, _TOP_K.value, _TOP_P.value, _SEED.value
        return Sampling(_N_BEST.value, *options, _LENGTH_PENALTY.value)
    if unused := set_flags & drawing:
        raise ValueError(f"{_listed(unused)}: only with --sample")
    stopping = {"yes": True, "no": False}.get(_EARLY_STOPPING.value, "never")
    return BeamSearch(_BEAMS.value, _LENGTH_PENALTY.value, stopping)  # type: ignore[arg-type]


def _mesh() -> MeshConfig | None:
    """Returns the mesh of --mesh, None without it; ValueError unless it has three sizes."""
    if _MESH.value is None:
        return None
    try:
        data, fsdp, tensor = map(int, _MESH.value)
    except ValueError as error:
        raise ValueError(
            f"--mesh={','.join(_MESH.value)}: give three sizes, data,fsdp,tensor, such as 1,8,1"
        ) from error
    return MeshConfig(data, fsdp, tensor)


def _listed(names: set[str]) -> str:
    """Returns the names as flags, sorted, for an error."""
    return ", ".join(f"--{name}" for name in sorted(names))


def _scores(lines: Sequence[str], name: str, path: str, mesh: MeshConfig | None) -> list[str]:
    """Returns the output of --score: a line with total and mean score for each translation.

    Args:
      lines: the source text.
      name: name of the source, for errors.
      path: file of the translations.
      mesh: how devices share weights and batches; None for the run's own.
    """
    scores = score(
        _CHECKPOINT.value,
        lines,
        read_lines(path),
        _TARGET.value,
        _VOCABULARY.value,
        names=(name, path),
        mesh=mesh,
    )
    return [f"{line_score.total:.6f}\t{line_score.mean:.6f}" for line_score in scores]


def _written(translations: Sequence[Translation]) -> list[str]:
    """Returns the lines of the output for the translations of one line of the input."""
    if _N_BEST.value == 1:
        return [translations[0].text if translations else ""]
    return [
        f"{translation.line}\t{translation.score:.6f}\t{translation.text}"
        for translation in translations
    ]


if __name__ == "__main__":
    command_line.run_app(main, reads_gin=False)
