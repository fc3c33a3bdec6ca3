"""Stages that say what there is, and whether NCCL computes what it should."""

import os
import re
import shutil

from check import ROOT, Failed, Skipped, tail
from nccl_ranks import over_nccl
from op_tests import read_account


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


def device_tests(c, pattern):
    """Summary of the cases that match; Skipped where each of them was."""
    account = c.work / "matching.account"
    out = c.run([c.program("ottava_device_tests"), "--durations", "no", pattern], check=False,
                env={"OTTAVA_TEST_DEVICES": c.device, "OTTAVA_TEST_CASES": str(account)})
    summary = next((line.strip() for line in reversed(out.splitlines()) if "assertions" in line), tail(out, 3))
    if "All tests passed" not in out:
        failed = re.findall(r"^(.+?):\d+: FAILED", out, re.M)
        raise Failed(f"{summary}\n{tail(out, 40)}\nfailures in: {sorted(set(failed))}")
    verdicts = read_account(account.read_text(errors="replace")).values() if account.exists() else []
    if verdicts and all(v.result == "skipped" for v in verdicts):
        raise Skipped(f"every case was skipped: {next(iter(verdicts)).says}")
    return summary


def nccl(c):
    """One rank: the conformance cases and a recorded graph of collectives go through NCCL. On several GPUs ranks train over it."""
    if c.dry:
        raise Skipped("NCCL moves GPU tensors only")
    summary, gpus = device_tests(c, "*NCCL*"), c.gpus()
    text, data = f"Collectives of one rank: {summary}.", {"summary": summary}
    if len(gpus) < 2:
        return f"{text}\n\nThere is one GPU: several ranks have not been tried.", data
    ranks, data["ranks"], wrong = over_nccl(c, gpus)
    text += f"\n\n{ranks}"
    if wrong:
        raise Failed("\n\n".join([text, *wrong]), data)
    return text, data
