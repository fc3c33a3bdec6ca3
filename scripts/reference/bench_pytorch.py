#!/usr/bin/env python3
"""Llama training steps in PyTorch, as fast as its own parts make them: torch.compile of each block and of the loss (as
TorchTitan does; --compile model: of everything at once, which takes minutes), scaled_dot_product_attention, fused AdamW,
BF16 products of FP32 weights, FP8 ones (torch._scaled_mm, tensorwise dynamic scales) or everything in FP32. The other side of
scripts/gpu_check.sh's benchmark: same shapes, same batch, same machine. A JSON line for each run, as soon as it is done:

    bench_pytorch.py --run 8B:16:8192:1:bf16 --run 8B:16:8192:1:fp8        # flavor:layers:seq_len:batch:precision
    bench_pytorch.py --attention 2,32,8,8192,128                           # batch, heads, kv heads, seq_len, head dim
    bench_pytorch.py --device cpu --compile off --run debugmodel:2:64:1:bf16
    bench_pytorch.py --device cpu --compile model --run 60M:8:1024:4:bf16  # configs/llama_60m.yaml; scripts/pytorch_race.py
"""

import argparse
import gc
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

FLAVORS = {
    "debugmodel": dict(dim=256, layers=6, heads=16, kv_heads=16, ffn_dim=768, vocab=2048),
    "60M": dict(dim=768, layers=8, heads=12, kv_heads=12, ffn_dim=2048, vocab=2560),
    "1B": dict(dim=2048, layers=16, heads=32, kv_heads=8, ffn_dim=8192, vocab=128256),
    "3B": dict(dim=3072, layers=28, heads=24, kv_heads=8, ffn_dim=8192, vocab=128256),
    "8B": dict(dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14336, vocab=128256),
}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def to_fp8(x, dtype):
    scale = LARGEST[dtype] / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scale.reciprocal()


def scaled_mm(a, b, scale_a, scale_b, fast):
    """a row-major, b column-major."""
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


class Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x8, sx = to_fp8(x, torch.float8_e4m3fn)
        w8, sw = to_fp8(w, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, sx, w8, sw)
        return scaled_mm(x8, w8.t(), sx, sw, True)

    @staticmethod
    def backward(ctx, dy):
        x8, sx, w8, sw = ctx.saved_tensors
        dy8, sdy = to_fp8(dy, torch.float8_e5m2)
        dx = scaled_mm(dy8, w8.t().contiguous().t(), sdy, sw, False)
        dw = scaled_mm(dy8.t().contiguous(), x8.t().contiguous().t(), sdy, sx, False)
        return dx, dw


COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


class Linear(nn.Module):
    """x is in the precision's type already: Llama.forward."""

    def __init__(self, inputs, outputs, precision):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.normal_(self.weight, std=0.02)
        self.precision = precision

    def forward(self, x):
        w = self.weight.to(x.dtype)
        if self.precision != "fp8":
            return F.linear(x, w)
        return Fp8Linear.apply(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], -1)


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5) * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c, precision):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c["heads"], c["kv_heads"], c["dim"] // c["heads"]
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.norm1, self.norm2 = Norm(c["dim"]), Norm(c["dim"])
        self.wqkv, self.wo = Linear(c["dim"], rows, precision), Linear(c["dim"], c["dim"], precision)
        self.w13, self.w2 = Linear(c["dim"], 2 * c["ffn_dim"], precision), Linear(c["ffn_dim"], c["dim"], precision)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        qkv = self.wqkv(self.norm1(x)).view(b, t, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.w13(self.norm2(x)).chunk(2, dim=-1)
        return x + self.w2(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, c, seq_len, precision, tied):
        super().__init__()
        self.dtype = COMPUTE[precision]
        self.embedding = nn.Embedding(c["vocab"], c["dim"])
        self.blocks = nn.ModuleList(Block(c, precision) for _ in range(c["layers"]))
        self.norm = Norm(c["dim"])
        self.output = Linear(c["dim"], c["vocab"], "fp32" if precision == "fp32" else "bf16")
        if tied:
            self.output.weight = self.embedding.weight
        d = c["dim"] // c["heads"]
        angles = torch.outer(torch.arange(seq_len).float(), 500000.0 ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.embedding(tokens).to(self.dtype)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def flops_per_token(c, seq_len):
    """6 (N - N_embedding) + 12 L H D T: what ottava's log calls mfu counts the same."""
    d = c["dim"] // c["heads"]
    block = c["dim"] * d * (2 * c["heads"] + 2 * c["kv_heads"]) + 3 * c["dim"] * c["ffn_dim"]
    return 6 * (c["layers"] * block + c["dim"] * c["vocab"]) + 12 * c["layers"] * c["heads"] * d * seq_len


def compiled(model, how):
    """`blocks`: all blocks share what is compiled for the first, and a shape costs seconds instead of a minute."""
    if how == "model":
        return torch.compile(model)
    if how == "blocks":
        for block in model.blocks:
            block.compile()
        model.loss = torch.compile(model.loss)
    return model


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(device, work):
    synchronize(device)
    began = time.perf_counter()
    result = work()
    synchronize(device)
    return time.perf_counter() - began, result


def train(run, a):
    """Figures of one run, "flavor:layers:seq_len:batch:precision"."""
    flavor, layers, seq_len, batch, precision = run.split(":")
    if precision not in COMPUTE:
        raise ValueError(f"precision '{precision}': expected one of {', '.join(COMPUTE)}")
    c, seq_len, batch = {**FLAVORS[flavor], "layers": int(layers)}, int(seq_len), int(batch)
    torch.manual_seed(0)
    with torch.device(a.device):
        model = Llama(c, seq_len, precision, flavor in ("1B", "3B"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = compiled(model, a.compile)
    text = torch.randint(0, c["vocab"], (batch, seq_len + 1), device=a.device)

    def step():
        loss = forward(text[:, :-1], text[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    warmup, first = timed(a.device, step)
    warmup += timed(a.device, step)[0]
    seconds, last = zip(*(timed(a.device, step) for _ in range(a.steps)))
    median, tokens = statistics.median(seconds), batch * seq_len
    return {"precision": precision, "compiled": a.compile, **c, "seq_len": seq_len, "batch": batch, "seconds_per_step": median,
            "tokens_per_second": tokens / median, "tflops": flops_per_token(c, seq_len) * tokens / median / 1e12,
            "memory_gib": torch.cuda.max_memory_allocated() / 2**30 if a.device.startswith("cuda") else None,
            "warmup_seconds": warmup, "first_loss": first.item(), "last_loss": last[-1].item()}


def attention_seconds(backend, sizes, a):
    """Causal attention, forward and backward apart: the median of batches of calls."""
    from torch.nn.attention import sdpa_kernel

    batch, heads, kv_heads, seq_len, head_dim = sizes
    tensor = lambda h: torch.randn(batch, h, seq_len, head_dim, device=a.device, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = tensor(heads), tensor(kv_heads), tensor(kv_heads)
    calls = 3 if a.device.startswith("cuda") else 1

    def seconds(work):
        work()
        return statistics.median(timed(a.device, lambda: [work() for _ in range(calls)])[0] / calls for _ in range(5))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

    with sdpa_kernel(backend):
        y = forward()
        dy = torch.randn_like(y)
        return {"forward_seconds": seconds(forward),
                "backward_seconds": seconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))}


def attention(sizes, a):
    """By backend. One that does not share heads of k and v gets as many as of q, and its answer says so."""
    from torch.nn.attention import SDPBackend

    batch, heads, kv_heads, *rest = map(int, sizes.split(","))
    out = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        for heads_of_kv in dict.fromkeys((kv_heads, heads)):
            try:
                out[name] = {"kv_heads": heads_of_kv, **attention_seconds(backend, (batch, heads, heads_of_kv, *rest), a)}
                break
            except RuntimeError as e:
                out[name] = {"error": str(e).strip().splitlines()[0]}
    return out


def release(a):
    torch._dynamo.reset()
    gc.collect()
    if a.device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", action="append", default=[], metavar="FLAVOR:LAYERS:SEQ_LEN:BATCH:PRECISION")
    p.add_argument("--attention", metavar="BATCH,HEADS,KV_HEADS,SEQ_LEN,HEAD_DIM")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--device", default="cuda")
    p.add_argument("--compile", choices=("blocks", "model", "off"), default="blocks")
    a = p.parse_args()
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.automatic_dynamic_shapes = False  # every shape is compiled for itself
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if a.device.startswith("cuda") else "cpu"}
    if a.attention:
        print(json.dumps({**about, "sizes": a.attention, "attention": attention(a.attention, a)}), flush=True)
    for run in a.run:
        try:
            line = train(run, a)
        except (RuntimeError, KeyError, ValueError) as e:  # out of memory, too: the others run
            line = {"error": (str(e).strip() or repr(e)).splitlines()[0]}
        print(json.dumps({**about, "run": run, **line}), flush=True)
        release(a)


if __name__ == "__main__":
    main()
