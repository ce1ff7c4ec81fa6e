"""What the memory of this machine costs a reader of weights: python3 packages/engine/bench/memory_costs.py [--gigabytes 1]

Reads holes of a sparse file past the page cache, 1 MiB at a time by one thread, into buffers of three sizes (the smaller they are, the nearer to the
processor they stay), and touches fresh memory for the first time, with small and with huge pages.
"""

import argparse
import ctypes
import mmap
import os
import resource
import tempfile
import time

MIB = 1 << 20


def read_holes(buffer_bytes, total):
    """GB/s of reading `total` bytes of holes round and round into one buffer."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        file.truncate(total)
        # As the engine reads: past the page cache, which would be filled with zeros first.
        source = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, buffer_bytes)
        buffer.write(b"\1" * buffer_bytes)
        step = min(MIB, buffer_bytes)
        parts = [memoryview(buffer)[at : at + step] for at in range(0, buffer_bytes, step)]
        best = 0.0
        for _ in range(5):
            started = time.perf_counter()
            for k, at in enumerate(range(0, total, step)):
                os.preadv(source, [parts[k % len(parts)]], at)
            best = max(best, total / (time.perf_counter() - started) / 1e9)
        os.close(source)
        return best


def first_touch(advice, total):
    """Seconds of system time per GB of fresh memory that is written to."""
    memory = mmap.mmap(-1, total)
    memory.madvise(advice)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, total)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_stime - before) / (total / 1e9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    total = int(parser.parse_args().gigabytes * 1e9) // MIB * MIB
    for name, size in (("512 KiB, which stays in L2", MIB // 2), ("64 MiB", 64 * MIB), ("256 MiB", 256 * MIB)):
        print(f"a hole, into a buffer of {name}: {read_holes(size, total):.1f} GB/s")
    for name, advice in (("small", mmap.MADV_NOHUGEPAGE), ("huge", mmap.MADV_HUGEPAGE)):
        print(f"memory touched for the first time, {name} pages: {first_touch(advice, total):.2f} s of system time per GB")


if __name__ == "__main__":
    main()
