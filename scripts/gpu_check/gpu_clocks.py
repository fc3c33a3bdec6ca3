"""Clocks and power of the GPU while a program runs: what explains two speeds of one step."""

import contextlib
import shutil
import statistics

from check import Failed

EVERY_MS = 250
BUSY = 0.9  # of the highest power: less is the program's start, its plan and its end


def read_clocks(text):
    """Medians over the samples in which the GPU was busy; empty where there are none."""
    samples = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # "[N/A]", or a line that was cut off
            mhz, watts = map(float, line.split(","))
            samples.append((mhz, watts))
    highest = max((watts for _, watts in samples), default=0)
    busy = [sample for sample in samples if sample[1] >= BUSY * highest]
    return {"sm_mhz": statistics.median(mhz for mhz, _ in busy), "watts": statistics.median(watts for _, watts in busy)} if busy else {}


@contextlib.contextmanager
def watched_clocks(c):
    """A dictionary that has the figures once the block has ended; nothing is wrong where nvidia-smi says nothing."""
    figures, file = {}, c.work / "clocks.csv"
    # A line is in the file when it is there: what waits in a buffer is lost when the program is ended.
    by_line = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []
    command = [*by_line, "nvidia-smi", "-i", c.gpu, "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", str(EVERY_MS)]
    try:
        process = None if c.dry else c.start(command, file)
    except Failed:
        process = None
    try:
        yield figures
    finally:
        if process:
            c.end_one(process)
            figures |= read_clocks(file.read_text(errors="replace"))
