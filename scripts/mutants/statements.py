"""Places of a source file that can be broken, and how:

    index       an index or a loop's bound one too large or too small
    wait        a wait, join or synchronise dropped
    collective  a collective left out
    add         an addition left out
    scale       a scale and its inverse swapped
    condition   a condition negated
    stale       an invalidation skipped
    buffer      an event, barrier or lock of a shared buffer skipped
"""

import hashlib
import re


def blanked(text):
    """The text with comments, literals and preprocessor lines as spaces: same length, same lines."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def closing(code, at):
    """Index of the bracket that closes the one at `at`, or -1."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] in "([{":
            depth += 1
        elif code[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    return -1


def statement(code, at):
    """[begin, end) of the expression statement around `at`, its `;` included; None inside parentheses and in declarations."""
    i, depth = at, 0
    while i > 0:
        c = code[i - 1]
        if c in ")]" or (c == "}" and depth):
            depth += 1
        elif c in "([" or (c == "{" and depth):
            if depth == 0:
                return None
            depth -= 1
        elif depth == 0 and c in ";{}":
            break
        i -= 1
    while True:
        i += len(code[i:]) - len(code[i:].lstrip())
        if header := re.compile(r"(if|for|while)\s*(constexpr\s*)?\(").match(code, i):
            i = closing(code, header.end() - 1) + 1
        elif header := re.compile(r"(else|do)\b|(case\b[^:;]*|default\s*):(?!:)").match(code, i):
            i = header.end()
        else:
            break
    if i > at:
        return None
    end, depth = i, 0
    while end < len(code) and not (code[end] == ";" and depth == 0):
        depth += (code[end] in "([{") - (code[end] in ")]}")
        if depth < 0:
            return None
        end += 1
    text = code[i:end]
    if re.match(r"(return|throw|const|auto|static|using|break|continue|delete|constexpr|struct|class|enum|template|typename|namespace|friend|virtual|"
                r"explicit|inline|operator|try|catch|public|private|protected|extern|mutable|typedef|goto|switch|asm)\b", text):
        return None
    if re.match(r"[\w:]+(<[^;=]*>)?(\s*[&*]+\s*|\s+)\w+\s*([=({;,\[:]|$)", text) or re.match(r"[:,]", text):
        return None
    return (i, end + 1)


def computed_by_the_compiler(code):
    """Spans of the initial values of constants, where no switch reaches."""
    for match in re.finditer(r"\bconstexpr\b[^;{}()]*=", code):
        end, depth = match.end(), 0
        while end < len(code) and not (code[end] == ";" and depth == 0):
            depth += (code[end] in "([{") - (code[end] in ")]}")
            end += 1
        yield match.start(), end


def mutants_of(path, text):
    """(rule, begin, end, text before, replacement with {k}) of every place where a rule applies."""
    code = blanked(text)

    def dropped(rule, pattern, unless=r"$^"):
        for match in re.finditer(pattern, code):
            span = statement(code, match.start())
            if span and not re.search(unless, code[span[0]:span[1]]):
                original = text[span[0]:span[1]]
                yield rule, *span, original, "if (ottava_mutant({k})) {{}} else " + "{o}"

    yield from dropped("wait", r"(?<!fmt::)\b(wait\w*|join|synchroni[sz]e\w*|fsync|flush)\s*\(", r"fmt::|^lock|changed_?\.wait")
    yield from dropped("collective", r"\b(all_reduce|reduce_scatter|all_gather|all_to_all|broadcast|gather\w*|share\w*|exchange\w*)\s*\(")
    yield from dropped("add", r"(?<=\s)\+=(?=\s)|\b(sum_into|add|accumulate\w*)\s*\(")
    yield from dropped("stale", r"\b\w*(current|valid|ready|changed|stale|dirty|fresh|made|done|version|generation|pending|cached|filled|known|seen|has_)\w*\s*=(?==)?(?!=)|"
                                r"\.(clear|reset)\(\)|\b\w*(invalidate|changed|forget)\w*\(|=\s*(nullptr|\{\s*\}|false)\s*;")
    yield from dropped("buffer", r"\b(record|wait_event|__sync\w+|barrier\w*|fence\w*|cp_async\w*|lock|unlock|notify\w*|(?<=\.)store|release)\s*\(", r"recorder\(\)")

    for match in re.finditer(r"(?<=[\w\])])\[", code):
        end = closing(code, match.start())
        inside = code[match.end():end].strip()
        before = re.split(r"[;{}(]", code[max(0, match.start() - 200):match.start()])[-1].strip()
        is_declared = re.match(r"(?!return\b|else\b|case\b)[\w:<>,*&\s]+[\s*&>]\w+$", before) or re.search(r"\bnew\b|\bdelete$|operator$", before)
        if end < 0 or not inside or "\n" in inside or is_declared or re.search(r"[,=\"{;]|^&|^this$|\.\.\.", inside) or text[match.end():end].count('"'):
            continue
        sign = "+-"[int(hashlib.sha256((path + before + inside).encode()).hexdigest(), 16) % 2]
        yield "index", match.start(), end + 1, text[match.start():end + 1], f"[ottava_mutant({{k}}) ? ({inside}) {sign} 1 : ({inside})]"
    for match in re.finditer(r"\bfor \([^;()]*;\s*\w+ <=? ([^;]+);", code):
        bound = match.group(1).strip()
        if "\n" not in bound:
            yield "index", match.start(1), match.end(1), text[match.start(1):match.end(1)], f"(ottava_mutant({{k}}) ? ({bound}) - 1 : ({bound}))"

    for match in re.finditer(r" [*/] (\*?(?:[\w]+(?:\.|->|::))*\w*(?:scale|inverse|reciprocal|rstd)\w*(?:\[[^\[\]\n]*\]|\([^()\n]*\))*)(?![\w(\[.]|->)", code):
        operand = text[match.start(1):match.end(1)]
        yield "scale", match.start(1), match.end(1), operand, f"(ottava_mutant({{k}}) ? 1.0f / ({operand}) : ({operand}))"

    for match in re.finditer(r"\b(if|while) \(", code):
        end = closing(code, match.end() - 1)
        inside = text[match.end():end]
        if end > 0 and not re.search(r";|[\w>&*] \w+ = ", code[match.end():end]) and "{" not in inside:
            yield "condition", match.end(), end, inside, "ottava_mutant({k}) != static_cast<bool>({o})"
