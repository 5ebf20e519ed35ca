"""The self-contained HTML page of a search for hyper-parameters."""

from functools import partial
from importlib.metadata import version

from markupsafe import Markup

from ddn_lightning.report.figures.tuning import tuning_pictures
from ddn_lightning.report.page import draw, hash_of, page_environment, source_of
from ddn_lightning.report.tuning import SearchRecord


def search_page(search: SearchRecord, made_by: str) -> str:
    """The whole page.

    Args:
        search: The search.
        made_by: The command that makes the page.
    """
    environment = page_environment()
    style = source_of(environment, "page.css")
    text: str = environment.get_template("search.html").render(
        title=f"{search.name}: search by ddn_lightning",
        search=search,
        details=[(arm, *draw(partial(tuning_pictures, arm))) for arm in search.arms],
        style=Markup(style),  # noqa: S704  # from this package
        style_hash=hash_of(style),
        made_by=made_by,
        version=version("ddn-lightning"),
    )
    return text
