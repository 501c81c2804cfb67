"""Links and headings of Markdown pages, as GitHub and mdBook see them."""

import re

# [text](target "title"), ![text](target), [name]: target, href="target", src="target"
_LINK = re.compile(
    r"""(?P<before>\]\(\s*<?|^\ {0,3}\[[^\]\n]+\]:\s+<?|<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=["'])"""
    r"""(?P<target>[^\s<>"')]+)""",
    re.M,
)
_FENCE = re.compile(r"^ {0,12}(```+|~~~+).*?^ {0,12}\1 *$", re.M | re.S)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.M)
_ANCHOR = re.compile(r"""<\w+[^>]*\b(?:id|name)=["']([^"']+)["']""")


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def without_code(text):
    """The text with blanks for code and comments, so that places and lines stay."""
    return _CODE.sub(_blank, _COMMENT.sub(_blank, _FENCE.sub(_blank, text)))


def links(text):
    """(place, target) of each link and picture."""
    return [(match.start("target"), match.group("target")) for match in _LINK.finditer(without_code(text))]


def replace_links(text, change):
    """The text with `change(target)` in place of each target."""
    done, at = [], 0
    for place, target in links(text):
        done += [text[at:place], change(target)]
        at = place + len(target)
    return "".join([*done, text[at:]])


def anchors(text):
    """What a link may have behind `#`: a heading's letters, digits, `-` and `_`, numbered where they come again."""
    plain = _FENCE.sub(_blank, text)
    found, seen = set(_ANCHOR.findall(plain)), {}
    for heading in _HEADING.findall(plain):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{number}" if number else slug)
    return found


def title(text):
    """The first heading."""
    heading = _HEADING.search(_FENCE.sub(_blank, text))
    return heading.group(1) if heading else None
