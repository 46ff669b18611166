#!/usr/bin/env python3
"""Counts the public items of the facade, the crate `tiebreak`, in the pages that rustdoc makes of it.

    .ci/public-items.py [--bar N] [--list] [FOLDER]

FOLDER holds rustdoc's pages (default: target/doc/tiebreak, by `cargo doc --workspace --no-deps`, which makes the pages of the layer
crates before). Items are modules, types, traits, functions and constants; methods are functions and constants of types and traits,
without those of traits that a type implements. Variants and fields are counted apart. An item that two paths reach counts twice.

The exit status is 1 if items and methods are more than the bar, or if a signature has a type that the facade does not show. Rustdoc
links such a type to the page of its layer crate, or does not link it at all if it is hidden there.
"""

import argparse
import collections
import html
import pathlib
import re
import sys

KINDS = ["mod", "struct", "enum", "union", "trait", "type", "fn", "constant", "static", "macro"]


NOT_OWN = re.compile(
    'id="(?:trait-implementations|synthetic-implementations|blanket-implementations|deref-methods|foreign-impls|implementors)'
)


def own_part(text):
    """A page without the traits that its type implements."""
    return NOT_OWN.split(text)[0]


def count_page(text):
    """The numbers of methods, and of variants and fields, that a page documents itself."""
    own = own_part(text)
    methods = set(re.findall(r'<section id="((?:ty)?method\.[^"]+|associatedconstant\.[^"]+)"', own))
    parts = set(re.findall(r'<(?:section|span) id="(variant\.[^"]+|structfield\.[^"]+)"', own))
    return len(methods), len(parts)


DECLARATION = re.compile(
    r'<pre class="rust item-decl">.*?</pre>|<h[34] class="code-header">.*?</h[34]>'
    r'|<span id="(?:structfield|variant)\.[^"]*".*?</code>',
    re.S,
)
LAYER = re.compile(r'href="(?:\.\./)*((?:tiebreak|cuda)_[a-z_]+/[^"#]*/(?:struct|enum|union|trait|type)\.\w+)\.html')
# The names that a declaration introduces: an item's, a variant's at the begin of a line, an associated type's.
INTRODUCED = re.compile(r"\b(?:struct|enum|union|trait|type|const|fn)\s+\w+|^\s*[A-Z]\w*|\b[A-Z]\w*(?=\s+=)", re.M)
# Types of other packages, whose pages these are not, and GPUs behind aliases: users write `Gpu` and `Cuda`.
ELSEWHERE = {"Command", "Hash", "Self", "Adapter", "CudaDevice", "Device"}


def foreign_types(text):
    """The types in the declarations of a page that the facade does not show: of layer crates by their links, or hidden."""
    found = set()
    for code in DECLARATION.findall(own_part(text)):
        found.update(LAYER.findall(code))
        plain = re.sub(r'<a [^>]*>.*?</a>|<span class="comment">.*?</span>', "_", code, flags=re.S)
        plain = html.unescape(re.sub("<[^>]+>", " ", re.sub(r"<summary.*?</summary>", "\n", plain, flags=re.S)))
        plain = INTRODUCED.sub("_", re.sub(r'//.*|"[^"]*"|#\[[^\]]*\]', "", plain))
        found.update(set(re.findall(r"\b[A-Z][a-z]\w*", plain)) - ELSEWHERE)
    return found


def main():
    """Prints the counts of each module, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bar", type=int)
    parser.add_argument("--list", action="store_true", help="name every item")
    parser.add_argument("folder", nargs="?", default="target/doc/tiebreak", type=pathlib.Path)
    arguments = parser.parse_args()
    modules = collections.defaultdict(lambda: [0, 0, 0])
    names, foreign = [], collections.defaultdict(list)
    for page in sorted(arguments.folder.rglob("*.html")):
        folder = page.relative_to(arguments.folder).parts
        text = page.read_text(encoding="utf-8")
        # Pages of private modules' paths redirect to the public ones.
        if 'http-equiv="refresh"' in text:
            continue
        if page.name == "index.html":
            kind, name = "mod", folder[-2] if len(folder) > 1 else "tiebreak"
        else:
            kind, _, name = page.name.removesuffix(".html").partition(".")
            if kind not in KINDS:
                continue
        methods, parts = count_page(text)
        sums = modules[folder[0] if len(folder) > 1 else "(the crate)"]
        sums[0] += 1
        sums[1] += methods
        sums[2] += parts
        for link in foreign_types(text):
            foreign[link].append(str(page.relative_to(arguments.folder)))
        names.append(f"{'::'.join(folder[:-1])} {kind} {name}: {methods} methods")
    if not names:
        sys.exit(f"{arguments.folder} has no pages: run `cargo doc --no-deps --locked` first")
    if arguments.list:
        print("\n".join(names))
    for module, sums in sorted(modules.items()):
        print(f"{module:12} {sums[0]:5} items {sums[1]:5} methods {sums[2]:5} variants and fields")
    items, methods, parts = (sum(sums[i] for sums in modules.values()) for i in range(3))
    print(f"{'all':12} {items:5} items {methods:5} methods {parts:5} variants and fields")
    print(f"{items + methods} items and methods")
    for link, pages in sorted(foreign.items()):
        print(f"{link} is in the signatures of {pages[0]}, and the facade does not show it")
    if foreign:
        sys.exit(1)
    if arguments.bar is not None and items + methods > arguments.bar:
        sys.exit(f"more than {arguments.bar}: the facade re-exports what somebody outside uses, and nothing else")


if __name__ == "__main__":
    main()
