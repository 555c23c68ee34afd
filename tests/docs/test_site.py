"""The generated pages of the site."""

import dataclasses
import re
import sys

import documented
import pytest

from xlme_jax.configuration.registry import CONFIGURABLES, class_of, classes

pytest.importorskip("griffe", reason="needs the extra docs")


@pytest.fixture(scope="module", autouse=True)
def hooks():
    """Lets the hooks of the site be imported, as MkDocs does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(documented.ROOT / "docs" / "hooks"), *sys.path])
        yield


@pytest.mark.parametrize("name", CONFIGURABLES)
def test_every_field_is_explained(name):
    import configurable_pages

    cls = class_of(name)
    explained = configurable_pages.descriptions(cls)
    assert {f.name for f in dataclasses.fields(cls)} <= {k for k, text in explained.items() if text}


def test_the_reference_has_a_row_for_each_field():
    import configurable_pages

    page = configurable_pages.reference()
    for name, cls in classes().items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert all(f">{field.name}</code> | " in section for field in dataclasses.fields(cls))


def test_commands_are_complete():
    import command_pages
    from test_rooms import COMMANDS

    assert set(command_pages.COMMANDS) == COMMANDS
    short_page = (documented.ROOT / "docs" / "reference" / "commands.md").read_text()
    assert tuple(re.findall("^## (.*)", short_page, re.MULTILINE)) == command_pages.COMMANDS


@pytest.mark.parametrize("page", documented.pages(), ids=lambda page: page.name)
def test_links_lead_to_committed_files_and_headings(page):
    """As links are read where the files lie, without the site."""
    dead = []
    for link, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", page.read_text()):
        file = page.parent / link if link else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(f"{link}#{anchor}")
    assert not dead


def anchors(file):
    """Returns the anchors of the headings of a Markdown file."""
    text = re.sub(r"^ *```.*?^ *```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in headings}


def test_links_that_leave_docs_lead_to_pages():
    import repository

    text = "[a](../LICENSE) [b](../design.md#rooms) [c](../../xlme_jax/api.py) [d](https://x.org/e)"
    changed = repository.with_site_links(text, "guide/own_text.md")
    assert changed == text.replace("../../xlme_jax/api.py", "../files/xlme_jax/api.py.md")
    assert repository.linked_files(text, "guide/own_text.md") == {"xlme_jax/api.py"}
    (page,) = repository.file_pages({"xlme_jax/api.py"}).values()
    assert "def load_config(" in page


def test_the_home_page_is_the_readme():
    import repository

    page = repository.page_of("README.md", "index.md")
    assert "](../docs/guide/quickstart.md)" in page
    assert "](guide/quickstart.md)" in repository.with_site_links(page, "index.md")
