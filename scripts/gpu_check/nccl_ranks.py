"""Ranks with a GPU each, over NCCL, beside one rank: for a machine with several GPUs, of which all other stages look at one."""

import dataclasses
import re

from check import Failed, TimedOut, distance, tail
from models import BOUNDS, MODELS
from parity import read_memory
from report import table

MOST_RANKS = 8
SEQUENCES, STEPS = 8, 10
SECONDS = 60  # a run that has so many and does not end hangs
# Before that, ranks say which of them keeps the others waiting.
LIMITS = ["--comm.init_timeout_seconds", "40", "--comm.train_timeout_seconds", "20"]
# What one rank does, too, and how far both may be apart.
ALONE = {"bf16": [], "fp8": ["--model.converters", "quantize.linear.float8"], "muon": ["--optimizer.name", "Muon"]}
APART = {"bf16": BOUNDS["bf16"], "fp8": BOUNDS["fp8"], "muon": BOUNDS["bf16"]}
FLOAT8 = "--quantize.linear.float8."


@dataclasses.dataclass(frozen=True)
class Layout:
    name: str
    pp: int = 1
    replicas: int = 1
    cp: int = 1
    tp: int = 1
    alone: str = "bf16"  # of ALONE
    keys: tuple = ()

    def fewest(self):
        return max(self.pp * self.replicas * self.cp * self.tp, 2)

    def options(self, ranks):
        """All ranks that the axes leave are FSDP's. A pipeline's micro-batches are parts of its local batch."""
        sequences = SEQUENCES * self.pp * self.cp * self.tp // ranks  # of the ranks that see the same
        degrees = {"pipeline_parallel": self.pp, "data_parallel_replicate": self.replicas, "context_parallel": self.cp, "tensor_parallel": self.tp}
        words = [word for axis, degree in degrees.items() if degree > 1 for word in (f"--parallelism.{axis}_degree", str(degree))]
        return [*words, "--training.local_batch_size", str(sequences if self.pp > 1 else min(sequences, 2)), *ALONE[self.alone], *self.keys]


# In order of importance.
LAYOUTS = (
    Layout("FSDP"),
    Layout("TP 2", tp=2),
    Layout("PP 2", pp=2),
    Layout("FSDP, weights and gradients in FP8", alone="fp8",
           keys=(FLOAT8 + "enable_fsdp_float8_all_gather", "true", FLOAT8 + "enable_float8_gradient_all_to_all", "true")),
    Layout("CP 2", cp=2),
    Layout("2 replicas", replicas=2),
    Layout("TP 4, which share key and value heads", tp=4),
    Layout("Muon", alone="muon"),
    Layout("TP 2, a padded vocabulary in FP8", tp=2, alone="fp8",
           keys=(FLOAT8 + "policy", "[{match: output, recipe: tensorwise}]", FLOAT8 + "pad_vocabulary", "true")),
    Layout("PP 2, CP 2, TP 2", pp=2, cp=2, tp=2),
)


def ranks_of(gpus):
    """A power of two."""
    return max(n for n in (1, 2, 4, MOST_RANKS) if n <= max(len(gpus), 1))


def over_nccl(c, gpus):
    """(text, data, what is wrong) of as many ranks as there are GPUs."""
    ranks, model = ranks_of(gpus), [*MODELS["2 layers, head dim 64"], "--training.seq_len", "512", "--training.global_batch_size", str(SEQUENCES)]
    launch, env = [c.program("ottava"), "launch", "-n", str(ranks), "--"], {"CUDA_VISIBLE_DEVICES": ",".join(gpus[:ranks])}
    with_float8 = (c.compute_capability() or 90) >= 89
    rows, data, wrong, curves = [], {}, [], {}

    def one(layout):
        """The run of the ranks, and the losses of one."""
        if layout.alone not in curves:
            curves[layout.alone] = c.train(f"alone {layout.alone}", c.device, STEPS, model + ALONE[layout.alone]).curve()
        return c.train(f"nccl {layout.name}", c.device, STEPS, [*model, *layout.options(ranks), *LIMITS, "--comm.backend", "nccl"],
                       launch, env, seconds=SECONDS), curves[layout.alone]

    for layout in LAYOUTS:
        if layout.fewest() > ranks or (layout.alone == "fp8" and not with_float8):
            continue
        has_time = c.seconds_left() > SECONDS
        try:
            run, alone = one(layout)
        except TimedOut as e:  # with its whole time, it hangs
            rows.append((layout.name, "FAILED" if has_time else "not measured: no time was left", "", "", "", ""))
            wrong += [f"{layout.name}: {e}"] if has_time else []
            continue
        except Failed as e:  # the others run
            rows.append((layout.name, "FAILED", "", "", "", ""))
            wrong.append(f"{layout.name}: {tail(str(e), 30)}")
            continue
        far, graphs, memory = distance(run.curve(), alone), re.search(r"CUDA graphs: (on|off)", run.output), read_memory(run.output)
        rows.append((layout.name, graphs.group(1) if graphs else "", f"{run.curve()[-1]:.4f}", f"{alone[-1]:.4f}", f"{far:.1e}",
                     f"{memory['besides']:.0f}" if memory else ""))
        data[layout.name] = {"graphs": rows[-1][1], "losses": run.curve(), "alone": alone, "largest_difference": far, "memory": memory}
        if not far <= APART[layout.alone]:
            wrong.append(f"{layout.name}: too far, {far:.2e} > {APART[layout.alone]:.0e}")
    text = f"{ranks} ranks with a GPU each:\n\n" + table(["layout", "graphs", "loss", "one rank", "largest distance", "MiB besides the plan"], rows)
    return text, {"ranks": ranks, "layouts": data}, wrong
