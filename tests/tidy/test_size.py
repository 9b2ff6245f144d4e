"""Small files and small functions (docs/STYLE.md): a file above the limit contains two concepts."""

import ast

import pytest

from tidy import cpp, repository

FILE_LINES = 700
FUNCTION_LINES = 70


def too_long(path, name, first, last):
    lines = last - first + 1
    if lines <= FUNCTION_LINES:
        return []
    return [f"{path}:{first}: {name} has {lines} lines, the limit is {FUNCTION_LINES}: name its steps and make each a "
            f"function, or turn a long switch into a table"]


def python_functions(path):
    for node in ast.walk(ast.parse(repository.text(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def test_files_stay_readable():
    code = (repository.own_cpp() + repository.with_suffix(".proto", ".py", ".bzl") + repository.build_files())
    counts = {path: repository.text(path).count("\n") for path in code}
    faults = [f"{path}: {lines} lines, the limit is {FILE_LINES}: it contains two concepts; give each its own trio"
              for path, lines in counts.items() if lines > FILE_LINES]
    assert not faults, "\n".join(faults)


def test_functions_stay_readable():
    faults = []
    for path in repository.own_cpp():
        for name, first, last in cpp.functions(repository.text(path)):
            faults += too_long(path, name, first, last)
    for path in repository.python_files():
        for name, first, last in python_functions(path):
            faults += too_long(path, name, first, last)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("source, expected", [
    ("int F(int a) {\n  return a;\n}\n", [("int F(int a)", 1, 3)]),
    ("namespace x {\nclass A : public B {\n  A() : b_(1) {\n  }\n};\n}\n", [("A() : b_(1)", 3, 4)]),
    ("TEST(A, B) {\n  if (x) {\n  }\n}\n", [("TEST(A, B)", 1, 4)]),
    ("// f() {\nconst char* s = \"g() {\";\nstd::vector<int> v = {F(1), 2};\n", []),
    ("template <typename T>\nstruct S {\n  T Get() const { return t; }\n};\n", [("T Get() const", 3, 3)]),
    ("#define M(x) \\\n  do { x; \\\n  } while (0)\nvoid F() { M(1); }\n", [("void F()", 4, 4)]),
    ("const auto s = R\"(void F() {)\";\nvoid G() {}\n", [("void G()", 2, 2)]),
])
def test_the_scan_finds_function_bodies(source, expected):
    assert cpp.functions(source) == expected
