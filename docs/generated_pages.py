"""MkDocs hook: adds the reference pages that the program writes about itself."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from evo_kernel.cli.reference_docs import PAGES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add one page for each entry of PAGES."""
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files
