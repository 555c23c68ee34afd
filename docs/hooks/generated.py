"""MkDocs hook: the pages that are generated at build time, and links that leave `docs/`.

Generated are the reference of commands, configurables, public corpora and shipped configurations,
copies of the repository's own Markdown files, and a page for each file of the repository that
another page links to. None of them is written into the working tree, where short pages stand in
their place that say which command prints the same.
"""

import command_pages
import configurable_pages
import corpora_pages
import preset_pages
import repository
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, then those of the files that any page links to."""
    generated = {
        "reference/commands.md": command_pages.page(),
        "reference/configurables.md": configurable_pages.reference(),
        "reference/classes.md": configurable_pages.classes(),
        "reference/corpora.md": corpora_pages.page(),
        "reference/presets.md": preset_pages.page(),
        **{uri: repository.page_of(path, uri) for path, uri in repository.PAGES.items()},
    }
    for uri, text in generated.items():
        if (short_page := files.get_file_from_path(uri)) is not None:
            files.remove(short_page)
        files.append(File.generated(config, uri, content=text))
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= repository.linked_files(file.content_string, file.src_uri)
    for uri, text in repository.file_pages(linked).items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to files outside of `docs/` to their pages."""
    del config, files
    return repository.with_site_links(markdown, page.file.src_uri)
