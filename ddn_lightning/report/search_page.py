"""The self-contained HTML page of a search for hyper-parameters."""

from functools import partial
from importlib.metadata import version

from ddn_lightning.report.figures.tuning import tuning_pictures
from ddn_lightning.report.page import draw, page_environment, style_of
from ddn_lightning.report.tuning import SearchRecord


def search_page(search: SearchRecord, made_by: str) -> str:
    """The whole page.

    Args:
        search: The search.
        made_by: The command that makes the page.
    """
    environment = page_environment()
    text: str = environment.get_template("search.html").render(
        **style_of(environment),
        title=f"{search.name}: search by ddn_lightning",
        search=search,
        details=[(arm, *draw(partial(tuning_pictures, arm))) for arm in search.arms],
        made_by=made_by,
        version=version("ddn-lightning"),
    )
    return text
