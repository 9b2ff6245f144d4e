"""Text that is specific to one machine, targets of links, and format of code and BUILD files."""

import ast
import re
import shutil
import subprocess

import pytest

from harness.programs import ROOT
from tidy import repository

# Split, so that this file does not match.
_HOMES = ["ro" + "ot", "ho" + r"me/\w+", "Us" + r"ers/\w+", "wo" + "rk", "fa" + "rm"]
_HOSTS = ["py" + r"pi\.", r"files\.python" + "hosted", "regis" + r"try\.npm", r"deb\.deb" + "ian", r"proxy\.go" + "lang",
          "arti" + "factory", r"conda\." + "anaconda"]
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:" + "|".join(_HOMES) + ")/")
PACKAGE_HOSTS = re.compile("|".join(_HOSTS))


def each_line():
    for path in repository.files():
        for number, line in enumerate((repository.text(path) or "").splitlines(), 1):
            yield path, number, line


def lines_with(pattern):
    return "\n".join(f"{path}:{number}: {line.strip()[:120]}" for path, number, line in each_line()
                     if pattern.search(line))


def test_no_path_of_one_machine():
    faults = lines_with(MACHINE_PATHS)
    assert not faults, f"paths of one machine; use a flag or the environment instead:\n{faults}"


def test_no_package_host():
    faults = lines_with(PACKAGE_HOSTS)
    assert not faults, f"package hosts; the ordinary clients know their registry, also behind a mirror:\n{faults}"


def anchors(markdown):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_docs_have_a_target():
    faults = []
    for path in repository.with_suffix(".md"):
        page = re.sub(r"```.*?```|`[^`\n]*`", "", repository.text(path), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", page):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            file = (ROOT / path).parent / target if target else ROOT / path
            if not file.exists():
                faults.append(f"{path}: link to {link}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                faults.append(f"{path}: link to {link}: no such heading")
    assert not faults, "\n".join(faults)


def test_code_is_formatted():
    # Debian 12's version, which third_party/debian.txt installs: versions format differently.
    formatter = shutil.which("clang-format-14")
    if not formatter:
        pytest.skip("clang-format-14 is not installed: deploy/setup does")
    paths = [str(path) for path in repository.own_cpp()]
    done = subprocess.run([formatter, "--dry-run", "-Werror", "--ferror-limit=1", *paths], cwd=ROOT, capture_output=True,
                          text=True)
    wrong = sorted(set(re.findall(r"^(\S+?):\d+", done.stderr, re.MULTILINE)))
    assert done.returncode == 0, f"run: clang-format-14 -i {' '.join(wrong)}"


def build_faults(path):
    source = repository.text(path)
    if source and (not source.endswith("\n") or source.endswith("\n\n")):
        yield f"{path}: must end with one newline"
    for number, line in enumerate(source.splitlines(), 1):
        if line != line.rstrip() or "\t" in line:
            yield f"{path}:{number}: tab or trailing space"
        if (len(line) - len(line.lstrip(" "))) % 4 and not line.lstrip().startswith("#") and '"""' not in source:
            yield f"{path}:{number}: indent by 4"
        if "'" in line.split("#")[0] and '"' not in line and '"""' not in source:
            yield f"{path}:{number}: strings take double quotes"
    seen_rule = False
    for node in ast.parse(source).body:
        call = node.value.func.id if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
        if call == "load" and seen_rule:
            yield f"{path}:{node.lineno}: load() belongs to the top"
        seen_rule |= call not in ("", "load")
    for rule, attributes, line in repository.calls(path):
        names = list(attributes)
        if "name" in names and names[0] != "name":
            yield f"{path}:{line}: {rule}: name comes first"
        for attribute in ("srcs", "hdrs", "deps"):
            listed = [element.value for element in getattr(attributes.get(attribute), "elts", [])
                      if isinstance(element, ast.Constant)]
            for twice in sorted({each for each in listed if listed.count(each) > 1}):
                yield f"{path}:{line}: {rule}: {twice} twice in {attribute}"


def test_build_files_have_one_style():
    faults = [fault for path in repository.build_files() for fault in build_faults(path)]
    assert not faults, "\n".join(faults)
