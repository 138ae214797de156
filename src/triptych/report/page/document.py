"""Renders pages from Jinja2 templates in ``templates``, which also holds their styles and scripts. Each page is one
HTML file that needs no network."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from triptych.config import amount
from triptych.report.page.charts import separate_titles
from triptych.report.page.style import TEMPLATE


class Cell(NamedTuple):
    """A table cell.

    Attributes:
        head: of its column.
        kind: CSS classes: own (the architecture's colour) and the architecture, number, words or path.
        text: its content.
    """

    head: str
    kind: str
    text: str


def render_template(name: str, context: Mapping[str, object]) -> str:
    """Renders a self-contained page. All values are escaped: names and texts of runs are text, never HTML.

    Args:
        context: the variables of the template; a missing one is an error.
    """
    return _environment().get_template(name).render(context) + "\n"


def read_source(name: str) -> str:
    """The text of a style or a script, not rendered as a template."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("triptych.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"read_source": read_source, "read_plotly": get_plotlyjs, "figure_template": TEMPLATE}
    environment.filters |= {"separate_titles": separate_titles, "amount": amount}
    # For the filter ``tojson``, which escapes text that HTML or a script would interpret.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment
