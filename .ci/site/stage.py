"""Lays the pages out as mdBook reads them: `stage.py SRC FOREBAY`. They keep their places, READMEs become index pages.

Links to what is no page lead to the repository. Pages of the commands and of Rust's and Python's API are made.
"""

import os
import pathlib
import shutil
import sys
import tomllib

import commands
import markdown
import python_api
import summary

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "STYLE.md", "crates/README.md"]
REPOSITORY = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]
# What pages show or lead to, beside pages.
COPIED = {".svg", ".png", ".html"}
# Where docs/SUMMARY.md has the pages that are made here.
MADE = "<!-- commands and APIs -->"


def place(path):
    """Where the site has a page, from its top."""
    name = path.relative_to(ROOT)
    return (name.with_name("index.md") if name.name == "README.md" else name).as_posix()


def pages():
    return [ROOT / name for name in PAGES] + [page for page in (ROOT / "docs").rglob("*.md") if page.name != "SUMMARY.md"]


def changed(page, target, known):
    """A link of a page, for the site."""
    path, hash_, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    there = (page.parent / path).resolve()
    there = there / "README.md" if there / "README.md" in known else there
    if there in known:
        return os.path.relpath(place(there), pathlib.Path(place(page)).parent) + hash_ + anchor
    if there.suffix in COPIED and there.is_relative_to(ROOT / "docs"):
        return target
    return f"{REPOSITORY}/blob/main/{there.relative_to(ROOT)}{hash_}{anchor}"


def rust_page():
    """Libraries with their descriptions, and where cargo doc's pages lie."""
    lines = ["# Rust", "", "What `cargo doc` makes. Programs depend on [`forebay`](rust/forebay/index.html), which names the rest.", "", "| | |", "|---|---|"]
    for manifest in sorted(ROOT.glob("crates/*/Cargo.toml")):
        crate = tomllib.loads(manifest.read_text())
        name = crate.get("lib", {}).get("name", crate["package"]["name"].replace("-", "_"))
        about = crate["package"]["description"]
        if (manifest.parent / "src/lib.rs").exists() and name.startswith(("forebay", "cufile")) and "ever shipped" not in about:
            lines.append(f"| [`{name}`](rust/{name}/index.html) | {about} |")
    return "\n".join([*lines, ""])


def main(src, forebay):
    shutil.rmtree(src, ignore_errors=True)
    known = set(pages())
    for page in known:
        copy = src / place(page)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(markdown.replace_links(page.read_text(), lambda target, page=page: changed(page, target, known)))
    for path in (path for path in (ROOT / "docs").rglob("*") if path.suffix in COPIED):
        copy = src / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    (src / "commands.md").write_text(commands.page(forebay))
    (src / "rust.md").write_text(rust_page())
    modules = python_api.write(src / "python")
    lines = ["- [Commands](commands.md)", "- [Python](python/index.md)", *(f"  - [`{name}`](python/{name}.md)" for name in modules), "- [Rust](rust.md)"]
    (src / "SUMMARY.md").write_text(summary.expanded(ROOT, place).replace(MADE, "\n".join(lines)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2])
