"""The first training on the device: what all others need, and CUDA graphs, which they do not."""

from check import Failed, TimedOut, tail
from models import MODELS

STEPS = 4
SECONDS = 45  # at most for each attempt: what a first start on a GPU may take, several times over


def first_training(c):
    """A few steps as every later run takes them. Where they only work without CUDA graphs, later runs go without, and the stage
    `graphs` says why."""
    model = MODELS["2 layers, head dim 64"]

    def attempt(name, share, extra=()):
        try:
            return c.train(name, c.device, STEPS, [*model, *extra], seconds=min(SECONDS, share * c.seconds_left())), ""
        except Failed as e:
            return None, f"not done in time\n{tail(e.output)}" if isinstance(e, TimedOut) and e.output else str(e)

    first, fault = attempt("first training", 0.6)
    if first:
        return f"{STEPS} steps: losses {said(first)}", {"losses": first.curve()}
    plain, other = attempt("first training without graphs", 1, ["--training.cuda_graphs", "off"])
    if not plain:
        raise Failed(f"no training works here.\n\nAs it is: {fault}\n\nWithout CUDA graphs: {other}", {"fault": fault, "without graphs": other})
    c.graphs_fault = fault
    return (f"{STEPS} steps work without CUDA graphs only, and later runs go without: losses {said(plain)}. With them:\n\n{fault}",
            {"losses": plain.curve(), "graphs_fault": fault})


def said(training):
    return ", ".join(f"{loss:.4f}" for loss in training.curve())
