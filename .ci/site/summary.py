"""docs/SUMMARY.md: the order of the site's pages.

A line `- [Decisions](decisions/README.md)` brings all other pages of that folder below it, `[Benchmarks](benchmarks.md)`
those of `benchmarks/`; pages of other folders have a line each.
"""

import re

import markdown

_LINE = re.compile(r"^( *)- \[.*?\]\((.*?)\)", re.M)


def _page(root, target):
    return (root / "docs" / target).resolve()


def _children(root, page, named):
    """Pages that a page brings with it."""
    folder = page.parent if page.name == "README.md" else page.with_suffix("")
    found = set(folder.glob("*.md")) - named if folder.parent == root / "docs" else set()
    return sorted(found, key=lambda child: (child.name != "README.md", child))


def _named(root):
    return {_page(root, target) for _, target in _LINE.findall((root / "docs/SUMMARY.md").read_text())}


def missing(root):
    """Pages below docs/ that no line brings into the site."""
    named = _named(root)
    there = named.union(*(_children(root, page, named) for page in named))
    return sorted(set((root / "docs").rglob("*.md")) - there - {root / "docs/SUMMARY.md"})


def expanded(root, place):
    """The text with all pages in it; `place(path)` is where the site has a page."""
    named = _named(root)

    def line(match):
        page = _page(root, match.group(2))
        below = [
            f"{match.group(1)}  - [{markdown.title(child.read_text()) or child.stem}]({place(child)})"
            for child in _children(root, page, named)
        ]
        return "\n".join([match.group().replace(f"({match.group(2)})", f"({place(page)})"), *below])

    return _LINE.sub(line, (root / "docs/SUMMARY.md").read_text())
