"""What a program says: read while it runs, never more of it than can be kept, and all of it in one file beside the report."""

import collections
import gzip
import os
import threading
import time

KEPT_BYTES = 2 << 20  # of the beginning, and as much of the end
LEFT_OUT = "\n[... {} bytes were left out here ...]\n"


class Reader:
    """Reads a pipe to its end, or as far as it came when nobody waits any longer: a process that nothing ends may hold it open."""

    def __init__(self, pipe):
        self.pipe, self.begin, self.end, self.left_out = pipe, b"", collections.deque(), 0
        self.end_bytes, self.lock = 0, threading.Lock()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while data := os.read(self.pipe.fileno(), 1 << 16):
            with self.lock:
                room = KEPT_BYTES - len(self.begin)
                self.begin += data[:room]
                if data := data[room:]:
                    self.end.append(data)
                    self.end_bytes += len(data)
                while self.end_bytes > KEPT_BYTES:
                    dropped = len(self.end.popleft())
                    self.end_bytes -= dropped
                    self.left_out += dropped
        self.pipe.close()

    def text(self, seconds):
        self.thread.join(seconds)
        with self.lock:
            gap = LEFT_OUT.format(self.left_out).encode() if self.left_out else b""
            return (self.begin + gap + b"".join(self.end)).decode(errors="replace")


class OutputLog:
    """A gzip'd file with a member for each program, so that it is whole up to the last one whenever all ends. Beyond LARGEST it
    takes the ends of outputs, and then nothing."""

    LARGEST, SHORT = 8 << 20, 4000

    def __init__(self, path):
        self.path, self.began, self.lock = path, time.monotonic(), threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def add(self, command, seconds, ended, output):
        with self.lock:
            size = self.path.stat().st_size
            if size > 1.25 * self.LARGEST:
                return
            text = output if size < self.LARGEST else output[-self.SHORT:]
            head = f"===== at {time.monotonic() - self.began:.1f} s, {seconds:.1f} s, {ended}: {' '.join(map(str, command))}\n"
            with open(self.path, "ab") as file:
                file.write(gzip.compress((head + text.rstrip("\n") + "\n").encode()))
