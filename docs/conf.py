"""The documentation site, of the Markdown that is here: CONTRIBUTING.md has its command."""

import json
import re
from posixpath import normpath

from transformer.system.commands import ROOT, version

project, html_theme, version, release = "transformer", "furo", "", version()
extensions, myst_enable_extensions = ["myst_parser", "sphinx.ext.autodoc"], ["dollarmath"]
root_doc, source_suffix = "README", {".md": "markdown", ".ipynb": "markdown", ".rst": "rst"}
include_patterns = ["*.md", "docs/*.md", "docs/api/*.rst", "results/*.md", "*/*.ipynb"]
include_patterns += ["transformer/pretrained/*/*.md"]
html_copy_source, autodoc_preserve_defaults, toc_object_entries = False, True, False  # slow
autodoc_member_order, autodoc_class_signature = "bysource", "separated"
autodoc_default_options = {"members": True, "exclude-members": "set"}  # matplotlib's
myst_heading_anchors, default_role = 6, "py:obj"  # `Model` in a docstring leads to the class
suppress_warnings = ["toc.not_included"]  # RESULTS.md leads to the pages of results/
ITEM = r"- |[\w.]+(?:, [\w.]+)*: "  # in a docstring: an item of a list, or an argument


def plain(*event) -> None:
    """Makes reStructuredText of a docstring: its indented blocks stay as they are."""
    parts = []
    for part in re.split(rf"\n\s*\n|\n(?={ITEM}|Raises )", "\n".join(event[-1]).strip("\n")):
        if not part.startswith((" ", ">>>")):
            star = "* " * bool(re.match(ITEM, part))
            part = re.sub(r"(`[^`]*`)|([*|\\]|_\b|:(?=`))", lambda m: m[1] or "\\" + m[2], part)
            part = star + re.sub(r"\n *", "\n" + " " * len(star), part.removeprefix("- "))
        parts.append("::\n\n" * part.startswith(" ") + part)
    event[-1][:] = "\n\n".join(parts).split("\n")


def read(app, page: str, source: list[str]) -> None:
    """Makes Markdown of a notebook, turns links to code to its page, lists pages in the sidebar."""

    def turn(link: re.Match) -> str:
        path = normpath(f"{page}/../{link[2]}")
        name = re.sub("^configs", "transformer/configs", path).removesuffix(".py")
        if name.startswith("transformer/") and "." not in name:
            return f"{{py:mod}}`{link[1].strip('`')} <{name.replace('/', '.')}>`"
        return link[1] if (ROOT / path).is_dir() else link[0]

    if app.env.doc2path(page).suffix == ".ipynb":
        cells = [(c["cell_type"], "".join(c["source"])) for c in json.loads(source[0])["cells"]]
        source[0] = "\n\n".join(f"````python\n{s}\n````" if t == "code" else s for t, s in cells)
        source[0] += f"\n\n{{download}}`This page as a notebook </{page}.ipynb>`\n"
    if not page.startswith("docs/api/"):
        source[0] = re.sub(r"\[([^\]]+)\]\(([^)#:\s]+)\)", turn, source[0])
    for part in (ROOT / "docs/README.md").read_text().split("\n## ") if page == root_doc else []:
        names = dict.fromkeys(re.findall(r"\]\(([\w./-]+)\.(?:md|ipynb)", part))
        head = ["```{toctree}", ":hidden:", ":caption: " + part.partition("\n")[0].lstrip("# ")]
        source[0] += "\n".join(["", *head, "", *(normpath(f"docs/{n}") for n in names), "```"])
    source[0] += "\n\n<a href='../index.html'>Other versions</a>\n" * (page == "CHANGELOG")


def finish(app, error: Exception | None) -> None:
    """Begins with the README; beside the folder of this version lists those of all."""
    if not error and app.outdir.name == release:
        (app.outdir / "index.html").write_text((app.outdir / "README.html").read_text())
        names = sorted(path.parent.name for path in app.outdir.glob("../*/README.html"))
        links = (f"<p><a href='{name}/index.html'>{project} {name}</a></p>\n" for name in names)
        (app.outdir.parent / "index.html").write_text("".join(links))


def setup(app) -> None:
    """Writes a page about each room: its modules or, of configs and commands, the files."""
    (ROOT / "docs/api").mkdir(exist_ok=True)
    for room in (path.parent for path in (ROOT / "transformer").glob("*/__init__.py")):
        kind = "py:module" if room.name in ("configs", "commands") else "automodule"
        page: list[str] = []
        for path in (file.relative_to(ROOT) for file in sorted(room.rglob("*.py"))):
            name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            page += ["", name, ("-" if page else "=") * len(name), "", f".. {kind}:: {name}"]
            page += ["", f".. literalinclude:: /{path}"] * (kind == "py:module")
        (ROOT / f"docs/api/{room.name}.rst").write_text("\n".join(page))
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-skip-member", lambda *e: "Alias for field" in str(e[3].__doc__) or None)
    app.connect("source-read", read)
    app.connect("build-finished", finish)
