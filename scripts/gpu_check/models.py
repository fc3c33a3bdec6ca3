"""What is trained, and how far a loss may be from the CPU's."""

STEPS = 50
# Relative, at any of the steps. FP32 and BF16 differ only by the order of sums; FP8 also where a value sits on a rounding boundary.
BOUNDS = {"f32": 1e-3, "bf16": 5e-3, "fp8": 1e-2}
# Against the CPU: what a wrong sum would show at once is asked of the first steps. Later ones say how a difference grows, most of all
# where the loss leaps: on an H200 FP8 was within 5e-4 for the first eight, and once 1.3e-2 apart in fifty.
EARLY_STEPS = 8
EARLY = {"f32": 1e-5, "bf16": 5e-4, "fp8": 2e-3}
LATE = {"f32": 1e-3, "bf16": 1e-2, "fp8": 4e-2}
MODELS = {
    "debugmodel": [],
    "2 layers, head dim 64": ["--model.n_layers", "2", "--model.dim", "256", "--model.n_heads", "4", "--model.n_kv_heads", "2"],
    "2 layers, head dim 128": ["--model.n_layers", "2", "--model.dim", "512", "--model.n_heads", "4", "--model.n_kv_heads", "2"],
}
RECIPES = ["tensorwise", "tensorwise_with_gw_hp", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]


def steps_of(c):
    return 4 if c.dry else STEPS


def recipes_of(capability):
    """Those that tensor cores of this compute capability multiply (90 for 9.0); all where a CPU stands in (None)."""
    if capability is None:
        return RECIPES
    if capability < 89:
        return []
    return (["tensorwise", "tensorwise_with_gw_hp", "delayed"]
            + (["rowwise", "rowwise_with_gw_hp", "blockwise"] if capability == 90 else [])
            + (["mxfp8"] if capability in (100, 103) else []))
