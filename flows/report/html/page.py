"""Renders HTML pages from the templates in `templates/`. Each is one file, without scripts or external resources."""

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from flows.report.text.markdown import data_url, shortened
from flows.report.text.visible import visible

STYLE = files("flows.report.html").joinpath("page.css").read_text()


def page(template: str | Template, **values: Any) -> str:
    """Renders a page.

    Every value is shown as text: markup in it is escaped, and so are invisible characters.

    Args:
        template: Name of a file in `templates/`, or a template made by `TEMPLATES.from_string`.
        **values: The variables of the template, except `style`.

    Raises:
        jinja2.UndefinedError: The template uses a variable that is not given.
    """
    return TEMPLATES.get_template(template).render({**values, "style": Markup(STYLE)})


def _shown(value: Any) -> Any:
    """Returns a value for a template with invisible characters escaped; markup made by the templates is not escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


TEMPLATES = Environment(
    loader=PackageLoader("flows.report.html"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"data_url": data_url, "shortened": shortened}
