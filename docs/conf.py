"""How Sphinx makes the site: `make docs`. The source is the whole project, so that links lead from page to page as they
do in a checkout."""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

import triptych

sys.path.insert(0, str(Path(__file__).parent))
from configuration import write_pages
from formulas import FORMULAS

project = "Triptych"
author = "the authors of Triptych"
release = version = triptych.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "benchmarks/*.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "outputs", "wheels", "multirun", "src", "tests"]  # else all their folders are looked through

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"Triptych {release}"
html_extra_path = ["redirect"]  # from the root of the site to docs/index.html
html_copy_source = html_show_copyright = False
html_math_renderer = "mathml"
html_static_path, html_css_files, html_js_files = ["static"], ["access.css", "code.css"], ["access.js"]
templates_path, html_favicon = ["templates"], "static/triptych.svg"
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False  # its tables alone: a page for each package is enough
maximum_signature_line_length = 90
napoleon_use_ivar = True
python_use_unqualified_type_names = True

logger = logging.getLogger(__name__)
longest_first = sorted(FORMULAS, key=len, reverse=True)
PLAIN = re.compile("|".join(r"\s+".join(map(re.escape, plain.split())) for plain in longest_first))
found: set[str] = set()
"""Which formulas stood in a docstring."""


def typeset(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Turns the formulas of a docstring into mathematics, and marks the rest for reStructuredText."""

    def draw(match: re.Match[str]) -> str:
        plain = " ".join(match[0].split())
        found.add(plain)
        return f":math:`{FORMULAS[plain]}`"

    text = PLAIN.sub(draw, "\n".join(lines))
    text = re.sub(r":\n\n(?=    \S)", "::\n\n", text)  # an example follows
    parts = re.split(r"(``.*?``|:math:`.*?`)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[2::2] = [rf"\ {part}" if part[:1].isalnum() else part for part in parts[2::2]]
    lines[:] = "".join(parts).split("\n")
    if what in ("attribute", "data", "property"):  # else napoleon takes what stands before a colon for a type
        lines.insert(0, "\\")


def check_formulas(app: Sphinx, error: Exception | None) -> None:
    """Warns of formulas that stand in no docstring any more."""
    if found:  # nothing is read again in a second build
        for plain in FORMULAS.keys() - found:
            logger.warning("docs/formulas.py: no docstring of docs/api has %r", plain)


def draw_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """As MathML, which browsers draw by themselves: no page needs a script, or a network, for its formulas."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def draw_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Likewise, on lines of its own."""
    translator.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Additional steps of the build."""
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir)))
    app.connect("autodoc-process-docstring", typeset, priority=400)  # before napoleon
    app.connect("build-finished", check_formulas)
