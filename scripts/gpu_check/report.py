"""The report: Markdown for people, JSON for programs."""

import json
import os
import time


def table(header, rows):
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(out + ["| " + " | ".join(str(c).replace("|", "/") for c in row) + " |" for row in rows])


def goals_table(goals):
    return table(["goal", "measured", ""], [(g["goal"], g["measured"], g["verdict"]) for g in goals])


def name_of(dry):
    return "dry_run" if dry else time.strftime("gpu_check_%Y%m%d_%H%M%S", time.gmtime())


def replace(path, text):
    """Whole or not at all, whenever this is ended."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def write(path, command, results, goals, dry, seconds, under_way):
    """`path`: of both files, without its ending. `under_way`: what is not in it yet."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = [f"# gpu_check{' (dry run)' if dry else ''}: {when}", ""]
    if dry:
        text += ["**Nothing here ran on a GPU.** The CPU stood in for the device, with small shapes, to show that every stage of the "
                 "script works; no figure below is a measurement of anything.", ""]
    if under_way:
        text += [f"**Not at its end**: {under_way} was under way when this was written.", ""]
    text += [f"`{command}`, {seconds:.0f} s.", "",
             table(["stage", "result", "s", "at most"], [(r["stage"], r["status"], r["seconds"], r["budget"]) for r in results]), ""]
    if goals:
        text += ["## Goals", "", goals_table(goals), ""]
    text += [f"## {r['stage']}: {r['status']}\n\n{r['report']}\n" for r in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path.with_name(path.name + ".md"), "\n".join(text))
    data = {"when": when, "dry_run": dry, "seconds": seconds, "under_way": under_way, "goals": goals, "stages": results}
    replace(path.with_name(path.name + ".json"), json.dumps(data, indent=1, default=str) + "\n")
