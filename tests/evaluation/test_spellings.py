"""Text of one language under several codes: one language wherever a language counts."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.tiny import slow_except
from test_multiway import write_ntrex
from test_tatoeba import Subject, parameters

from tests.data.test_languages import SPELLINGS
from tests.data.test_pipeline import complete, fill, iterate
from xlme_jax.data.batches.pair_layouts import Translations
from xlme_jax.data.batches.pair_sampling import count_matrix, task_weights
from xlme_jax.data.batches.streams import PairStream, held_out_tasks, stream_tasks
from xlme_jax.data.language_families import by_family
from xlme_jax.data.languages import canonical, spelled_as
from xlme_jax.data.prepared.writer import BitextWriter
from xlme_jax.evaluation import encoding
from xlme_jax.evaluation.multiway import Ntrex
from xlme_jax.evaluation.retrieval import RetrievalProbe
from xlme_jax.evaluation.training_text import EncodedSample, TrainingText
from xlme_jax.preparation.prepare_config import PrepareConfig

LENGTH = 32


@dataclasses.dataclass(frozen=True)
class Family:
    """Pairs of English and a language, a task for each of its spellings, and of English and French.

    Every other task has English first. The first token of a text in the language is 100 or more.
    """

    tag: str
    spellings: tuple[str, ...]
    data: object

    def stream(self, **options):
        return PairStream("b", rows=8, length=LENGTH, **options)


@pytest.fixture(
    scope="module", params=slow_except({"sw"}, ("sw", "zh", "zh-Hant", "no", "he", "ku"))
)
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    spellings = tuple(SPELLINGS[request.param].split())
    rows = []
    for split in ("train", "validation"):
        writer = BitextWriter(folder, "pairs_fr", ("en", "fr"), 300, split=split)
        rows.append(fill(writer, [[0, 200 + n, 2, 220 + n, 2] for n in range(5)]))
        for number, code in enumerate(spellings):
            sides = [("en", 10), (code, 100)][:: 1 if number % 2 else -1]
            writer = BitextWriter(
                folder, f"pairs_{number}", [language for language, _ in sides], 300, split=split
            )
            firsts = [first + 5 * number for _, first in sides]
            texts = [[0, firsts[0] + n, 2, firsts[1] + n, 2] for n in range(3 + number % 3)]
            rows.append(fill(writer, texts))
    return Family(request.param, spellings, complete(folder, rows))


def test_sampling(family):
    tasks = stream_tasks(family.data, family.stream())
    by_code = {code: task for task in tasks for code in task.languages}
    for code, other in itertools.combinations(family.spellings, 2):
        pairs = [(by_code[spelling].tags, 1) for spelling in (code, other)]
        assert count_matrix(map(sorted_pair, pairs))[0] == tuple(sorted(("en", family.tag)))
    renamed = [
        dataclasses.replace(task, languages=tuple(map(canonical, task.languages))) for task in tasks
    ]
    for sampling in ("temperature", "sinkhorn", "linear_programme"):
        stream = family.stream(sampling=sampling, alpha=1.0)
        np.testing.assert_array_equal(task_weights(tasks, stream), task_weights(renamed, stream))
    of_language = [task for task in tasks if task.name != "pairs_fr"]
    for code in family.spellings:
        assert list(stream_tasks(family.data, family.stream(pivot=code))) == of_language
        directed = family.stream(layout=Translations(("en", code), (f"en-{code}",)))
        assert list(stream_tasks(family.data, directed)) == of_language
        batch = next(iterate(family.data, [directed]))["b"]
        is_first = (batch["tokens"] != 0) & (batch["positions"] > 0) & (batch["tokens"] > 2)
        is_english = batch["tokens"][is_first] < 100
        np.testing.assert_array_equal(batch["languages"][is_first], np.where(is_english, 1, 2))


def sorted_pair(pair):
    return tuple(sorted(pair[0])), pair[1]


def test_a_language_is_listed_once(family):
    for code, other in itertools.combinations(family.spellings, 2):
        with pytest.raises(ValueError, match="names a language more than once"):
            Translations(("en", code, other))
        config = PrepareConfig("-", ("cc100",), languages=("en", code, other))
        assert config.languages == ("en", family.tag)


def test_held_out_text(family):
    for code in family.spellings:
        tasks = held_out_tasks(family.data, family.stream(pivot=code))
        assert len(tasks) == len(family.spellings)
        assert {canonical(code) for task in tasks for code in task.languages} == {"en", family.tag}
    candidates = RetrievalProbe().candidates(family.data)
    languages = {frozenset(translations.languages) for translations in candidates.values()}
    assert languages == {frozenset(("en", family.tag)), frozenset(("en", "fr"))}


def test_readouts(family):
    text = TrainingText(family.data)
    assert text.languages == {"en", "fr", family.tag}
    texts, pairs = text.texts(family.tag, 99, LENGTH), text.pairs(family.tag, "en", 99, LENGTH)
    assert {task.examples for task in stream_tasks(family.data, family.stream())} == {3, 4, 5}
    assert len(texts) == len(pairs) == sum(3 + n % 3 for n in range(len(family.spellings)))
    assert all(source[1] >= 100 > target[1] for source, target in pairs)
    table = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    for code in family.spellings:
        assert text.texts(code, 99, LENGTH) == texts
        assert text.pairs(code, "en", 99, LENGTH) == pairs
    sample = EncodedSample(
        text, [(code, "en") for code in family.spellings], LENGTH, encoding.batches
    )
    fitted = sample.fit(
        lambda params, rows: params[rows["tokens"][:, 1]][:, None], jnp.array(table)
    )
    assert fitted.means.keys() == {"en", family.tag}
    assert fitted.rotations.keys() == {(family.tag, "en")}
    for code, other in itertools.product(family.spellings, repeat=2):
        centres = [fitted.centres((spelling, "en"))[0] for spelling in (code, other)]
        np.testing.assert_array_equal(*centres)


@pytest.mark.parametrize("tag", SPELLINGS)
def test_means_group_and_choose_languages_in_every_spelling(tag):
    spellings = SPELLINGS[tag].split()
    for code, other in itertools.product(spellings, repeat=2):
        assert spelled_as([code], ["fr" if tag != "fr" else "de", other]) == (other,)
        assert len(by_family([code, other])) == 1
    assert len(spelled_as(spellings, [tag])) == 1


@pytest.mark.slow
def test_a_mean_has_a_language_once(tmp_path):
    english = ["".join(chr(97 + (n * k) % 26) for k in range(3, 20)) for n in range(1, 25, 2)]
    values = set()
    for number, code in enumerate(("sw", "swa", "swh_Latn", "swh-Latn", "sw_KE")):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_ntrex(folder, {"eng": english, code: [text[::-1] for text in english]})
        measure = Ntrex(str(folder), languages=tuple(SPELLINGS["sw"].split()))
        results = measure.build(Subject())(parameters()).results
        assert {result.language for result in results} == {"sw", "mean", "mean-Niger-Congo"}
        values.add(tuple(result.value for result in results))
    assert len(values) == 1
