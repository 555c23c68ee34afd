"""ChemProt in the layout of the official archive, with its quirks, and malformed files."""

import pytest
from helpers.chemprot_files import BODY, NAMES, TITLE, entity_rows, write

from xlme_jax.data.benchmarks import labelled_rows
from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.official.chemprot import GROUPS, NONE, TYPES
from xlme_jax.data.text.reading import DataError, ReadReport


def read(folder, name="chemprot", split="train"):
    report = ReadReport()
    found = benchmark(name).read(folder, split, "en", report)
    return {example.id: (*example.texts, example.label) for example in found}, report


EXPECTED = {
    "17.T1.T2": ("@CHEMICAL$ inhibits @GENE$ and COX-2.", "CPR:4"),
    "17.T1.T3": ("@CHEMICAL$ inhibits COX-1 and @GENE$.", "CPR:3"),
    "17.T4.T5": ("@CHEMICAL$ (e.g. Bayer) binds @GENE$.", "false"),
    "17.T4.T8": (
        "@CHEMICAL$ (e.g. Bayer) binds COX-1. Insulin receptor α was unchanged. It also lowers "
        "@GENE$, i.e. Thromboxane.",
        "CPR:4",
    ),
    "17.T6.T7": ("@CHEM-GENE$ was unchanged.", "false"),
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("split", NAMES)
def test_pairs_of_a_sentence_and_related_ones(tmp_path, split, end):
    assert benchmark("chemprot").available(write(tmp_path, split, end)) == {split: ("en",)}
    found, report = read(tmp_path, split=split)
    assert found == EXPECTED
    assert report.read == 5 and report.skipped == {"further group of a pair": 1}


def test_types_are_those_of_the_relations_that_count(tmp_path):
    found, _ = read(write(tmp_path), "chemprot_types")
    of_two = "<< Aspirin >> inhibits COX-1 and [[ COX-2 ]]."
    across = (
        "<< Aspirin >> (e.g. Bayer) binds COX-1. Insulin receptor α was unchanged. It also lowers "
        "[[ TXA2 ]], i.e. Thromboxane."
    )
    assert found == {
        "17.T1.T2": ("<< Aspirin >> inhibits [[ COX-1 ]] and COX-2.", "INHIBITOR"),
        "17.T1.T3": (of_two, "UPREGULATOR"),
        "17.T1.T3.1": (of_two, "SUBSTRATE"),
        "17.T4.T8": (across, "DOWNREGULATOR"),
    }
    assert benchmark("chemprot").labels == (NONE, *GROUPS)
    assert benchmark("chemprot_types").labels == TYPES and len(TYPES) == 13


@pytest.mark.parametrize(
    "relation, marked",
    [
        (("T2", "T1"), "<< Aspirin >> inhibits [[ COX-1 ]] and COX-2."),
        (("T6", "T7"), "<< [[ Insulin ]] receptor α >> was unchanged."),
    ],
)
def test_mentions_are_marked_where_types_are_labels(tmp_path, relation, marked):
    """The row "mentions" of ChemProt in docs/papers/xlme.md."""
    relations = [("CPR:4", "Y", "INHIBITOR", *relation)]
    examples, _ = read(write(tmp_path, relations=relations), "chemprot_types")
    assert [text for text, _ in examples.values()] == [marked]


def test_a_test_set_without_relations(tmp_path):
    found, _ = read(write(tmp_path, "test", missing=["relations"]), split="test")
    in_sentence = [id for id in EXPECTED if id != "17.T4.T8"]
    assert found == {id: (EXPECTED[id][0], None) for id in in_sentence}
    for split, name in (("train", "chemprot"), ("test", "chemprot_types")):
        write(tmp_path, split, missing=["relations"])
        with pytest.raises(DataError, match=r"relations\w*\.tsv: no such file"):
            read(tmp_path, name, split)


@pytest.mark.parametrize(
    "relation, said",
    [
        (("CPR:4", "Y", "INHIBITOR", "T1", "T99"), r"line 1: .* no entity 'T99' of abstract 17"),
        (
            ("CPR:4", "Y", "INHIBITOR", "T1", "T4"),
            "line 1: T1 and T4 must be a chemical and a gene",
        ),
        (
            ("CPR:4", "Y", "INHIBITOR", "T3", "T2"),
            "line 1: T3 and T2 must be a chemical and a gene",
        ),
        (("CPR:44", "Y", "INHIBITOR", "T1", "T2"), "line 1: label 'CPR:44' is not one of CPR:0"),
        (("CPR:4", "Y", "x", "T1\tT2", "T2"), "line 1: 7 columns instead of 6"),
    ],
)
def test_malformed_relations_name_file_and_line(tmp_path, relation, said):
    with pytest.raises(DataError, match=r"chemprot_training_relations\.tsv, " + said):
        read(write(tmp_path, relations=[relation]))


def test_an_unknown_type_counts_only_where_types_are_classes(tmp_path):
    odd = [("CPR:4", "Y", "MELTS", "T1", "T2"), ("CPR:2", "N", "MELTS", "T1", "T3")]
    assert read(write(tmp_path, relations=odd))[0]["17.T1.T2"][1] == "CPR:4"
    with pytest.raises(DataError, match=r"relations\.tsv, line 1: label 'MELTS' is not one of AC"):
        read(tmp_path, "chemprot_types")


def test_arguments_may_be_in_either_order(tmp_path):
    swapped = [("CPR:4", "Y", "INHIBITOR", "T2", "T1")]
    assert read(write(tmp_path, relations=swapped))[0]["17.T1.T2"] == EXPECTED["17.T1.T2"]


@pytest.mark.parametrize(
    "row, said",
    [
        (("18", "T1", "CHEMICAL", "0", "7", "Aspirin"), "no abstract 18 in chemprot_training_ab"),
        (("17", "T1", "SPECIES", "0", "7", "Aspirin"), "entity type 'SPECIES'"),
        (("17", "T1", "CHEMICAL", "0", "-7", "Aspirin"), "'0' and '-7' must be whole numbers"),
        (("17", "T1", "CHEMICAL", "0"), "4 columns instead of 6"),
    ],
)
def test_malformed_entities_name_file_and_line(tmp_path, row, said):
    with pytest.raises(DataError, match=rf"training_entities\.tsv, line 1: {said}"):
        read(write(tmp_path, entities=[row]))


def test_an_entity_that_is_not_at_its_offset_is_left_out(tmp_path):
    abstracts = [(str(pmid), TITLE, BODY) for pmid in range(17, 37)]
    rows = [row for pmid, *_ in abstracts for row in entity_rows(pmid)]
    rows[0] = (*rows[0][:3], "1", "8", "Aspirin")
    found, report = read(write(tmp_path, abstracts=abstracts, entities=rows))
    assert "17.T1.T2" not in found and "18.T1.T2" in found and "17.T4.T5" in found
    assert report.skipped == {
        "entity not at its offset": 1,
        "relation of an entity that is not at its offset": 4,
    }
    with pytest.raises(DataError, match=r"entities\.tsv: 1 of 8 items cannot be used"):
        read(write(tmp_path, entities=rows[:8]))


@pytest.mark.parametrize("begin, end", [("1", "8"), ("99998", "99999")])
def test_an_entity_that_is_not_at_its_offset_is_scored(tmp_path, begin, end):
    """The official scorer compares ids: its pairs are in the denominator wherever they stand."""
    abstracts = [(str(pmid), TITLE, BODY) for pmid in range(17, 37)]
    rows = [row for pmid, *_ in abstracts for row in entity_rows(pmid)]
    right, _ = read(write(tmp_path / "right", "validation", abstracts=abstracts, entities=rows),
                    split="validation")  # fmt: skip
    rows[0] = (*rows[0][:3], begin, end, "Aspirin")
    folder = write(tmp_path / "wrong", "validation", abstracts=abstracts, entities=rows)
    found, report = read(folder, split="validation")
    related = {id for id, (_, label) in right.items() if label != "false"}
    assert related and {id: found[id][1] for id in related} == {id: right[id][1] for id in related}
    assert report.repaired == {"entity not at its offset": 1}
    assert report.skipped == {"further group of a pair": 1}


@pytest.mark.parametrize("folder", ["chemprot", "ChemProt_Corpus"])
def test_the_folder_of_the_archive_serves_both_tasks(tmp_path, folder):
    write(tmp_path / folder)
    for name in ("chemprot", "chemprot_types"):
        assert labelled_rows.folder_of(tmp_path, name) == tmp_path / folder
    assert labelled_rows.find_benchmark("chemprot_types_en") == "chemprot_types"
