"""Which whole steps are measured on a GPU, by its memory, and which of them beside PyTorch's."""

import dataclasses

LARGE_GIB = 100  # from here on the whole 8B fits
KEPT_GIB = 1  # at least, of a GPU's memory: what the program leaves to libraries


@dataclasses.dataclass(frozen=True)
class Shape:
    flavor: str
    layers: int
    seq_len: int
    batch: int
    gib: float  # of `ottava plan` in BF16 where memory is short, which FP8 needs less than (gpu_check_commands_test.py)
    options: tuple = ()
    lighter: "Shape | None" = None  # the same with less memory, for a GPU where too little is free

    def fits(self, gib):
        return gib is None or self.gib <= gib - KEPT_GIB


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """(shape, precision) each, in order of importance: what time does not reach is not measured."""
    shapes: dict
    ours: list
    torch: list

    def raced(self):
        return [shape for shape in self.shapes if (shape, "bf16") in self.torch]

    def auto(self):
        return [shape for shape, precision in self.ours if precision == "auto"]


# In FP8: tensorwise by default; a recipe; "auto": where a measurement finds it faster; "fast": every product accumulates fast. "free":
# attention's backward need not repeat its bits, as PyTorch's does not.
PRECISIONS = ["bf16", "bf16 free", "fp8", "fp8 fast", "fp8 free", "rowwise", "delayed", "auto"]
LEAN = ("--optimizer.state_dtype", "bfloat16", "--activation_checkpoint.mode", "selective")
CHEAP = ("--activation_checkpoint.selective_ac_option", "op")  # is what is recomputed, in place of every second block
DEBUG = "debugmodel, seq 2048"


def benchmark_of(gib):
    """`gib`: all of the GPU's memory; None, where nothing says it, is little. The largest model has BF16 moments and
    recomputation; for the race, which PyTorch runs with FP32 moments, there is a stack of as many layers as leave room for its
    logits. Less memory takes fewer layers of both."""
    is_large = gib is not None and gib >= LARGE_GIB
    if is_large:
        lean, lean_layers, lean_gib, layers, stack_gib = "8B", 32, 124.0, 16, 94.0
    else:
        lean, lean_layers, lean_gib, layers, stack_gib = "8B x 16 layers with BF16 moments", 16, 69.5, 8, 56.3

    def lean_shape(more=()):
        """Recomputing what is cheap takes 128.6 GiB, and 131.6 with cuDNN's attention, of the 137.8 that an H200 leaves."""
        lighter = Shape("8B", lean_layers, 8192, 1, lean_gib, (*LEAN, *more))
        return dataclasses.replace(lighter, gib=128.6, options=(*lighter.options, *CHEAP), lighter=lighter) if is_large else lighter

    lean, micro, stack, short = (f"{lean}, seq 8192", f"{lean}, seq 8192, 4 micro-batches", f"8B x {layers} layers, seq 8192",
                                 f"8B x {layers} layers, seq 2048")
    shapes = {
        lean: lean_shape(),
        micro: lean_shape(("--training.global_batch_size", "4")),
        stack: Shape("8B", layers, 8192, 1, stack_gib),
        "1B, seq 8192": Shape("1B", 16, 8192, 2, 40.1),
        "3B, seq 8192": Shape("3B", 28, 8192, 1, 74.0),
        short: Shape("8B", layers, 2048, 4, stack_gib),
        "1B, seq 2048": Shape("1B", 16, 2048, 8, 40.1),
        "3B, seq 2048": Shape("3B", 28, 2048, 4, 74.0),
        DEBUG: Shape("debugmodel", 6, 2048, 16, 1.8),
    }
    # FP8 comes right after BF16 of its shape: both find the same clocks.
    ours = [(lean, "bf16"), (lean, "fp8"), (stack, "bf16"), (stack, "fp8"), (stack, "bf16 free"), (DEBUG, "bf16"), (lean, "rowwise"),
            (lean, "fp8 fast"), (lean, "delayed"), (lean, "fp8 free"), (stack, "auto"), (short, "bf16"), (short, "fp8"),
            ("1B, seq 8192", "bf16"), ("1B, seq 8192", "fp8"), ("1B, seq 8192", "bf16 free"), ("3B, seq 8192", "bf16"),
            ("3B, seq 8192", "fp8"), (micro, "bf16"), (micro, "fp8"), ("1B, seq 8192", "auto"), (DEBUG, "auto"), (short, "auto"),
            ("1B, seq 2048", "bf16"), ("1B, seq 2048", "fp8"), ("3B, seq 2048", "bf16"), ("3B, seq 2048", "fp8")]
    torch = [(stack, "bf16"), ("1B, seq 8192", "bf16"), ("3B, seq 8192", "bf16"), (short, "bf16"), (stack, "fp8"), ("1B, seq 2048", "bf16"),
             ("3B, seq 2048", "bf16"), ("1B, seq 8192", "fp8"), ("3B, seq 8192", "fp8"), (short, "fp8")]
    return Benchmark(shapes, ours, torch)
