#!/usr/bin/env python3
"""Reads a folder of event files with the real TensorBoard and prints what it sees.

    python check_tensorboard.py FOLDER [--expect TAG=STEP:VALUE ...] [--expect-text TAG=TEXT ...]

Needs `pip install tensorboard` (2.12 or later), in an environment outside the source tree. Exits with 1 when something
that was expected is not there.
"""
import argparse
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--expect", action="append", default=[], metavar="TAG=STEP:VALUE")
    parser.add_argument("--expect-text", action="append", default=[], metavar="TAG=TEXT")
    args = parser.parse_args()

    events = EventAccumulator(args.folder, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    scalars = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    tags = events.Tags()["tensors"]
    texts = {tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)] for tag in tags}
    for tag, values in scalars.items():
        print(f"scalar {tag}: {len(values)} steps, last {max(values)}: {values[max(values)]:g}")
    for tag, values in texts.items():
        plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
        print(f"{plugin} {tag}: {values[-1]!r:.60}")

    missing = []
    for expected in args.expect:
        tag, rest = expected.rsplit("=", 1)
        step, value = rest.split(":")
        got = scalars.get(tag, {}).get(int(step))
        if got is None or abs(got - float(value)) > 1e-6 * abs(float(value)):
            missing.append(f"{expected} (got {got})")
    for expected in args.expect_text:
        tag, text = expected.split("=", 1)
        if text not in texts.get(tag, []):
            missing.append(f"{expected} (got {texts.get(tag)})")
    if missing:
        sys.exit("not found: " + ", ".join(missing))


if __name__ == "__main__":
    main()
