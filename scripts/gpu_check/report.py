"""The report: Markdown for people, JSON for programs."""

import json
import time


def table(header, rows):
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(out + ["| " + " | ".join(str(c).replace("|", "/") for c in row) + " |" for row in rows])


def goals_table(goals):
    return table(["goal", "measured", ""], [(g["goal"], g["measured"], g["verdict"]) for g in goals])


def write(folder, command, results, goals, dry, seconds):
    """Returns the path of both files without its ending."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    name = "dry_run" if dry else time.strftime("gpu_check_%Y%m%d_%H%M", time.gmtime())
    text = [f"# gpu_check{' (dry run)' if dry else ''}: {when}", ""]
    if dry:
        text += ["**Nothing here ran on a GPU.** The CPU stood in for the device, with small shapes, to show that every stage of the "
                 "script works; no figure below is a measurement of anything.", ""]
    text += [f"`{command}`, {seconds:.0f} s.", "",
             table(["stage", "result", "s", "at most"], [(r["stage"], r["status"], r["seconds"], r["budget"]) for r in results]), ""]
    if goals:
        text += ["## Goals", "", goals_table(goals), ""]
    text += [f"## {r['stage']}: {r['status']}\n\n{r['report']}\n" for r in results]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("\n".join(text))
    data = {"when": when, "dry_run": dry, "seconds": seconds, "goals": goals, "stages": results}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    return folder / name
