"""Stages that say what there is, and whether NCCL computes what it should."""

import os
import re
import shutil

from check import ROOT, Failed, Skipped, distance, tail
from models import BOUNDS, MODELS
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
    """One rank: the conformance cases and a recorded graph of collectives go through NCCL, a training over it is as without."""
    if c.dry:
        raise Skipped("NCCL moves GPU tensors only")
    summary = device_tests(c, "*NCCL*")
    model, env = MODELS["2 layers, head dim 64"], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29741"}
    alone = c.train("alone for nccl", c.device, 10, model)
    over = c.train("nccl", c.device, 10, model + ["--comm.backend", "nccl"], env=env)
    far = distance(over.curve(), alone.curve())
    text = f"Collectives of one rank: {summary}.\n\nTraining with comm.backend nccl: largest distance {far:.1e} to one without."
    if far > BOUNDS["bf16"]:
        raise Failed(text)
    return text, {"summary": summary, "largest_difference": far}
