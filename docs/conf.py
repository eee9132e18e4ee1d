"""Configuration of the documentation: ``make docs``."""

from __future__ import annotations

import importlib
import os
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from leakgauge import __version__

# Before autodoc, which imports with `typing.TYPE_CHECKING` set: pydantic cannot build open models then.
importlib.import_module("leakgauge.frontiers.plan")

project = "leakgauge"
author = "the leakgauge authors"
copyright = "the leakgauge authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["deflist", "dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"leakgauge {release}"
html_static_path: list[str] = []
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "imported-members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# As a plain list: several names may share a line, and the signature has the types.
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
# A single backtick is code in our docstrings.
default_role = "code"

ARRAY = re.compile(r"(?:jaxtyping\.)?(Float|Int|Bool)\[(?:[\w.]*\.)?Tensor, (?:['\"] ?([^'\"]*)['\"]|([^\]]*))\]")
RESOLVED = re.compile(r"<class '(?:jaxtyping\.)?(.*?)'>")
FUNCTION = re.compile(r"<function (\w+)>")
MODULES = re.compile(r"\b(?:leakgauge|torch|typing|collections|pathlib|jaxtyping)\.(?:\w+\.)*(?=[A-Z])")


def readable(signature: str | None) -> str | None:
    """``Float[Tensor, 'n c h w']`` as it was written, without the modules in front of names."""
    if signature is None:
        return None
    plain = RESOLVED.sub(r"\1", signature)

    def array(found: re.Match[str]) -> str:
        shape = (found[2] if found[2] is not None else found[3]).replace(" * ", " *").strip()
        return f'{found[1]}[Tensor, "{shape}"]'

    short = MODULES.sub("", ARRAY.sub(array, plain)).replace("~", "")
    return FUNCTION.sub(r"\1", short.replace("<factory>", "…"))


def on_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Sphinx's hook: both halves of a signature."""
    del app, name, options
    if what == "class" and (getattr(obj, "_is_protocol", False) or issubclass(obj, Enum)):
        return "", None
    return readable(signature), readable(returns)


def make_screens(app: Any) -> None:
    """What the commands print, for the page *screens*."""
    sys.path.insert(0, str(app.srcdir))
    import screens

    screens.make(Path(app.srcdir) / "_build" / "screens")


def make_measured(app: Any) -> None:
    """Tables of kept rows: results beside published numbers, defences, searches."""
    root, build = Path(app.srcdir).parent, Path(app.srcdir) / "_build"
    sys.path[:0] = [str(root), str(root / "benchmarks")]
    import brought
    import minimisers
    from reproduce.defences import page as defences

    from reproduce import table

    searches = "\n".join(minimisers.table(minimisers.rows(root / "benchmarks" / "results" / "minimisers.jsonl")))
    build.mkdir(exist_ok=True)
    pages = {"measured": table.page(), "defences": defences.page(), "minimisers": searches + "\n"}
    for name, text in (pages | {"brought": brought.page(brought.kept())}).items():
        (build / f"{name}.md").write_text(text, encoding="utf-8")


def make_reference(app: Any) -> None:
    """Commands, keys of a plan and what it may name, from the code; the gallery, from kept runs."""
    import gallery
    import generated

    generated.make(Path(app.srcdir) / "_build" / "reference")
    (Path(app.srcdir) / "_build" / "gallery.md").write_text(gallery.page(), encoding="utf-8")


NAMED = {
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
    'role="heading"><span class="caption-text">': 'role="heading" aria-level="2"><span class="caption-text">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<div id="search-results"></div>': '<h1>Search</h1><div id="search-results"></div>',
}
"""What axe-core misses in the theme's pages: names of landmarks, a level, code and tables that scroll by keyboard, a
heading."""
PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')
"""A signature over several lines: Sphinx makes a list of definitions without a term."""


def listed(signature: re.Match[str]) -> str:
    """The same lines as a plain list."""
    line = '<span role="listitem" style="display: block; margin-left: 2em">'
    rows = signature[1].replace("<dd>", line).replace("</dd>", "</span>")
    return f'<span role="list">\n{rows}</span>'


def make_accessible(app: Any, problem: Exception | None) -> None:
    """Sphinx's hook, once the pages are written."""
    if problem is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            for without, named in NAMED.items():
                text = text.replace(without, named)
            path.write_text(PARAMETERS.sub(listed, text), encoding="utf-8")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", make_screens)
    app.connect("builder-inited", make_measured)
    app.connect("builder-inited", make_reference)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("build-finished", make_accessible)
