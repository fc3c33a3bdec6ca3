#!/usr/bin/env python3
"""What texts name exists: the files that a Markdown file links to or has in backticks, the configuration keys and commands in it,
the keys in the program's messages, the files that comments of the sources name by path, and the order of rooms that
check_includes.py keeps; and that texts which list what there is (flavors, formats, recipes, optimizers, numbers of metrics.jsonl,
files of configs) leave out none. README.md's commands are readme_test's.

    documents_test.py OTTAVA
"""
import fnmatch
import os
import pathlib
import re
import sys

from command_words import KEYS, ROOT, Program

FOLDERS = ("apps", "configs", "core", "fp8", "models", "parallel", "scripts", "tests")
SOURCE = r"(?:h|cpp|cu|cuh|py|sh|md|cmake|toml|yaml|js|sbatch)"
ELSEWHERE = ("cudnn.h", "cudnn_frontend.h", "outputs/*")  # NVIDIA's; what runs write
ANY = re.compile(r"(?:^|[/_-])(?:x|[A-Z]|DATE)(?:[/._-]|$)")  # `step-N/`, `x_test.cpp`: names of any step, of any file
SECTIONS = {key.split(".")[0] for key in KEYS}
problems = []


def files_of_tree():
    found = [name for name in os.listdir(ROOT) if (ROOT / name).is_file()]
    for folder in (*FOLDERS, ".ci"):
        found += [str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return found


FILES = files_of_tree()
NAMED = {str(p) for f in FILES for p in (pathlib.PurePosixPath(f), *pathlib.PurePosixPath(f).parents)}


def exists(name, folder):
    """`name` from the root, from `folder`, or as the end of a path; `*` stands for anything, a leading `_` for an end."""
    name = re.sub("^_", "*_", name.rstrip("/"))
    if ANY.search(name) or any(fnmatch.fnmatch(name, other) for other in ELSEWHERE):
        return True
    if name in NAMED or os.path.normpath(os.path.join(folder, name)) in NAMED:
        return True
    if "*" in name:
        return any(fnmatch.fnmatch(known, pattern) for known in NAMED for pattern in (name, "*/" + name))
    return any(known.endswith("/" + name) for known in NAMED)


def keys_in(text):
    """Configuration keys, or beginnings of them, that `text` seems to name."""
    dotted = re.findall(r"(?<![\w./-])[a-z_]+(?:\.[a-z_0-9]+)+(?![\w/(*.]*[\w/(*])", text)
    return [name for name in dotted if name.split(".")[0] in SECTIONS and not re.search(rf"\.(jsonl|{SOURCE})\b", name)]


def is_key(name):
    return any(key == name or key.startswith(name + ".") for key in KEYS)


def read(name):
    return (ROOT / name).read_text(errors="replace")


def check_document(name, program):
    """Returns how many files, keys and commands it names."""
    folder, found = os.path.dirname(name), [0, 0, 0]
    for number, line in enumerate(read(name).splitlines(), 1):
        faults = []
        if line.startswith("    "):
            if name != "README.md" and re.match(r" +((build/)?ottava [a-z]|scripts/)", line):
                found[2] += 1
                faults += program.faults_of_line(line.strip().rstrip("\\"))
        else:
            for link in re.findall(r"\]\(([^)#]+)", line):
                if "://" not in link:
                    found[0] += 1
                    if os.path.normpath(os.path.join(folder, link)) not in NAMED:
                        faults.append(f"links to {link}, which does not exist")
            for text in re.findall(r"`([^`]+)`", line):
                keys = keys_in(text)
                found[1] += len(keys)
                faults += [f"no such key: {key}" for key in keys if not is_key(key)]
                if re.fullmatch(rf"[\w./*-]*\w\.{SOURCE}|[\w./-]+/", text):
                    found[0] += 1
                    if not exists(text, folder):
                        faults.append(f"there is no {text}")
                elif re.match(r"(build/)?ottava [a-z]|scripts/\S+ ", text):
                    found[2] += 1
                    faults += program.faults_of_line(text.replace(" --section.key value", ""))
        problems.extend(f"{name}:{number}: {fault}" for fault in faults)
    return found


def check_comments(name):
    """Returns how many files its comments name."""
    found, mark = 0, "//" if name.endswith((".h", ".cpp", ".cu", ".cuh", ".js")) else "#"
    for number, line in enumerate(read(name).splitlines(), 1):
        comment = line.partition(mark)[2]
        for path in re.findall(rf"(?<![\w./*<{{$-])((?:{'|'.join(FOLDERS)})/[\w./-]*\.{SOURCE})(?!\w)", comment):
            found += 1
            if path not in NAMED:
                problems.append(f"{name}:{number}: there is no {path}")
        if name.startswith("configs/"):
            problems.extend(f"{name}:{number}: no such key: {key}" for key in keys_in(comment) if not is_key(key))
    return found


def check_messages(name):
    """Returns how many keys its texts name. Sections that parameters of models are named like (`attention.wo`) are left out, and
    the files of control groups; what ends with `_` is the beginning of several."""
    text, found = re.sub(r'"\s*\n\s*"', "", re.sub(r"//[^\n]*", "", read(name))), 0
    for literal in re.findall(r'"((?:\\.|[^"\\\n])*)"', text):
        for key in keys_in(literal):
            if key.split(".")[0] in ("attention", "model") or key.startswith(("metrics.rank", "cpu.max", "cpu.cfs_")):
                continue
            found += 1
            if not is_key(key) and not (key.endswith("_") and any(known.startswith(key) for known in KEYS)):
                problems.append(f"{name}: no such key: {key}")
    return found


def check_rooms(folder):
    rooms = re.search(rf'"{folder}": \[([^\]]+)\]', read("scripts/check_includes.py")).group(1)
    table = re.findall(r"^\| \[`(\w+)/`\]", read(f"{folder}/README.md"), re.M)
    if re.findall(r"\w+", rooms) != table:
        problems.append(f"{folder}/README.md: its rooms are {table}, check_includes.py has {rooms}")


def row_of_key(key):
    """Its choices and its meaning, in configs/keys.md."""
    row = re.search(rf"^\| `{re.escape(key)}` \| ([^|]*) \|[^|]*\|[^|]*\| ([^|]*) \|", read("configs/keys.md"), re.M)
    return re.findall(r"[\w.]+", row.group(1).replace(" or ", " ")), row.group(2)


def first_cells(name):
    """Of the tables in a document, without backticks."""
    return {cell.strip().strip("`") for cell in re.findall(r"^\|([^|]*)\|", read(name), re.M)}


def line_with(name, start):
    return next(line for line in read(name).splitlines() if start in line)


def check_lists(program):
    """Lists that a text repeats, in words of its own, from the one that the program has. Returns how many names were looked for."""
    def look(what, names, place, text):
        for name in names:
            has = name in text if isinstance(text, set) else re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", text)
            if not has:
                problems.append(f"{place}: {what} {name} is missing")
        return len(names)

    flavors = re.search(r"expected one of (.*), or hf", program.refusal_of(["plan", "--model.flavor", "of no model"])).group(1).split(", ")
    found = look("flavor", flavors, "README.md", line_with("README.md", "`model.flavor`: debug"))
    found += look("flavor", flavors, "models/README.md", first_cells("models/README.md"))
    found += look("flavor", flavors, "meaning of model.flavor", row_of_key("model.flavor")[1])
    formats, meaning = row_of_key("training.format")
    found += look("format", formats, "meaning of training.format", meaning)
    found += look("format", formats, "help of data inspect", program.help_of(["data", "inspect"]))
    recipes, _ = row_of_key("quantize.linear.float8.recipe_name")
    for place in ("fp8/README.md", "fp8/choosing_a_recipe.md"):
        found += look("recipe", recipes, place, first_cells(place))
    found += look("recipe", recipes, "scripts/results.sh", line_with("scripts/results.sh", "recipes=("))
    optimizers, meaning = row_of_key("optimizer.name")
    found += look("optimizer", optimizers, "meaning of optimizer.name", meaning)
    numbers = re.findall(r'(?:\{|emplace_back\()"([^"]+)", (?:static_cast<double>\()?\*?m(?:etrics)?\.', read("apps/report/metrics_reporter.cpp"))
    named = set(re.findall(r"`([^`]+)`", read("apps/report/README.md")))
    found += look("number", numbers, "apps/report/README.md", named)
    charted = re.findall(r'\.column = "([^"]+)"', read("apps/report_page/page.cpp"))
    found += look("number of a chart", charted, "apps/report/README.md", named)
    tables = [name for name in os.listdir(ROOT / "configs") if name.endswith((".yaml", ".toml"))]
    for name in tables:
        if not any(fnmatch.fnmatch(name, known) for known in re.findall(r"`([^`]+)`", read("configs/README.md"))):
            problems.append(f"configs/README.md: file {name} is missing")
    return found + len(tables)


def main():
    program, counts, comments, messages = Program(sys.argv[1]), [0, 0, 0], 0, 0
    for name in FILES:
        if name.endswith(".md") and name != "configs/keys.md" and not name.startswith("tests/gpu/reports/"):
            counts = [a + b for a, b in zip(counts, check_document(name, program))]
        elif re.search(rf"\.{SOURCE}$", name) and not name.startswith("tests/golden/"):
            comments += check_comments(name)
        if name.endswith(".cpp") and name.startswith(("apps/", "core/", "fp8/", "models/", "parallel/")):
            messages += check_messages(name)
    for folder in ("apps", "parallel"):
        check_rooms(folder)
    listed = check_lists(program)
    found = (f"{counts[0]} files, {counts[1]} keys and {counts[2]} commands in documents, {comments} files in comments, "
             f"{messages} keys in messages, {listed} names in lists")
    if counts[0] < 500 or counts[1] < 40 or counts[2] < 40 or comments < 60 or messages < 300 or listed < 80:
        problems.append(f"only {found}: does this test read them right?")
    print("\n".join(problems) or found)
    sys.exit(bool(problems))


main()
