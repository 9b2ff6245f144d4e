"""Minimal C++ scanner: comments, literals and braces, to find the start and end of functions."""

import re

# In this order: a raw string may contain anything, a comment quotes, and a literal comment markers.
_TOKENS = re.compile(r'R"(?P<tag>[^()\s]{0,16})\(.*?\)(?P=tag)"'
                     r'|//[^\n]*|/\*.*?\*/'
                     r'|"(?:\\.|[^"\\\n])*"'
                     r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)
_TYPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def blank(source):
    """`source` with comments and literals replaced by spaces; line numbers do not change."""
    return _TOKENS.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)


def functions(source):
    """(head, first line, last line) of each outermost function body, including those of macros such as TEST()."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: re.sub(r"[^\n]", " ", match.group()),
                  blank(source), flags=re.MULTILINE)
    found, stack, head_start = [], [], 0
    for position, char in enumerate(code):
        if char == "{":
            head = code[head_start:position]
            inside = any(kind == "function" for kind, _, _ in stack)
            stack.append(("function" if not inside and _is_function(head) else "other", head, position))
            head_start = position + 1
        elif char == "}" and stack:
            kind, head, start = stack.pop()
            if kind == "function":
                # The lines of the head count: a signature of ten lines is ten lines to read.
                begin = start - len(head.lstrip())
                found.append((" ".join(head.split()), code.count("\n", 0, begin) + 1,
                              code.count("\n", 0, position) + 1))
            head_start = position + 1
        elif char == ";":
            head_start = position + 1
    return found


def _is_function(head):
    head = head.strip()
    if "(" not in head or head.endswith(("=", ",", "(", "return")):
        return False
    before_parameters = re.sub(r"\btemplate\s*<[^{}]*?>\s*", "", head).split("(")[0]
    return not _TYPE.search(before_parameters) or before_parameters.strip().startswith("struct ") and ")" in head
