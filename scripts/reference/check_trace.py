#!/usr/bin/env python3
"""What PyPI's HolisticTraceAnalysis makes of a trace, beside the trace's own account.

    python3 -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis
    /tmp/hta/bin/python scripts/reference/check_trace.py RUN/profile_traces/iteration_N

Exits with 1 where compute time, or the share of communication that computing hides, differs by more than a
microsecond per slice: HTA counts in whole microseconds.
"""
import gzip
import json
import pathlib
import sys

from hta.trace_analysis import TraceAnalysis


def main():
    folder = pathlib.Path(sys.argv[1])
    files, own, slices = {}, {}, {}
    for path in sorted(folder.glob("rank*_trace.json.gz")):
        trace = json.loads(gzip.open(path).read())
        rank = trace["distributedInfo"]["rank"]
        files[rank], own[rank] = str(path), trace["ottava"]["split_ns"]
        slices[rank] = sum(e.get("cat") == "kernel" for e in trace["traceEvents"])
    analysis = TraceAnalysis(trace_files=files, include_last_profiler_step=True)
    time = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    wrong = 0
    print(f"{'rank':>4} {'HTA compute us':>15} {'ours':>12} {'HTA whole us':>14} {'ours':>12} {'HTA hidden':>11} {'ours':>8}")
    for rank, s in own.items():
        hta = time.loc[rank]
        hidden = 100 * (1 - s["exposed"] / s["communication"]) if s["communication"] else 0
        hta_hidden = overlap.loc[rank].iloc[-1]
        print(f"{rank:>4} {hta['compute_time(us)']:>15.0f} {s['compute'] / 1e3:>12.1f} {hta['kernel_time(us)']:>14.0f} "
              f"{s['total'] / 1e3:>12.1f} {hta_hidden:>10.2f}% {hidden:>7.2f}%")
        wrong += abs(hta["compute_time(us)"] - s["compute"] / 1e3) > slices[rank]
        wrong += abs(hta["kernel_time(us)"] - s["total"] / 1e3) > 2
        wrong += abs(hta_hidden - hidden) > 100 * slices[rank] * 1e3 / max(1, s["communication"]) + 0.01
    print("equal" if not wrong else f"{wrong} numbers differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
