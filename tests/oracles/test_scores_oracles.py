"""Metrics and answer scores equal those of scikit-learn, SciPy, seqeval, SQuAD and MLQA.

The reference of SQuAD 2.0 is `squad_metrics` of transformers before version 5, which has the
official script's rules. MLQA's is a transcription of the rules of `mlqa_evaluation_v1.py` in
github.com/facebookresearch/MLQA in another form than ours: by characters instead of patterns.

`reference_scores.json` has results of seqeval 1.2.2 and transformers 4.57.6 for environments
without them. It was written by

    python -m tests.oracles.test_scores_oracles
"""

import json
import pathlib
import random
import types
import unicodedata
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.data.benchmarks.examples import Features
from xlme_jax.evaluation import answer_spans, scores

TABLE = pathlib.Path(__file__).with_name("reference_scores.json")
listed = str.split
EXACTLY = {"rel": 1e-12, "abs": 1e-12}
examples = settings(max_examples=50, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def sklearn():
    return pytest.importorskip("sklearn.metrics", reason="compares with scikit-learn")


@pytest.fixture(scope="module")
def scipy():
    return pytest.importorskip("scipy.stats", reason="compares with SciPy")


@pytest.fixture(scope="module")
def seqeval():
    return pytest.importorskip("seqeval.metrics", reason="compares with seqeval")


@pytest.fixture(scope="module")
def squad():
    return pytest.importorskip(
        "transformers.data.metrics.squad_metrics", reason="compares with transformers<5"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("decode")


@pytest.fixture(scope="module")
def table():
    return json.loads(TABLE.read_text("utf-8"))


@pytest.fixture(autouse=True)
def quiet():
    """Silences warnings of the references on undefined scores and unknown tags."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# Classification and regression.


def pairs(values, least=1):
    return st.lists(st.tuples(values, values), min_size=least, max_size=40).map(
        lambda rows: tuple(map(list, zip(*rows)))
    )


@examples
@given(pairs(st.integers(0, 1)))
def test_two_classes(sklearn, sides):
    gold, predicted = sides
    assert scores.accuracy(gold, predicted) == pytest.approx(
        sklearn.accuracy_score(gold, predicted), **EXACTLY
    )
    for positive in (0, 1):
        # With the labels named: otherwise a class that stands nowhere is an error there.
        expected = sklearn.f1_score(gold, predicted, labels=[positive], average="micro")
        assert scores.f1(gold, predicted, positive) == pytest.approx(expected, **EXACTLY)
    assert scores.f1(gold, predicted) == pytest.approx(sklearn.f1_score(gold, predicted), **EXACTLY)


@examples
@given(st.integers(1, 5).flatmap(lambda classes: pairs(st.integers(0, classes))))
def test_micro_and_macro_f1(sklearn, sides):
    expected = sklearn.f1_score(*sides, labels=range(1, 6), average="micro", zero_division=0)
    assert scores.micro_f1(*sides) == pytest.approx(expected, **EXACTLY)
    expected = sklearn.f1_score(*sides, average="macro", zero_division=0)
    assert scores.macro_f1(*sides) == pytest.approx(expected, **EXACTLY)


@examples
@given(st.integers(1, 4).flatmap(lambda classes: pairs(st.integers(0, classes))))
def test_matthews(sklearn, sides):
    expected = sklearn.matthews_corrcoef(*sides)
    assert scores.matthews(*sides) == pytest.approx(expected, rel=1e-9, abs=1e-12)


numbers = st.one_of(
    st.integers(0, 5).map(float),  # Many ties, and often all the same.
    st.floats(-1e6, 1e6, allow_subnormal=False),
)


def _or_0(expected, sides):
    """Returns 0 for constant predictions, of which SciPy has no correlation."""
    gold, predicted = sides
    is_constant = len(set(predicted)) == 1 < len(set(gold))
    return 0 if is_constant and not np.isnan([*gold, *predicted]).any() else expected


@examples
@given(pairs(numbers, least=2))
def test_pearson(scipy, sides):
    expected = _or_0(scipy.pearsonr(*sides).statistic, sides)
    # Where all values nearly agree the rounding of their mean decides, in SciPy too.
    spread = min(np.ptp(side) / max(np.abs(side).max(), 1e-300) for side in sides)
    tolerance = 1e-9 if spread > 1e-6 else 2
    assert scores.pearson(*sides) == pytest.approx(expected, abs=tolerance, nan_ok=True)


@examples
@given(pairs(st.one_of(numbers, st.just(float("nan")), st.just(float("inf"))), least=2))
def test_spearman(scipy, sides):
    expected = _or_0(scipy.spearmanr(*sides).statistic, sides)
    assert scores.spearman(*sides) == pytest.approx(expected, abs=1e-9, nan_ok=True)


# Tagging.

NAMED = ["O", *(f"{place}-{name}" for place in "BI" for name in ("PER", "ORG", "LOC"))]
UPOS = listed("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X _")
ODD = [*NAMED, *listed("B I E S O X . - _ -A B-- B-A-B E-PER S-PER .-PER O-PER L-PER U-PER b-PER")]


def sentences(tags):
    """Returns gold and mostly correct predicted tags of some sentences."""
    words = st.tuples(st.sampled_from(tags), st.none() | st.sampled_from(tags)).map(
        lambda pair: (pair[0], pair[1] or pair[0])
    )
    texts = st.lists(st.lists(words, max_size=12), min_size=1, max_size=6)
    return texts.map(
        lambda rows: tuple([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    )


@pytest.mark.parametrize("tags", [NAMED, UPOS, ODD], ids=["panx", "udpos", "odd"])
def test_chunk_f1(seqeval, tags):
    @examples
    @given(sentences(tags))
    def compare(sides):
        expected = seqeval.f1_score(*sides)
        assert scores.chunk_f1(*sides) == pytest.approx(expected, **EXACTLY)

    compare()


@examples
@given(sentences(UPOS))
def test_token_accuracy(seqeval, sides):
    if any(sides[0]):
        expected = seqeval.accuracy_score(*sides)
        assert scores.token_accuracy(*sides) == pytest.approx(expected, **EXACTLY)


def test_tags_as_seqeval_gave(table):
    assert len(table["tags"]) >= 50
    for row in table["tags"]:
        gold, predicted = row["gold"], row["predicted"]
        assert scores.chunk_f1(gold, predicted) == pytest.approx(row["chunk_f1"], **EXACTLY)
        expected = row["token_accuracy"]
        assert scores.token_accuracy(gold, predicted) == pytest.approx(expected, **EXACTLY)


# Answers.

PIECES = [
    *("the", "The", "a", "an", "AN", "theatre", "cat", "Cat", "dog's", "1,000", "$5", "U.S.", "_"),
    *("el", "los", "Una", "die", "einer", "Straße", "STRASSE", "của", "cu\u0309a", "những", "İ"),
    *("ال", "الكتاب", "كتاب", "والكتاب", "، ", "؟", "כתב", "״", "\u200f", "\u200e", "\u200b"),
    *("भारत", "भारत।", "कि", "北京", "北", "京大学", "《", "》", "。", "，", "\u9fa6", "\u3007"),
    *("e\u0301", "é", "\u0301", "ﬁ", "Ａ", "٣", "\u00a0", "\u3000", "\u2028", "\t", "\n", "\x1f"),
    *("-", "–", "'", "’", "“", "…", "+", "€", "|", "😀", "👩\u200d🔬", "\U00010a50", "a_b", "the_"),
]
texts = st.one_of(
    st.lists(st.sampled_from([*PIECES, " ", " "]), max_size=8).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=6).map(" ".join),
    st.text(max_size=12),
)
languages = st.sampled_from(["en", "es", "vi", "de", "ar", "hi", "zh"])


@examples
@given(texts, texts, st.lists(texts, max_size=3))
def test_squad2(squad, predicted, one, others):
    assert answer_spans.SQUAD.normalise(one) == squad.normalize_answer(one)
    for gold in ([one], [one, *others], others):
        example = types.SimpleNamespace(qas_id=0, answers=[{"text": text} for text in gold])
        exact, f1 = squad.get_raw_scores([example], {0: predicted})
        ours = answer_spans.compare(predicted, gold, answer_spans.SQUAD2)
        assert ours == (exact[0], pytest.approx(f1[0], **EXACTLY))


@examples
@given(texts, texts)
def test_squad1_differs_from_squad2_where_nothing_is_left(squad, predicted, gold):
    exact, f1 = answer_spans.compare(predicted, [gold], answer_spans.SQUAD)
    assert exact == squad.compute_exact(gold, predicted)
    # The script of SQuAD 1.1 divides the words in common, and gives 0 if there is none.
    empty = not (squad.get_tokens(gold) and squad.get_tokens(predicted))
    expected = 0 if empty else squad.compute_f1(gold, predicted)
    assert f1 == pytest.approx(expected, **EXACTLY)


def test_answers_as_transformers_gave(table):
    assert len(table["answers"]) >= 100
    for row in table["answers"]:
        ours = answer_spans.compare(row["predicted"], row["gold"], answer_spans.SQUAD2)
        assert ours == (row["exact_match"], pytest.approx(row["f1"], **EXACTLY))


ARTICLES = {
    "en": {"a", "an", "the"},
    "es": {"un", "una", "unos", "unas", "el", "la", "los", "las"},
    "vi": {"của", "là", "cái", "chiếc", "những"},
    "de": set(listed("ein eine einen einem eines einer der die das den dem des")),
}


def mlqa_words(text, language):
    """Returns the words of an answer that MLQA compares, by characters."""
    symbols = "$+<=>^`|~"  # Of ASCII; Python's string.punctuation has them, category P has not.
    kept = ""
    for character in text.lower():
        if not unicodedata.category(character).startswith("P") and character not in symbols:
            kept += character
    # Words as \b sees them: runs of letters and digits of any script, without combining marks.
    # (The low line is of category P.)
    runs = []
    for character in kept:
        kind = character.isalnum()
        if runs and runs[-1][0] == kind:
            runs[-1][1] += character
        else:
            runs.append([kind, character])
    rest = "".join(" " if run in ARTICLES.get(language, ()) else run for _, run in runs)
    if language == "ar":
        while "ال" in rest:
            at = rest.index("ال")
            rest = rest[:at] + " " + rest[at + 2 :]
    words = [""]
    for character in rest:
        if language == "zh" and "\u4e00" <= character <= "\u9fa5":
            words += [character, ""]
        elif character.isspace():
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


def mlqa_scores(predicted, gold, language):
    ours, theirs = mlqa_words(predicted, language), mlqa_words(gold, language)
    shared, left = 0, list(theirs)
    for word in ours:
        if word in left:
            left.remove(word)
            shared += 1
    f1 = 2 * shared / (len(ours) + len(theirs)) if shared else 0
    return ours == theirs, f1


@settings(examples)
@given(languages, texts, st.lists(texts, min_size=1, max_size=3))
def test_mlqa(language, predicted, gold):
    rules = answer_spans.rules_of("mlqa", language)
    assert rules.normalise(predicted) == " ".join(mlqa_words(predicted, language))
    each = [mlqa_scores(predicted, text, language) for text in gold]
    exact, f1 = answer_spans.compare(predicted, gold, rules)
    assert exact == max(one for one, _ in each)
    assert f1 == pytest.approx(max(one for _, one in each), **EXACTLY)


@pytest.mark.parametrize("language", ARTICLES)
def test_mlqa_has_all_articles(language):
    for word in ARTICLES[language]:
        assert answer_spans.rules_of("mlqa", language).normalise(f"{word.upper()} x {word}x") == (
            f"x {word}x"
        )


# Thresholds and decoding.

questions = st.lists(
    st.tuples(
        st.sampled_from(["", "cat", "a cat", "black cat", "the"]),
        st.lists(st.sampled_from(["cat", "the", "black cat", "dog"]), max_size=2),
        st.one_of(st.integers(-3, 3).map(float), st.floats(-20, 20)),
    ),
    min_size=1,
    max_size=12,
)


def official_thresholds(squad, rows):
    """Returns {metric: [threshold, share]} of the official script."""
    cases = [
        types.SimpleNamespace(qas_id=index, answers=[{"text": text} for text in gold])
        for index, (_, gold, _) in enumerate(rows)
    ]
    predicted = {index: text for index, (text, _, _) in enumerate(rows)}
    differences = {index: difference for index, (_, _, difference) in enumerate(rows)}
    has_answer = {case.qas_id: bool(case.answers) for case in cases}
    found = {}
    squad.find_all_best_thresh(
        found, predicted, *squad.get_raw_scores(cases, predicted), differences, has_answer
    )
    return {
        name: [found[f"best_{key}_thresh"], found[f"best_{key}"] / 100]
        for name, key in (("exact_match", "exact"), ("f1", "f1"))
    }


def check_thresholds(rows, expected):
    gold = [one for _, one, _ in rows]
    predictions = [
        answer_spans.PredictedAnswer(text, text, 0.0, difference, ())
        for text, _, difference in rows
    ]
    nothing = sum(not one for one in gold) / len(gold)
    for metric, (threshold, share) in expected.items():
        ours = answer_spans.best_null_threshold(gold, predictions, metric)
        assert ours[1] == pytest.approx(share, **EXACTLY)
        if share == pytest.approx(
            nothing
        ):  # Best is to answer nothing, which the official 0 need not do.
            assert ours[0] < min(difference for _, _, difference in rows)
            assert ours[0] == threshold or threshold >= min(row[2] for row in rows)
        else:
            assert ours[0] == threshold


@examples
@given(questions)
def test_thresholds(squad, rows):
    check_thresholds(rows, official_thresholds(squad, rows))


def test_thresholds_as_transformers_gave(table):
    assert len(table["thresholds"]) >= 20
    for row in table["thresholds"]:
        check_thresholds(row["questions"], row["best"])


class Words:
    """A tokenizer for `compute_predictions_logits` with one token per word."""

    @staticmethod
    def convert_tokens_to_string(tokens):
        return " ".join(tokens)


@st.composite
def question_windows(draw):
    words = draw(st.lists(st.sampled_from(listed("ab cd ef gh ij kl")), min_size=1, max_size=8))
    logit = st.integers(-6, 6).map(lambda value: value / 2)
    bounds = st.integers(0, len(words) - 1)
    parts = draw(st.lists(st.tuples(bounds, bounds).map(sorted), min_size=1, max_size=3))
    rows = []
    for begin, end in parts:
        length = 5 + end - begin
        logits = draw(st.lists(st.tuples(logit, logit), min_size=length, max_size=length))
        rows.append((begin, end, np.array(logits, np.float32)))
    return words, rows


@examples
@given(
    question_windows(),
    st.sampled_from([1, 2, 3, 30]),
    st.sampled_from([1, 2, 3, 20]),
    st.sampled_from([None, -1.0, 0.0, 1.0]),
)
def test_decode(squad, folder, case, max_answer_length, n_best, null_threshold):
    """Rows are `<s> question </s> context </s>`.

    The reference counts tokens outside the context among the best, ours does not; their logits are
    low where `n_best` matters.
    """
    words, rows = case
    context = " ".join(words)
    begins = np.cumsum([0, *(len(word) + 1 for word in words)])
    windows, features, results = [], [], []
    for index, (begin, end, logits) in enumerate(rows):
        if n_best < 20:
            logits[[0, 1, 2, -1]] = np.float32([-50, -60, -60, -60])[:, None]
        offsets = np.full((len(logits), 2), -1, np.int32)
        places = range(begin, end + 1)
        offsets[3:-1] = [(begins[place], begins[place] + len(words[place])) for place in places]
        empty = np.zeros(0, np.int32)
        windows.append((Features(np.arange(len(logits)), empty, 0, offsets=offsets), logits))
        inside = {3 + row: place for row, place in enumerate(places)}
        features.append(
            types.SimpleNamespace(
                example_index=0,
                unique_id=index,
                tokens=["<s>", "q", "</s>", *words[begin : end + 1], "</s>"],
                token_to_orig_map=inside,
                token_is_max_context=dict.fromkeys(inside, True),
            )
        )
        starts, ends = logits.T.tolist()
        results.append(types.SimpleNamespace(unique_id=index, start_logits=starts, end_logits=ends))
    text, difference, candidates = reference_decode(
        squad, folder, words, features, results, n_best, max_answer_length, null_threshold
    )
    found = answer_spans.decode(
        windows,
        context,
        n_best=n_best,
        max_answer_length=max_answer_length,
        null_threshold=null_threshold,
    )
    if candidates[0][0] == "empty":  # It must have an answer; ours has none.
        assert found.best == "" and found.score == 0
        assert [one.text for one in found.n_best] == [one[0] for one in candidates[1:]]
        return
    assert found.text == text
    assert [(one.text, one.score) for one in found.n_best] == [one[:2] for one in candidates]
    shares = [one.probability for one in found.n_best]
    np.testing.assert_allclose(shares, [one[2] for one in candidates], rtol=1e-12)
    if null_threshold is not None:
        assert found.null_score_difference == difference


def reference_decode(
    squad, folder, words, features, results, n_best, max_answer_length, null_threshold
):
    """Returns (text, score difference or None, [(text, score, probability)])."""
    files = folder / "n_best.json", folder / "differences.json"
    predicted = squad.compute_predictions_logits(
        all_examples=[types.SimpleNamespace(qas_id="id", doc_tokens=words)],
        all_features=features,
        all_results=results,
        n_best_size=n_best,
        max_answer_length=max_answer_length,
        do_lower_case=False,
        output_prediction_file=None,
        output_nbest_file=files[0],
        output_null_log_odds_file=files[1],
        verbose_logging=False,
        version_2_with_negative=null_threshold is not None,
        null_score_diff_threshold=null_threshold,
        tokenizer=Words,
    )
    candidates = [
        (one["text"], one["start_logit"] + one["end_logit"], one["probability"])
        for one in json.loads(files[0].read_text())["id"]
    ]
    if null_threshold is None:
        return predicted["id"], None, candidates
    return predicted["id"], json.loads(files[1].read_text())["id"], candidates


# The table.


def make_table():
    """Returns the references' results for random inputs."""
    import seqeval.metrics as seqeval
    import transformers.data.metrics.squad_metrics as squad

    generator = random.Random(0)
    rows = {"tags": [], "answers": [], "thresholds": []}
    for index in range(60):
        names = (NAMED, UPOS, ODD)[index % 3]
        gold = [
            generator.choices(names, k=generator.randint(0, 8))
            for _ in range(generator.randint(1, 3))
        ] + [generator.choices(names, k=2)]
        predicted = [
            [tag if generator.random() < 0.7 else generator.choice(names) for tag in row]
            for row in gold
        ]
        values = {
            "chunk_f1": float(seqeval.f1_score(gold, predicted)),
            "token_accuracy": float(seqeval.accuracy_score(gold, predicted)),
        }
        rows["tags"].append({"gold": gold, "predicted": predicted} | values)
    for _ in range(120):
        predicted, *gold = (
            generator.choice(["", " "]).join(generator.choices(PIECES, k=generator.randint(0, 4)))
            for _ in range(generator.randint(1, 3))
        )
        if gold and generator.random() < 0.5:
            gold[0] = f"The {predicted} {generator.choice(PIECES)}"
        case = types.SimpleNamespace(qas_id=0, answers=[{"text": text} for text in gold])
        exact, f1 = squad.get_raw_scores([case], {0: predicted})
        values = {"exact_match": exact[0], "f1": f1[0]}
        rows["answers"].append({"gold": gold, "predicted": predicted} | values)
    for _ in range(30):
        cases = [
            (
                generator.choice(["", "cat", "a cat", "black cat"]),
                generator.choice([[], ["cat"], ["black cat"], ["dog", "cat"]]),
                generator.randint(-8, 8) / 2,
            )
            for _ in range(generator.randint(1, 6))
        ]
        best = official_thresholds(squad, cases)
        rows["thresholds"].append({"questions": cases, "best": best})
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    lines = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for name, rows in make_table().items()
    ]
    TABLE.write_text("{" + ",\n".join(lines) + "}\n", "utf-8")
