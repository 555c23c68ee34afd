"""Small files in the layout of ChemProt's archive."""

import re

TITLE = "Aspirin inhibits COX-1 and COX-2."
BODY = (
    "Aspirin (e.g. Bayer) binds COX-1. Insulin receptor α was unchanged. It also lowers TXA2, "
    "i.e. Thromboxane."
)
# (id, type, mention, which of its occurrences in title and body)
ENTITIES = (
    ("T1", "CHEMICAL", "Aspirin", 0),
    ("T2", "GENE-Y", "COX-1", 0),
    ("T3", "GENE-N", "COX-2", 0),
    ("T4", "CHEMICAL", "Aspirin", 1),
    ("T5", "GENE-Y", "COX-1", 1),
    ("T6", "CHEMICAL", "Insulin", 0),
    ("T7", "GENE", "Insulin receptor α", 0),
    ("T8", "GENE-Y", "TXA2", 0),
)
RELATIONS = (
    ("CPR:4", "Y ", "INHIBITOR", "T1", "T2"),
    ("CPR:4", "Y ", "INHIBITOR", "T1", "T2"),  # Once more.
    ("CPR:2", "N ", "DIRECT-REGULATOR", "T4", "T5"),
    ("CPR:3", "Y ", "UPREGULATOR", "T1", "T3"),
    ("CPR:9", "Y ", "SUBSTRATE", "T1", "T3"),
    ("CPR:4", "Y ", "DOWNREGULATOR", "T4", "T8"),  # Across sentences.
)
FILES = ("abstracts", "entities", "relations")
NAMES = {
    "train": "chemprot_training/chemprot_training_{}.tsv",
    "validation": "chemprot_development/chemprot_development_{}.tsv",
    "test": "chemprot_test_gs/chemprot_test_{}_gs.tsv",
}


def offset(text, mention, which):
    return [match.start() for match in re.finditer(re.escape(mention), text)][which]


def entity_rows(pmid, entities=ENTITIES, text=f"{TITLE} {BODY}"):
    for id, type, mention, which in entities:
        begin = offset(text, mention, which)
        yield pmid, id, type, str(begin), str(begin + len(mention)), mention


def write(folder, split="train", end="\n", missing=(), **tables):
    """Writes a split; `entities` and `relations` replace the tables above."""
    relations = (
        ("17", group, counts, type, f"Arg1:{one}", f"Arg2:{other}")
        for group, counts, type, one, other in tables.get("relations", RELATIONS)
    )
    rows = {
        "abstracts": tables.get("abstracts", [("17", TITLE, BODY)]),
        "entities": tables.get("entities", entity_rows("17")),
        "relations": relations,
    }
    for name in set(FILES) - set(missing):
        path = folder / NAMES[split].format(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["\t".join(row) + end for row in rows[name]]
        path.write_bytes("".join(lines).encode())
    return folder
