"""No file imports itself through others, those imports included that are for types only."""

from __future__ import annotations

import grimp


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """The sets of modules that import each other, directly or through others of the set."""
    found: list[list[str]] = []
    left = set(graph.modules)
    while left:
        module = left.pop()
        above = graph.find_downstream_modules(module)
        circle = {module, *(graph.find_upstream_modules(module) & above)}
        left -= circle
        if len(circle) > 1:
            found.append(sorted(circle))
    return found


def test_no_files_import_each_other() -> None:
    assert circles(grimp.build_graph("hvdcloud", cache_dir=None)) == []


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [["a", "b", "c"]]
