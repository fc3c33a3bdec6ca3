"""Ranks with a GPU each, over NCCL, beside one rank: for a machine with several GPUs, of which all other stages look at one."""

import dataclasses
import os
import re

from check import Failed, TimedOut, distance, tail
from models import BOUNDS, MODELS
from nccl_speed import speed_over_nccl
from parity import read_memory
from report import table

MOST_RANKS = 8
SEQUENCES, STEPS, CHECKPOINT = 8, 10, 4
# A run that has so many seconds and does not end hangs; the first one starts every GPU.
SECONDS, FIRST_SECONDS = 60, 90
# What one rank does, too, and how far both may be apart.
ALONE = {"bf16": [], "fp8": ["--model.converters", "quantize.linear.float8"], "muon": ["--optimizer.name", "Muon"]}
APART = {"bf16": BOUNDS["bf16"], "fp8": BOUNDS["fp8"], "muon": BOUNDS["bf16"]}
FLOAT8 = "--quantize.linear.float8."
SAVES = ("--checkpoint.enable", "true", "--checkpoint.interval", str(CHECKPOINT), "--checkpoint.keep_latest_k", "0",
         "--checkpoint.async_mode", "async_with_pinned_mem")
GOES_ON = ("--checkpoint.enable", "true", "--checkpoint.load_step", str(CHECKPOINT), "--checkpoint.load_only", "true")


@dataclasses.dataclass(frozen=True)
class Way:
    """Of running the same layout: without what some machines, or ranks beside graphs, may not be up to."""
    name: str = ""
    keys: tuple = ()
    env: tuple = ()

    def __add__(self, other):
        return Way(f"{self.name} {other.name}".strip(), self.keys + other.keys, self.env + other.env)


AS_IT_IS, WITHOUT_GRAPHS = Way(), Way("without CUDA graphs", ("--training.cuda_graphs", "off"))
# In this order where not even the first layout works as it is; the others then go the way that works.
WAYS_OUT = (WITHOUT_GRAPHS,
            Way("without NVLink SHARP", env=(("NCCL_NVLS_ENABLE", "0"),)),
            Way("without cuMem", env=(("NCCL_CUMEM_ENABLE", "0"), ("NCCL_CUMEM_HOST_ENABLE", "0"))),
            Way("without peer-to-peer", env=(("NCCL_P2P_DISABLE", "1"),)),
            Way("connected when first used", env=(("NCCL_RUNTIME_CONNECT", "1"),)))
# For a later layout that fails: which of both brings it to its end says where to look.
WAYS_TO_TELL = (WITHOUT_GRAPHS, Way("with NCCL's kernels in the order of their calls", env=(("NCCL_LAUNCH_ORDER_IMPLICIT", "1"),)))


@dataclasses.dataclass(frozen=True)
class Layout:
    name: str
    pp: int = 1
    replicas: int = 1
    cp: int = 1
    tp: int = 1
    alone: str = "bf16"  # of ALONE
    keys: tuple = ()
    after: str = ""  # the layout from whose checkpoint it goes on

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
    Layout("FSDP, which saves", keys=SAVES),
    Layout("TP 2, from its checkpoint", tp=2, keys=GOES_ON, after="FSDP, which saves"),
    Layout("TP 4, which share key and value heads", tp=4),
    Layout("Muon", alone="muon"),
    Layout("TP 2, a padded vocabulary in FP8", tp=2, alone="fp8",
           keys=(FLOAT8 + "policy", "[{match: output, recipe: tensorwise}]", FLOAT8 + "pad_vocabulary", "true")),
    Layout("PP 2, CP 2, TP 2", pp=2, cp=2, tp=2),
)


def ranks_of(gpus):
    """A power of two."""
    return max(n for n in (1, 2, 4, MOST_RANKS) if n <= max(len(gpus), 1))


def limits(seconds):
    """Before a run has hung for its seconds, ranks say which of them keeps the others waiting."""
    return ["--comm.init_timeout_seconds", str(seconds - 20), "--comm.train_timeout_seconds", "20"]


def said_by_nccl(output):
    """Its version, by what GPUs reach each other, and whether their switch adds, from NCCL's own log."""
    found = {"version": r"NCCL version ([\w.+]+)", "paths": r"Channel \d+\S* : .* via (\w+/\w+)", "NVLS": r"NVLS multicast support is (not available|available)"}
    return {what: ", ".join(sorted(set(re.findall(pattern, output)))) for what, pattern in found.items()}


def topology(c):
    """How the machine's GPUs are joined; empty where nothing says it."""
    try:
        return c.run(["nvidia-smi", "topo", "-m"], check=False, seconds=15).strip()
    except Failed:
        return ""


class Ranks:
    """As many as there are GPUs, beside one."""

    def __init__(self, c, gpus):
        self.c, self.ranks, self.topology = c, ranks_of(gpus), topology(c)
        self.gpus = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[:self.ranks])}
        self.model = [*MODELS["2 layers, head dim 64"], "--training.seq_len", "512", "--training.global_batch_size", str(SEQUENCES)]
        self.curves, self.rows, self.layouts, self.wrong, self.nccl = {}, [], {}, [], None
        self.done = {}  # layouts that did as one rank does, and the names of those runs

    def train(self, layout, way):
        """The run of the ranks, and the losses of one in the same steps."""
        name, first = f"nccl {layout.name} {way.name}".strip(), CHECKPOINT + 1 if layout.after else 1
        if layout.after:
            self.c.copy_of(self.done[layout.after], name)
        if layout.alone not in self.curves:
            self.curves[layout.alone] = self.c.train(f"alone {layout.alone}", self.c.device, STEPS, self.model + ALONE[layout.alone]).curve()
        keys = [*self.model, *layout.options(self.ranks), *limits(self.seconds()), *way.keys, "--comm.backend", "nccl"]
        run = self.c.train(name, self.c.device, STEPS, keys, self.launch(), self.env(way), seconds=self.seconds(), first=first)
        return run, self.curves[layout.alone][first - 1:]

    def launch(self):
        return [self.c.program("ottava"), "launch", "-n", str(self.ranks), "--"]

    def env(self, way):
        """Of the first run NCCL says what it found, later only what is wrong."""
        return {"NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN" if self.rows else "INFO"), **self.gpus, **dict(way.env)}

    def seconds(self):
        return SECONDS if self.rows else FIRST_SECONDS

    def one(self, layout, way):
        """Whether it came to its end; None where time did not allow it."""
        name, has_time = f"{layout.name} {way.name}".strip(), self.c.seconds_left() > self.seconds()
        row, fault = [name, "not measured: no time was left", "", "", "", ""], ""
        try:
            run, alone = self.train(layout, way)
        except TimedOut as e:  # with its whole time, it hangs
            fault = str(e) if has_time else ""
        except Failed as e:  # the others run
            fault = tail(str(e), 30)
        else:
            far, graphs, memory = distance(run.curve(), alone), re.search(r"CUDA graphs: (on|off)", run.output), read_memory(run.output)
            row[1:] = (graphs.group(1) if graphs else "", f"{run.curve()[-1]:.4f}", f"{alone[-1]:.4f}", f"{far:.1e}",
                       f"{memory['besides']:.0f}" if memory else "")
            self.layouts[name] = {"graphs": row[1], "losses": run.curve(), "alone": alone, "largest_difference": far, "memory": memory}
            self.nccl = self.nccl or said_by_nccl(run.output)
            fault = "" if far <= APART[layout.alone] else f"too far, {far:.2e} > {APART[layout.alone]:.0e}"
        row[1] = "FAILED" if fault and name not in self.layouts else row[1]
        if not fault and name in self.layouts:
            self.done[layout.name] = f"nccl {name}"
        self.rows.append(row)
        self.wrong += [f"{name}: {fault}"] if fault else []
        self.c.so_far(*self.found())
        return name in self.layouts if fault or name in self.layouts else None

    def all(self, layouts):
        """The way that they went; None where there is none."""
        way = self.first(layouts[0])
        if way is None:
            self.wrong.append("Ranks trained over NCCL in none of these ways, so the other layouts were not tried.")
            return None
        tried = [(layouts[0], True), *((layout, self.one(layout, way)) for layout in layouts[1:] if layout.after in ("", *self.done))]
        for layout in [layout for layout, ended in tried if ended is not None and layout.name not in self.done]:
            for other in WAYS_TO_TELL:
                if not (self.goes(way, other) or self.c.seconds_left() < SECONDS):
                    self.one(layout, way + other)
        return way

    def first(self, layout):
        """The way that the others go; None where there is none."""
        if self.one(layout, AS_IT_IS) is not False:
            return AS_IT_IS
        return next((way for way in WAYS_OUT if not self.goes(AS_IT_IS, way) and self.one(layout, way)), None)

    def goes(self, way, other):
        """Whether `way` has what `other` would change."""
        return other == way or (other == WITHOUT_GRAPHS and bool(self.c.graphs_fault))

    def found(self):
        nccl = self.nccl or {}
        words = [f"NCCL {nccl['version']}" if nccl.get("version") else "", f"GPUs reach each other by {nccl['paths']}" if nccl.get("paths") else "",
                 f"NVLS is {nccl['NVLS']}" if nccl.get("NVLS") else ""]
        text = "; ".join([f"{self.ranks} ranks with a GPU each", *filter(None, words)]) + ":\n\n"
        text += table(["layout", "graphs", "loss", "one rank", "largest distance", "MiB besides the plan"], self.rows)
        text += f"\n\n```\n{self.topology}\n```" if self.topology else ""
        return text, {"ranks": self.ranks, "nccl": nccl, "topology": self.topology, "layouts": self.layouts}


def over_nccl(c, gpus):
    """(text, data, what is wrong) of as many ranks as there are GPUs."""
    ranks, with_float8 = Ranks(c, gpus), (c.compute_capability() or 90) >= 89
    way = ranks.all([layout for layout in LAYOUTS if layout.fewest() <= ranks.ranks and (layout.alone != "fp8" or with_float8)])
    text, data = ranks.found()
    if way is None:
        return text, data, ranks.wrong
    rates, data["speed"], wrong = speed_over_nccl(c, ranks.ranks, ranks.launch(), ranks.env(way), way.keys)
    return f"{text}\n\n{rates}", data, ranks.wrong + wrong
