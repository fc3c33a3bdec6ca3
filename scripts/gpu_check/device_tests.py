"""Stages that say what there is, and whether NCCL computes what it should."""

import os
import re
import shutil

from check import ROOT, Failed, Skipped, TimedOut, tail
from nccl_ranks import over_nccl, ranks_of
from op_tests import read_account

OF_NCCL = "*NCCL*"
# Those that have something to say on several GPUs.
OF_SEVERAL = f"{OF_NCCL},a rank that does not come*,rank 0's algorithms*,products that only some ranks*,ranks that share a GPU*"

OF_THREADS = ("Their ranks are threads of one process: where CUDA waits for all GPUs of a process, as to free memory, it can wait for a call "
              "that needs the thread that waits. Ranks that train are processes.")


def environment(c):
    data = {"ottava": c.run([c.program("ottava"), "--version"], check=False).strip(), "cpus": os.cpu_count()}
    if note := os.environ.get("OTTAVA_GPU_CHECK_NOTE"):  # of gpu_check.sh
        data["note"] = note
    build = ROOT / "BUILD"
    if build.exists():
        data["bundle"] = build.read_text().split("\n")[:-1]
    if "OTTAVA_CUDA_LIBRARIES" in c.environment:
        data["CUDA libraries of pip"] = c.environment["OTTAVA_CUDA_LIBRARIES"]
    data["PyTorch"] = {True: "is there", False: "is not there", None: "python does not say"}[c.has_torch()]
    if shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,power.limit,clocks.max.sm,compute_cap"
        data["gpu"] = c.run(["nvidia-smi", "-i", c.gpu, f"--query-gpu={query}", "--format=csv,noheader"], check=False, seconds=15).strip()
    elif not c.dry:
        raise Failed("nvidia-smi was not found: is there a driver?", data)
    text = "\n".join(f"- {k}: {v}" for k, v in data.items())
    if not c.dry and not c.gpu_gib():
        raise Failed(f"{text}\n\nnvidia-smi does not say how much memory the GPU has: shapes of a small one are measured", data)
    return text, data


def account_of(c):
    return c.work / "matching.account"


def verdicts_of(c):
    """Of the cases of device_tests() that have ended."""
    return list(read_account(account_of(c).read_text(errors="replace")).values()) if account_of(c).exists() else []


def device_tests(c, pattern, gpus=()):
    """Summary of the cases that match, on the GPU that is checked or on these; Skipped where each of them was."""
    account_of(c).unlink(missing_ok=True)
    # A kernel that is loaded when it is first called waits for all GPUs of the process, where NCCL's kernels wait for its thread.
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_MODULE_LOADING": "EAGER"} if gpus else {}
    out = c.run([c.program("ottava_device_tests"), "--durations", "no", pattern], check=False,
                env={"OTTAVA_TEST_DEVICES": c.device, "OTTAVA_TEST_CASES": str(account_of(c)), **visible})
    summary = next((line.strip() for line in reversed(out.splitlines()) if "assertions" in line), tail(out, 3))
    if "All tests passed" not in out:
        failed = re.findall(r"^(.+?):\d+: FAILED", out, re.M)
        raise Failed(f"{summary}\n{tail(out, 40)}\nfailures in: {sorted(set(failed))}")
    verdicts = verdicts_of(c)
    if verdicts and all(v.result == "skipped" for v in verdicts):
        raise Skipped(f"every case was skipped: {verdicts[0].says}")
    return summary


def cases_of_several(c, gpus):
    """(summary, what is wrong) of the cases with as many GPUs; they have what time is left."""
    try:
        return device_tests(c, OF_SEVERAL, gpus), []
    except TimedOut as e:
        verdicts, late = verdicts_of(c), str(e).splitlines()[0].split(":")[0]
        failed = [v.case for v in verdicts if v.result == "FAILED"]
        return f"{len(verdicts)} of them ended, {late}", [f"cases with {len(gpus)} GPUs failed: {', '.join(failed)}. {OF_THREADS}"] if failed else []
    except Failed as e:
        return "FAILED", [f"cases with {len(gpus)} GPUs: {e}\n{OF_THREADS}"]


def nccl(c):
    """On one GPU the conformance cases and a recorded graph of collectives go through NCCL. On several, ranks train over it first, and
    then the cases run with ranks that have a GPU each."""
    if c.dry:
        raise Skipped("NCCL moves GPU tensors only")
    gpus = c.gpus()
    if len(gpus) < 2:
        summary = device_tests(c, OF_NCCL)
        return f"Collectives of one rank: {summary}.\n\nThere is one GPU: several ranks have not been tried.", {"summary": summary}
    text, ranks, wrong = over_nccl(c, gpus)
    data = {"ranks": ranks}
    data["cases"], failed = cases_of_several(c, gpus[:ranks_of(gpus)])
    wrong += failed
    text += f"\n\nCases with {ranks_of(gpus)} GPUs: {data['cases']}."
    if wrong:
        raise Failed("\n\n".join([text, *wrong]), data)
    return text, data
