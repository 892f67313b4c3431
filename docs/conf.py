"""Configuration of the site that `make docs` builds from these pages, the README and its kin."""  # noqa: INP001 - Sphinx's, no package

from typing import Final

project = "RLMM daemon"
author = "the RLMM daemon's authors"
html_title = project
extensions: Final = ["myst_parser"]
# The root of the repository is the source: its pages link to each other as they do there.
include_patterns: Final = ["*.md", "docs/*.md", "deploy/plugin/README.md"]
exclude_patterns: Final = [".*", "build", "dist", "deploy/dev", "rlmm_daemon", "tests", "var"]
root_doc: Final = "docs/index"
html_theme: Final = "furo"
html_copy_source: Final = False
html_show_sphinx: Final = False
html_show_copyright: Final = False
html_theme_options: Final = {"navigation_with_keys": True}
#: Headings up to this level can be linked to, by the names that code forges give them.
myst_heading_anchors: Final = 4
#: An option's two dashes are two dashes.
smartquotes = False
nitpicky = True
