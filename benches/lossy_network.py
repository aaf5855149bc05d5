"""Two network namespaces joined by a link that loses and delays packets.

    python3 benches/lossy_network.py --loss 0.02 --delay 5,20 [--cut SECONDS] -- COMMAND...

Runs COMMAND once in each namespace, with RANK 0 and 1 and the variables of a launcher, and forwards the frames of both TAP devices: each is lost
with probability `--loss`, others are delayed by a random time, so that their order changes. With `--cut`, nothing is forwarded after that time.
Prints how both ended and after how many seconds. Needs the right to make namespaces and TAP devices.
"""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LIBC = ctypes.CDLL(None, use_errno=True)


def enter_new_network():
    if LIBC.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")


def namespace(number):
    """A TAP device in a namespace of its own, and a process that keeps the namespace."""
    keeper_in, keeper_out = os.pipe()
    ready, child_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(keeper_out)
        enter_new_network()
        os.write(child_ready, b"x")
        os.read(keeper_in, 1)
        os._exit(0)
    os.read(ready, 1)
    inside = ["nsenter", "-t", str(child), "-n"]
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{child}/ns/net", os.O_RDONLY)
    if LIBC.setns(there, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"lossy0", IFF_TAP | IFF_NO_PI))
    LIBC.setns(home, CLONE_NEWNET)
    for command in (["addr", "add", f"10.77.0.{number + 1}/24", "dev", "lossy0"], ["link", "set", "lossy0", "up"], ["link", "set", "lo", "up"]):
        subprocess.run([*inside, "ip", *command], check=True)
    return tap, inside, keeper_out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loss", type=float, default=0.02)
    parser.add_argument("--delay", default="5,20", help="milliseconds, from and to")
    parser.add_argument("--cut", type=float, help="seconds after which nothing is forwarded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=600, help="seconds after which a process counts as hanging")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    shortest, longest = (float(part) / 1e3 for part in options.delay.split(","))
    draw = random.Random(options.seed)
    ends = [namespace(number) for number in range(2)]
    started = time.monotonic()
    processes = []
    for rank, (_, inside, _) in enumerate(ends):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": 29555,
                     "GLOO_SOCKET_IFNAME": "lossy0", "KDGAT_TOKEN": "lossy"}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        output = open(f"lossy-{rank}.txt", "w")
        processes.append(subprocess.Popen([*inside, *options.command], env=environment, stdout=output, stderr=subprocess.STDOUT))
    taps = [tap for tap, _, _ in ends]
    waiting, sent, lost, number = [], 0, 0, 0
    codes = [None, None]
    while None in codes:
        now = time.monotonic()
        if now - started > options.patience:
            print(f"hangs after {now - started:.0f} s")
            for process in processes:
                process.kill()
            sys.exit(1)
        for rank, process in enumerate(processes):
            if codes[rank] is None and process.poll() is not None:
                codes[rank] = process.returncode
                print(f"process {rank} ended with exit code {process.returncode} after {now - started:.1f} s")
        while waiting and waiting[0][0] <= now:
            _, _, tap, frame = heapq.heappop(waiting)
            try:
                os.write(tap, frame)
            except OSError:
                lost += 1
        pause = min(0.05, max(0.0, waiting[0][0] - now)) if waiting else 0.05
        for readable in select.select(taps, [], [], pause)[0]:
            try:
                frame = os.read(readable, 65536)
            except BlockingIOError:
                continue
            sent += 1
            is_cut = options.cut is not None and now - started > options.cut
            if is_cut or draw.random() < options.loss:
                lost += 1
                continue
            number += 1
            heapq.heappush(waiting, (now + draw.uniform(shortest, longest), number, taps[1 - taps.index(readable)], frame))
    print(f"{sent} frames, {lost} of them lost")


main()
