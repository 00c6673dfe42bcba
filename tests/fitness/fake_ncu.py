#!/usr/bin/env python3
"""An `ncu` that is none: prints what Nsight Compute prints, or breaks in the way that FAKE_NCU names.

Launches are counted as the request file, its last argument, asks for them; values are those of a softmax on an H200.
Every command line is appended to FAKE_NCU_LOG.
"""

import json
import os
import subprocess
import sys
import time

HEADER = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
          "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"]  # fmt: skip
VALUES = {
    "gpu__time_duration.sum": ("ns", "39,872"),
    "dram__bytes_read.sum": ("Mbyte", "67.11"),
    "dram__bytes_write.sum": ("byte", "58,201,344"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "71.25"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "71.25"),
    "lts__t_sector_hit_rate.pct": ("%", "50.10"),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "44.01"),
    "l1tex__throughput.avg.pct_of_peak_sustained_active": ("%", "31.70"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "40.0"),
    "sm__inst_issued.avg.pct_of_peak_sustained_active": ("%", "38.5"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "0"),
    "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active": ("", "(!) n/a"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "92.3"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": ("", "1,024"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": ("", "4,096"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "12.30"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "2.10"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "1.00"),
    "smsp__average_warps_issue_stalled_drain_per_issue_active.ratio": ("inst", "0.40"),
}
STRANGE = {"gpu__dram_throughput", "smsp__average_warps_issue_stalled_gmma_per_issue_active"}


def rows(request, metrics, kernel="softmax_kernel"):
    launches = sum(part["launches"] for part in request["parts"]) * request["rounds"]
    yield HEADER
    for number in range(launches):
        for metric in metrics:
            if metric in VALUES:
                unit, value = VALUES[metric]
                if metric == "dram__bytes_read.sum":
                    value = str(67.11 + 10 * number)  # launches can be told apart
                yield [number, 4242, "python3.12", "127.0.0.1", kernel, 1, 7, "(128, 1, 1)", "(16384, 1, 1)", 0,
                       "9.0", "Command line profiler metrics", metric, unit, value]  # fmt: skip


def print_table(request, metrics, fewer=0):
    print("==PROF== Connected to process 4242 (/usr/bin/python3.12)")
    print('==PROF== Profiling "softmax_kernel" - 0: 0%....50%....100% - 9 passes')
    print("==PROF== Disconnected from process 4242")
    table = list(rows(request, metrics))
    for row in table[: len(table) - fewer]:
        print(",".join(f'"{field}"' for field in row))


def main():
    if log := os.environ.get("FAKE_NCU_LOG"):
        with open(log, "a") as file:
            file.write(json.dumps(sys.argv) + "\n")
    kind = os.environ.get("FAKE_NCU", "")
    known = {name.split(".")[0] for name in VALUES} - STRANGE
    if sys.argv[1:] == ["--query-metrics"]:
        print("Device NVIDIA H200 (GH100)\n" + "-" * 80)
        for name in sorted(known | {"sm__cycles_active"}):
            print(f"{name:60} Counter         inst            # of things")
        return 0
    metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
    with open(sys.argv[-1]) as file:
        request = json.load(file)
    if kind == "forbidden":
        print("==PROF== Connected to process 4242 (/usr/bin/python3.12)")
        print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
              "Counters on the target device 0. For instructions on enabling permissions and to get more information "
              "see https://developer.nvidia.com/ERR_NVGPUCTRPERM")  # fmt: skip
        return 1
    if kind == "library":
        print("==ERROR== Failed to initialize the profiler: LibraryNotLoaded")
        return 1
    if kind == "crashes":
        print("Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory", file=sys.stderr)
        print("==ERROR== The application returned an error code (1).")
        return 1
    if kind == "silent":
        return 3
    if kind in ("hangs", "orphan"):
        child = subprocess.Popen(["sleep", "300"])
        print(f"pid {child.pid}", flush=True)
        if kind == "hangs":
            time.sleep(300)
        return 0  # its child holds the pipe
    if kind == "floods":
        while True:
            print("x" * 4000)
    strange = [name for name in metrics if name.split(".")[0] in STRANGE]
    if kind == "strange" and strange:
        print(f"==ERROR== Failed to find metric {strange[0]}")
        return 1
    print_table(request, metrics, fewer=len(metrics) if kind == "short" else 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
