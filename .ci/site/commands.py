"""The page of all commands: what `--help` prints of each."""

import re
import subprocess


def _help(command):
    return subprocess.run([*command, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


def _below(text):
    """Commands that a help text lists."""
    listed = re.search(r"^Commands:\n(.*?)\n\n", text, re.M | re.S)
    return [name for name in re.findall(r"^  (\w\S*)", listed.group(1), re.M) if name != "help"] if listed else []


def _sections(command, name):
    text = _help(command)
    yield f"## {name}\n\n```text\n{text.rstrip()}\n```\n"
    for below in _below(text):
        yield from _sections([*command, below], f"{name} {below}")


def page(forebay):
    """Markdown of the commands of a binary."""
    return "\n".join(["# Commands\n", "Each prints this with `--help`.\n", *_sections([forebay], "forebay")])
