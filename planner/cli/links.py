"""``hetplan links``: the links inside nodes that hetplan knows."""

from __future__ import annotations

from planner.catalog import link, link_names
from planner.cli.options import AsJson
from planner.cli.output import show, show_document
from planner.report.catalogue import links_document, links_section


def links(as_json: AsJson = False) -> None:
    """List the links inside nodes that hetplan knows.

    Their names can stand at intra_node in a cluster file.
    """
    entries = [link(each) for each in link_names()]
    if as_json:
        show_document(links_document(entries))
    else:
        show(links_section(entries))
