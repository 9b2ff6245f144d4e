"""Files of the repository according to git, including new ones, and a reader of BUILD files."""

import ast
import functools
import subprocess

from harness.programs import ROOT


@functools.lru_cache(maxsize=None)
def files():
    """Tracked and new files, without ignored ones; relative paths."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT,
                            capture_output=True, check=True, text=True).stdout
    return sorted(ROOT.joinpath(name).relative_to(ROOT) for name in listed.split("\0")
                  if name and (ROOT / name).is_file())


def with_suffix(*suffixes):
    return [path for path in files() if path.suffix in suffixes]


@functools.lru_cache(maxsize=None)
def text(path):
    """Its text, or None for a binary file."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def own_cpp(*suffixes):
    """C++ and CUDA files of this project. Declarations of other projects' code in third_party/ keep their style."""
    return [path for path in with_suffix(*(suffixes or (".h", ".cc", ".cu", ".cuh"))) if path.parts[0] != "third_party"]


def python_files():
    return [path for path in files()
            if path.suffix == ".py" or (not path.suffix and (text(path) or "").startswith("#!/usr/bin/env python"))]


def build_files():
    return [path for path in files() if path.name == "BUILD"]


def calls(build_file):
    """The rule calls of a BUILD file as (rule, {attribute: syntax tree}, line). Starlark parses as Python."""
    found = []
    for node in ast.parse(text(build_file)).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            attributes = {keyword.arg: keyword.value for keyword in node.value.keywords if keyword.arg}
            found.append((node.value.func.id, attributes, node.lineno))
    return found


def strings(tree):
    """All string literals below a syntax tree: all values of `srcs` or `deps`, in every branch of a select."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
