"""Python's API as pages: what each public module names in `__all__`, with its signature and docstring.

The source is read, not run, because parts of it import torch or MONAI. Only the native module is imported: its docstrings
are in Rust.
"""

import inspect
import re

import griffe

import forebay._forebay as native

MODULES = ["forebay", "forebay.safetensors", "forebay.npy", "forebay.pickles", "forebay.torch", "forebay.data", "forebay.monai", "forebay.patch", "forebay.frameworks", "forebay.errors"]
# Special methods that have a docstring of their own.
SPECIAL = {"__len__", "__getitem__", "__iter__"}
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([^`]+)`")
_CODE = re.compile(r"``(.+?)``", re.S)
_HEADS = {"parameters": "Arguments", "returns": "Returns", "yields": "Yields", "raises": "Raises", "attributes": "Attributes"}


class Names:
    """Where a name of a docstring has its place: `Loader`, `data.Loader`, `forebay.data.Loader.set_epoch`."""

    def __init__(self):
        self.places = {}

    def add(self, module, name):
        page = f"{module}.md"
        self.places.setdefault(f"{module}.{name}", f"{page}#{name}")

    def link(self, name, scope):
        """Markdown for a name that is used within a module, or a class of it."""
        for full in (f"{scope}.{name}", f"{scope.rpartition('.')[0]}.{name}", f"{MODULES[0]}.{name}", f"forebay.errors.{name}", name):
            if full in self.places:
                return f"[`{name}`]({self.places[full]})"
        return f"[`{name}`]({name}.md)" if name in MODULES else f"`{name}`"


def target_of(item):
    return item.final_target if item.is_alias else item


def members(item):
    """Methods and properties of a class that users call, in the order of the source."""
    for name, member in item.members.items():
        is_public = not name.startswith("_") or name in SPECIAL and member.docstring
        if not member.is_alias and is_public and (member.is_function or "property" in member.labels or member.docstring):
            yield name, member


def native_doc(path):
    """The docstring of something in the native module."""
    found = native
    for name in path.split(".")[2:]:
        found = getattr(found, name, None)
    return inspect.getdoc(found) or ""


def is_native(item):
    return item.path.startswith("forebay._forebay.")


def marked_up(text, names, scope):
    """Markdown of a docstring's text, which has some of reStructuredText's marks."""
    text = _ROLE.sub(lambda match: names.link(match.group(1), scope), text)
    text = _CODE.sub(lambda match: f"`{match.group(1)}`", text)
    return re.sub(r"\[`(forebay\.[\w.]+)`\](?!\()", lambda match: names.link(match.group(1), scope), text)


def example(text):
    lines = [re.sub(r"\s*# (doctest|noqa):.*$", "", line) for line in text.splitlines()]
    return ["```pycon", *lines, "```", ""]


def section(part, names, scope):
    """One part of a docstring as lines."""
    def text(value):
        return marked_up(value, names, scope)

    if part.kind.value == "text":
        return [text(part.value), ""]
    if part.kind.value == "examples":
        return [line for kind, value in part.value for line in (example(value) if kind.value == "examples" else [text(value), ""])]
    if part.kind.value == "admonition":
        return [f"**{part.title}:** {text(part.value.description)}", ""]
    rows = [f"**{_HEADS[part.kind.value]}**", ""]
    for entry in part.value:
        about = text(" ".join(entry.description.split()))
        name = getattr(entry, "name", "") or ""
        if part.kind.value == "raises":
            # `A, B: text` raises one of them.
            name = ", ".join(names.link(one.strip(), scope) for one in str(entry.annotation).split(","))
            rows.append(f"- {name}: {about}")
        else:
            rows.append(f"- `{name}`: {about}" if name else about)
    return [*rows, ""]


def described(item, names, scope):
    """The docstring of a function, class or module as lines."""
    if is_native(item):
        return [marked_up(native_doc(item.path), names, scope), ""]
    if not item.docstring:
        return []
    text, *examples = re.split(r"\n(?=>>> )", item.docstring.value, maxsplit=1)
    parts = griffe.Docstring(text, parent=item, parser="google", parser_options={"warnings": False}).parsed
    return [line for part in parts for line in section(part, names, scope)] + (example_and_rest(examples[0], names, scope) if examples else [])


def example_and_rest(text, names, scope):
    """From the first `>>>` on: examples end at empty lines, text stands between them."""
    lines = []
    for block in re.split(r"\n\n+", text):
        lines += example(block) if block.startswith(">>>") else [marked_up(block, names, scope), ""]
    return lines


def signature(item, name):
    if item.is_attribute:
        return f"{name}: {item.annotation}" if item.annotation else name
    if item.is_class:
        init = item.members.get("__init__")
        if init and not init.is_alias:
            return f"class {init.signature(name=name, return_type=False)}"
        bases = ", ".join(str(base) for base in item.bases if not str(base).startswith("_"))
        return f"class {name}({bases})" if bases else f"class {name}"
    return item.signature(name=name)


def broken(text):
    """A signature with a line for each parameter."""
    depth, start, lines = 0, text.index("(") + 1, [text[: text.index("(") + 1]]
    for at in range(start, len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == "," and depth == 0:
            lines.append("    " + text[start : at + 1].strip())
            start = at + 1
        elif depth < 0:
            return "\n".join([*lines, "    " + text[start:at].strip() + ",", text[at:]])
    return text


def without_self(text):
    return re.sub(r"\((self|cls)(, |(?=\)))", "(", text, count=1)


def entry(name, item, depth, names, scope):
    """Heading, signature and docstring."""
    heading = name.replace("_", "\\_")
    return [f"{'#' * depth} {heading} {{#{name}}}", "", "```python", shown(item, name), "```", "", *described(item, names, scope)]


def shown(item, name):
    text = without_self(signature(item, name.rpartition(".")[2]))
    # `_Array` is an alias that has the rules of its values in the stub.
    text = re.sub(r"\b_([A-Z]\w*)", r"\1", text)
    return broken(text) if len(text) > 100 and "(" in text else text


def public(module):
    """(name, item) of a module's `__all__`; errors and the like that another page has are left to it."""
    for name in (str(export).strip("'\"") for export in module.exports or []):
        item = module.members.get(name)
        if item is None:
            raise SystemExit(f"error: {module.path}.__all__ names {name}, which is not there")
        item = target_of(item)
        if item.is_module or name.startswith("__") or module.path == "forebay" and item.path.startswith("forebay.errors."):
            continue
        yield name, item


def page(module, names):
    """A module's page."""
    lines = [f"# {module.path}", "", *described(module, names, module.path)]
    for name, item in public(module):
        lines += entry(name, item, 2, names, module.path)
        for member, what in members(item) if item.is_class else ():
            lines += entry(f"{name}.{member}", what, 3, names, f"{module.path}.{name}")
    return "\n".join(lines)


def first_sentence(item):
    text = native_doc(item.path) if is_native(item) else item.docstring.value if item.docstring else ""
    return re.split(r"(?<=\.)\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]


def index(modules, names):
    """All names in a table for each module."""
    lines = ["# Python", "", "Every public name. Examples are in the guides.", ""]
    for module in modules:
        lines += [f"## [{module.path}]({module.path}.md)", "", "| | |", "|---|---|"]
        for name, item in public(module):
            about = marked_up(first_sentence(item), names, module.path).replace("|", "\\|")
            lines.append(f"| [`{name}`]({module.path}.md#{name}) | {about} |")
        lines.append("")
    return "\n".join(lines)


def write(folder):
    """Writes the pages, and gives the modules' names."""
    package = griffe.load("forebay", submodules=True, resolve_aliases=True, allow_inspection=False, search_paths=[inspect.getfile(native).rpartition("/forebay/")[0]])
    modules = [package if name == "forebay" else package[name.partition(".")[2]] for name in MODULES]
    names = Names()
    # Where a name has two places, the later module's page is the one that explains it.
    for module in modules:
        for name, item in public(module):
            names.add(module.path, name)
            for member, _ in members(item) if item.is_class else ():
                names.add(module.path, f"{name}.{member}")
    folder.mkdir(parents=True)
    for module in modules:
        (folder / f"{module.path}.md").write_text(page(module, names))
    (folder / "index.md").write_text(index(modules, names))
    return MODULES
