"""Wrapping of comments: no line ends much too early, as after a formatter has broken it, and no line exceeds the width of
its kind of file, which no formatter fixes."""

import re

import pytest

from tidy import repository

WIDTH = 110
# A line that is shorter than it could be by this much was not wrapped by its author. A smaller gap may keep a formula or
# a name in one piece.
FAR_TOO_EARLY = 20

_COMMENT = re.compile(r"""^(?P<code>(?:[^"'/]|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/(?!/))*?)//(?P<text>.*)$""")
_SENTENCE_ENDS = (".", ":", "?", "!", ".)", ".\"")


# The column limit of clang-format, for code and comments. Protos have no formatter and are as wide as docs and Python.
WIDTHS = {".proto": 120}


def first_word(text):
    return text.split()[0]


def indent(text):
    return len(text) - len(text.lstrip())


def torn(lines):
    """Numbers of comment lines in mid-sentence that have much space left for the first word of the next line. In a list, a
    table or code, which are indented, only the rest of a full line counts, if the text continues with more indentation."""
    parsed = [_COMMENT.match(line) for line in lines]
    for number, (before, first, second) in enumerate(zip([None, *parsed], parsed, parsed[1:]), 1):
        if not first or not second or second["code"].strip() or len(first["code"]) != len(second["code"]):
            continue
        line, text, following = lines[number - 1], first["text"], second["text"]
        if not text.strip() or not following.strip() or line.endswith(_SENTENCE_ENDS):
            continue
        if indent(text) > 1:
            full = before and len(lines[number - 2]) + 1 + len(first_word(text)) > WIDTH
            if not full or indent(text) >= indent(following):
                continue
        elif indent(following) > 1:
            continue
        if len(line) + 1 + len(first_word(following)) <= WIDTH - FAR_TOO_EARLY:
            yield number


def test_no_comment_line_is_torn():
    faults = [f"{path}:{number}: the next line's first word fits here"
              for path in repository.own_cpp() + repository.with_suffix(".proto")
              for number in torn(repository.text(path).splitlines())]
    assert not faults, "\n".join(faults)


def too_long(lines, width):
    """Numbers of lines that exceed `width` because of a comment of more than one word: a link cannot be broken."""
    for number, line in enumerate(lines, 1):
        comment = _COMMENT.match(line)
        if comment and len(line) > width and len(comment["text"].split()) > 1:
            yield number


def test_no_comment_line_is_too_long():
    faults = []
    for path in repository.own_cpp() + repository.with_suffix(".proto"):
        width = WIDTHS.get(path.suffix, WIDTH)
        faults += [f"{path}:{number}: a comment ends beyond column {width}: wrap it"
                   for number in too_long(repository.text(path).splitlines(), width)]
    assert not faults, "\n".join(faults)


def continued_below(lines):
    """Numbers of lines that continue the comment on a field's line: protoc assigns them to the next field."""
    parsed = [_COMMENT.match(line) for line in lines]
    for number, (field, below) in enumerate(zip(parsed, parsed[1:]), 2):
        if field and below and field["code"].rstrip().endswith(";") and not below["code"].strip() and (
                len(below["code"]) > indent(field["code"])):
            yield number


def test_a_field_comment_is_on_its_line_or_above():
    faults = [f"{path}:{number}: put the whole comment above its field"
              for path in repository.with_suffix(".proto")
              for number in continued_below(repository.text(path).splitlines())]
    assert not faults, "\n".join(faults)


def test_finds_a_comment_that_continues_below_its_field():
    assert list(continued_below(["  int64 a = 1;  // Of this", "                // and that.", "  int64 b = 2;"])) == [2]
    assert not list(continued_below(["  int64 a = 1;  // Of this.", "  // Of the next.", "  int64 b = 2;"]))


LONG = "// A line that its author made as long as lines may be, since there is so much to say about what follows; a"


@pytest.mark.parametrize("lines, expected", [
    ([LONG, "// word", "// only, as a formatter leaves it."], [2]),
    (["  int x;  // What it is, and", "          // why."], [1]),
    (["// A sentence.", "// Another, on a line of its own."], []),
    (["// A table:", "//   one   of this", "//   two   of that"], []),
    (["//   4. As long as an item of a list may be, since there is so much to say about what it asks for, in all of its",
      "//   operation,", "//      and continues with more indentation."], [2]),
    (["// Ends here,", "int x;  // and another begins."], []),
    (['const char* url = "http://a', '// b'], []),
])
def test_finds_torn_lines_but_not_sentences_and_tables(lines, expected):
    assert list(torn(lines)) == expected


@pytest.mark.parametrize("lines, expected", [
    ([LONG + "xxx", LONG + "xxxx"], [2]),
    (["  int x;  " + LONG], [1]),
    (["// https://" + 120 * "a"], []),
    (['const char* text = "' + LONG + '";'], []),
])
def test_finds_long_comments_but_not_long_code(lines, expected):
    assert list(too_long(lines, WIDTH)) == expected
