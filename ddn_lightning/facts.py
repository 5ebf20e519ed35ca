"""What tables and titles say of a method or a source of labels; each class states its own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Facts about a class.

    Args:
        key: Its name in ``configs/``, on the command line of ``ddn reproduce`` and in CSV files.
        title: Its name in tables and figures.
        reference: Where it comes from, as Markdown.
        stores: What it keeps besides images and labels.
        cost: What a step costs beyond one of ER.
    """

    key: str
    title: str
    reference: str = ""
    stores: str = "nothing"
    cost: str = "none"
