"""Stages in which one run is compared with another on the same device: several ranks, graphs, cuDNN's attention."""

import os
import shutil

from check import Failed, Skipped, distance, tail
from models import BOUNDS, MODELS
from report import table

CHECKPOINT, END = 4, 12
# How two ranks share a step of 4 sequences: their micro-batches, each sequence, or the layers.
SHARED = {"FSDP": [], "CP": ["--parallelism.context_parallel_degree", "2"],
          "PP": ["--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "4"]}
FLOAT8 = ["--model.converters", "quantize.linear.float8"]
SHARED_FLOAT8 = {  # beside one rank in FP8: what only several ranks have
    "FSDP with FP8 gradients": ["--quantize.linear.float8.enable_float8_gradient_all_to_all", "true"],
    "TP with a padded vocabulary in FP8": ["--parallelism.tensor_parallel_degree", "2", "--quantize.linear.float8.policy",
                                           "[{match: output, recipe: tensorwise}]", "--quantize.linear.float8.pad_vocabulary", "true"],
}


def shared_gpu(c):
    """NCCL takes no two ranks on one GPU; TCP and MPI do, through the host."""
    model = MODELS["2 layers, head dim 64"] + ["--training.global_batch_size", "4", "--training.seq_len", "512"]
    steps = 4 if c.dry else 10
    alone = c.train("alone", c.device, steps, model).curve()
    rows, data, wrong = [], {}, []

    def beside(name, extra, launcher, alone, bound):
        try:
            both = c.train(f"shared {name}", c.device, steps, model + extra, launcher).curve()
        except Failed as e:  # the others run
            rows.append((f"2 ranks on one device, {name}", "FAILED", f"{alone[-1]:.4f}", ""))
            wrong.append(f"{name}: {e}")
            return
        data[name] = far = distance(both, alone)
        rows.append((f"2 ranks on one device, {name}", f"{both[-1]:.4f}", f"{alone[-1]:.4f}", f"{far:.1e}"))
        if not far <= bound:
            wrong.append(f"{name}: too far, {far:.2e} > {bound:.0e}")

    launch = [c.program("ottava"), "launch", "-n", "2", "--"]
    for layout, keys in SHARED.items():
        beside(f"{layout} over tcp", ["--comm.backend", "tcp", *keys], launch, alone, BOUNDS["bf16"])
    has_module = any((folder / "lib/ottava/libottava_mpi.so").exists() for folder in (c.programs, c.programs.parent))
    if shutil.which("mpirun") and has_module:
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        mpirun = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", *as_root, c.program("ottava")]
        beside("FSDP over mpi", ["--comm.backend", "mpi"], mpirun, alone, BOUNDS["bf16"])
    else:
        rows.append(("2 ranks on one device, FSDP over mpi", "no mpirun here, or build_mpi.sh was not run", "", ""))
    if (c.compute_capability() or 90) >= 89:
        alone = c.train("alone fp8", c.device, steps, model + FLOAT8).curve()
        for name, keys in SHARED_FLOAT8.items():
            beside(f"{name} over tcp", ["--comm.backend", "tcp", *FLOAT8, *keys], launch, alone, BOUNDS["fp8"])
    text = table(["", "loss", "one rank", "largest distance"], rows)
    if wrong:
        raise Failed("\n\n".join([text, *wrong]), data)
    return text, data


def train_and_save(c, name, extra):
    """END steps with a checkpoint after CHECKPOINT, which holds the decisions of the run, algorithms of products included."""
    return c.train(name, c.device, END, [*extra, "--checkpoint.enable", "true", "--checkpoint.interval", str(CHECKPOINT),
                                         "--checkpoint.keep_latest_k", "0"])


def go_on(c, name, copy, extra):
    """The same steps from that checkpoint, with what was decided there. (`load_only`: it stays as it is for others.)"""
    c.copy_of(name, copy)
    return c.train(copy, c.device, END, [*extra, "--checkpoint.enable", "true", "--checkpoint.load_step", str(CHECKPOINT),
                                         "--checkpoint.load_only", "true"], first=CHECKPOINT + 1)


def after(training):
    return {step: (loss, training.grad_norms[step]) for step, loss in training.losses.items() if step > CHECKPOINT}


def graphs(c):
    """Two runs that each measured which algorithms are fast may differ by them; all go on from one checkpoint instead."""
    if c.graphs_fault:
        raise Failed(f"a training with CUDA graphs fails, and without them it does not:\n\n{c.graphs_fault}")
    model, modes = MODELS["2 layers, head dim 64"], {"eager": "off", "graphs": "auto" if c.dry else "on"}
    first = train_and_save(c, "graphs first", model + ["--training.cuda_graphs", "off"])
    runs = {mode: go_on(c, "graphs first", f"graphs {mode}", model + ["--training.cuda_graphs", value]) for mode, value in modes.items()}
    data = {mode: after(run) for mode, run in runs.items()} | {"first": after(first)}
    if data["eager"] != data["first"]:
        raise Failed(f"steps {CHECKPOINT + 1} to {END} from a checkpoint are not those of the run that saved it: {data}")
    if data["graphs"] != data["eager"]:
        raise Failed(f"eager and graphs differ after the same {CHECKPOINT} steps: {data}")
    if not c.dry and "CUDA graphs: on" not in runs["graphs"].output:
        raise Failed(f"the run with graphs does not say that they are on\n{tail(runs['graphs'].output)}")
    said = "without graphs, which are CUDA's: " if c.dry else ""
    return f"{said}steps {CHECKPOINT + 1} to {END} after one checkpoint, eager and as graphs: the same losses and gradient norms", data


def attention_of(c, model):
    """(row, data, what is wrong) of cuDNN's attention beside ours."""
    flash = c.train(f"flash {model}", c.device, END, MODELS[model])
    extra = MODELS[model] + ["--attention.backend", "cudnn"]
    try:
        cudnn = train_and_save(c, f"cudnn {model}", extra)
    except Failed as e:
        if "built without cuDNN" in str(e) or "cuDNN library" in str(e):
            raise Skipped(tail(str(e), 1)) from None
        raise
    again = go_on(c, f"cudnn {model}", f"cudnn again {model}", extra)
    far, same, wrong = distance(cudnn.curve(), flash.curve()), after(again) == after(cudnn), []
    if not far <= BOUNDS["bf16"]:
        wrong.append(f"{model}: {far:.2e} > {BOUNDS['bf16']:.0e}")
    if not same:
        wrong.append(f"{model}: cuDNN's attention does not repeat bit for bit")
    row = (model, f"{flash.curve()[-1]:.4f}", f"{cudnn.curve()[-1]:.4f}", f"{far:.1e}", "the same bits" if same else "other bits")
    return row, {"flash": flash.curve(), "cudnn": cudnn.curve(), "again": again.curve(), "largest_difference": far}, wrong


def attention(c):
    """cuDNN's attention against ours; their times stand side by side in the stage kernels."""
    if c.dry:
        raise Skipped("cuDNN is CUDA's")
    rows, data, wrong = [], {}, []
    for model in ("2 layers, head dim 64", "2 layers, head dim 128"):
        try:
            row, data[model], found = attention_of(c, model)
            rows.append(row)
            wrong += found
        except Failed as e:  # the other model runs
            rows.append((model, "", "FAILED", "", ""))
            wrong.append(f"{model}: {e}")
    text = table(["model", "flash loss", "cuDNN loss", "largest distance", "cuDNN again"], rows)
    if wrong:
        raise Failed("\n\n".join([text, *wrong]), data)
    return text, data
