"""Structure of the product: directories without cycles and with few headers, concepts without include cycles, classes
with few methods, and the number of product lines. Limits are alarms, not targets (docs/STYLE.md)."""

import collections
import re

from harness.programs import ROOT
from tidy import cpp, repository

HEADERS_PER_DIRECTORY = 20
METHODS_PER_CLASS = 40
# A change that exceeds it raises it here, and says in its commit why the product is worth the lines.
PRODUCT_LINES = 125835
# Stubs and benchmarks of a directory name every launcher, including those of its subdirectories.
OUTSIDE_THE_GRAPH = ("fsdp/kernels/kernels_none.cc", "fsdp/kernels/kernels_bench.cc")


def product():
    return [path for path in repository.own_cpp()
            if not path.stem.endswith("_test") and path.parts[0] not in ("tests", "examples")
            and not {"testing", "fuzz"} & set(path.parts)]


def concept(path):
    """A header and its .cc file are one concept."""
    return path.with_suffix("")


def includes():
    """[(file, included header)] within the product."""
    known = {str(path): path for path in product()}
    return [(path, known[name]) for path in product() if str(path) not in OUTSIDE_THE_GRAPH
            for name in re.findall(r'^#include "([^"]+)"', repository.text(path), re.MULTILINE) if name in known]


def cycles(edges):
    """Sets of nodes that reach each other, each sorted; Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def graph(name_of):
    edges = collections.defaultdict(set)
    for source, header in includes():
        a, b = str(name_of(source)), str(name_of(header))
        edges[b]  # Every node is a key.
        if a != b:
            edges[a].add(b)
    return edges


def methods(header):
    """{class: number of member functions that its body declares}."""
    code, counts = re.sub(r"\bFSDPD_[A-Z_]+\([^()]*\)", "", cpp.blank(repository.text(header))), {}
    for found in re.finditer(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+)[^;{()]*\{", code):
        depth, end = 1, found.end()
        body = []
        while depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            if depth == 1:
                body.append(";" if code[end] == "}" else code[end])
            end += 1
        declared = [re.sub(r"\b(?:public|private|protected)\s*:", "", each) for each in "".join(body).split(";")]
        counts[found[1]] = sum(bool(re.match(r"\s*(?!using\b|friend\b|static_assert\b)[^=]*?[\w~\])]+\s*\(", each))
                               and "std::function<" not in each.split("(")[0] for each in declared)
    return counts


def test_no_directories_include_each_other():
    found = cycles(graph(lambda path: path.parent))
    assert not found, f"these directories include each other: {found}"


def test_no_concepts_include_each_other():
    found = cycles(graph(concept))
    assert not found, f"these include each other; give what they share a header of its own: {found}"


def test_a_directory_has_few_headers():
    counts = collections.Counter(path.parent for path in repository.own_cpp(".h", ".cuh"))
    faults = [f"{path}: {count} headers, the limit is {HEADERS_PER_DIRECTORY}: split it by what its files decide"
              for path, count in counts.items() if count > HEADERS_PER_DIRECTORY]
    assert not faults, "\n".join(faults)


def test_header_names_are_unique():
    counts = collections.Counter(path.name for path in product() if path.suffix in (".h", ".cuh"))
    twice = sorted(name for name, count in counts.items() if count > 1)
    assert not twice, f"two headers of one name; name the decision that each owns: {twice}"


def test_classes_stay_small():
    faults = [f"{path}: {name} has {count} methods, the limit is {METHODS_PER_CLASS}"
              for path in product() if path.suffix == ".h" for name, count in methods(path).items() if count > METHODS_PER_CLASS]
    assert not faults, "\n".join(faults)


def test_a_class_has_one_source_file():
    """Each method is defined next to its declaration, in the header or the .cc file of the same name."""
    declared = collections.defaultdict(set)
    for path in product():
        if path.suffix == ".h":
            for name in methods(path):
                declared[name].add(path)
    faults = []
    for path in product():
        # x_none.cc is x.cc of a build without CUDA.
        if path.suffix == ".cc" and not path.stem.endswith("_none"):
            defined = set(re.findall(r"^(?:[A-Za-z][\w:<>*&, ]*\s)?(\w+)::~?\w+\(", cpp.blank(repository.text(path)), re.MULTILINE))
            for name in defined & set(declared):
                if not any(concept(path) == concept(header) for header in declared[name]):
                    faults.append(f"{path}: defines methods of {name}, a class of {sorted(map(str, declared[name]))}")
    assert not faults, "\n".join(faults)


def test_the_product_does_not_grow_unnoticed():
    lines = sum(repository.text(path).count("\n") for path in product())
    assert lines <= PRODUCT_LINES, f"{lines} product lines, the limit is {PRODUCT_LINES}"


def test_the_map_lists_every_directory():
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    section = page.split("\n## Directories\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w/]+)` \|", section, re.MULTILINE))
    real = {str(path.parent) for path in product() if path.suffix != ".cc"}
    assert listed == real, f"only in the map: {sorted(listed - real)}; not in the map: {sorted(real - listed)}"


def test_the_scan_counts_methods_and_finds_cycles():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    header = next(path for path in product() if str(path) == "fsdp/comm/communicator.h")
    assert methods(header)["Communicator"] > 5
