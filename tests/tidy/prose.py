"""Sentences of Markdown pages and the phrases of docs/STYLE.md that they must not contain.

Code blocks, inline code, quoted program output, comments and link targets are not prose."""

import re

MEDIAN, P95, LONGEST = 18, 30, 40  # Words of a sentence.
HELP = 79  # Characters of a flag's description, and of the first sentence about a command.

# A row of docs/cli.md: a flag, or a command with a link to its section. The generator adds the notes at the end.
FLAG = re.compile(r"\| `-.*?` \| [^|]*\| (.*) \|$")
COMMAND = re.compile(r"\| \[[^]]*\]\(#[^)]*\) \| (.*) \|$")
NOTES = re.compile(r"\.( Or `\w+`\.)?( (With|Not with) `[^.]*`\.)*$")

# Each with its replacement. STYLE.md explains them.
BANNED = {
    r"\bis no (?!longer|more|different|less|better)": "is not a, invalid, unknown",
    r"\b(?:is|are|was|were) none\b": "is not a, no ... exists",
    r"\b(?:go|goes|going|went) on\b": "continue, resume",
    r"\b(?:is|are|was|were) told\b": "receives, is informed of",
    r"\btells?\b|\btold\b": "reports, prints, shows",
    r"\bat once\b": "immediately; together",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\blearnt\b": "trained on",
    r"\bwhoever\b": "name the component or the user",
    r"\bstands? (?:in|beside|for itself|still)\b|\bstood\b": "is in, is blocked in, makes no progress",
    r"\bbesides?\b": "next to, in addition to",
    r"\balone\b": "only",
    r"\b(?:give|gives|gave) way\b": "is preempted",
    r"\bof which\b": "split the sentence",
    r"\bnobody\b": "name the component; no user, no rank",
    r"\bfolders?\b": "directory",
    r"\broom for\b|\bhas room\b": "capacity, memory, space",
    r"\breckon": "expect, count, estimate",
    r"\bspeaks?\b": "uses (a protocol), sends, reports",
    r"\bcome(?:s)? about\b": "happen",
    r"\bof (?:one's|its|your|their|ours) own\b": "its own x, a custom x",
    r"\bby hand\b(?! (?:for|with))": "manually",
    r"\bas it should be\b|\bas you want\b": "name the state",
    r"\bthe one that\b|\bthose that\b|\bthose who\b": "name the thing",
    r"(?:^|(?<=[.!?:] ))(?:Of|What|Who|Whose|Whoever) (?![^.?]*\?)": "subject first",
}


def paragraphs(markdown):
    """(line, text) of each paragraph, list item, heading and table cell."""
    text = re.sub(r"^(```|~~~).*?^\1[^\n]*$", lambda block: "\n" * block[0].count("\n"), markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    start, kept = 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        stripped = re.sub(r"^(?:>\s*|[-*+]\s+|\d+\.\s+)+", "", line.strip())
        new = stripped != line.strip() or line.startswith(("#", "|"))
        if (not stripped or new) and kept:
            yield start, " ".join(kept)
            kept = []
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))
                        if not re.fullmatch(r"\s*:?-*:?\s*", cell))
        elif line.startswith("#"):
            yield number, line.lstrip("# ")
        elif stripped:
            start = start if kept else number
            kept.append(stripped)


def plain(paragraph):
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
    text = re.sub(r"`+[^`]*`+", "X", text)
    text = re.sub(r'"[^"]*"', "X", text)
    return re.sub(r"[*_]{1,2}(\S[^*_]*)[*_]{1,2}", r"\1", text)


def sentences(markdown):
    """(line of the paragraph, sentence) of each sentence."""
    for line, paragraph in paragraphs(markdown):
        text = re.sub(r"\b(e\.g|i\.e|etc|vs|cf|No)\.", r"\1", plain(paragraph))
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z(\"'X])", text):
            if re.search(r"\w", sentence):
                yield line, sentence.strip()


def faults(markdown):
    """Violations of a page, as "LINE: message"."""
    found, lengths = [], []
    for line, sentence in sentences(markdown):
        words = len(re.findall(r"[\w'/%.-]*\w[\w'/%.-]*", sentence))
        lengths.append(words)
        if words > LONGEST:
            found.append(f"{line}: a sentence of {words} words (at most {LONGEST}): {sentence[:80]}")
        for pattern, instead in BANNED.items():
            for match in re.finditer(pattern, sentence, re.IGNORECASE if "(?:^|" not in pattern else 0):
                found.append(f"{line}: {match[0].strip()!r} (write: {instead}): {sentence[max(0, match.start() - 30):match.end() + 30]}")
    whole = sorted(length for length in lengths if length > 3)  # Not headings and cells of numbers.
    if whole:
        median, p95 = whole[len(whole) // 2], whole[min(len(whole) - 1, len(whole) * 95 // 100)]
        if median > MEDIAN or p95 > P95:
            found.append(f"0: the median sentence has {median} words (at most {MEDIAN}), the 95th percentile {p95} (at most {P95})")
    return found


def help_faults(reference):
    """Descriptions in docs/cli.md that are too long, or do not start with a verb or "With --flag:", as "LINE: message"."""
    found = []
    for number, line in enumerate(reference.replace("\\|", "/").split("\n"), 1):
        if flag := FLAG.match(line):
            text = NOTES.sub("", flag[1])
        elif command := COMMAND.match(line):
            text = re.split(r"(?<=\.) ", command[1])[0]
        else:
            continue
        if len(text) > HELP:
            found.append(f"{number}: {len(text)} characters of help (at most {HELP}): {text}")
        if re.match(r"(The|A|An|These|This|Form|Whether|How|What|Where|When) ", text):
            found.append(f"{number}: help that does not start with a verb: {text}")
    return found
