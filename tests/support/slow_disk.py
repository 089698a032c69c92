"""A file system with one file whose every read takes long. It speaks the kernel's FUSE protocol
itself (include/uapi/linux/fuse.h), so that no package is needed; root is.

    python slow_disk.py MOUNT_POINT SECONDS

serves until it is killed, and the mount goes with it. It says "ready" when it is mounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time

SIZE = 1 << 24
ROOT, FILE = 1, 2
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE = 1, 2, 3, 14, 15, 18
FLUSH, INIT, INTERRUPT, BATCH_FORGET = 25, 26, 36, 42
DIRECT_IO = 1  # each read of the caller is one of the server
HEADER = struct.Struct("<IIQQIIIHH")
VERSION = (7, 31)


def attributes(node: int) -> bytes:
    mode = 0o40755 if node == ROOT else 0o100644
    size = 0 if node == ROOT else SIZE
    return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def response(opcode: int, node: int, body: bytes, seconds: float) -> bytes | int | None:
    """Bytes, the number of an error, or None where the kernel expects nothing."""
    if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
        return None
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI28x", *VERSION, 1 << 17, 0, 16, 12, 1 << 17, 1, 1, 0, 0)
    if opcode == LOOKUP and body.rstrip(b"\0") == b"file":
        return struct.pack("<4QII", FILE, 0, 3600, 3600, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    if opcode == OPEN:
        return struct.pack("<QII", 0, DIRECT_IO, 0)
    if opcode == READ:
        time.sleep(seconds)
        return bytes(struct.unpack_from("<QQI", body)[2])
    if opcode in (FLUSH, RELEASE):
        return b""
    return errno.ENOENT if opcode == LOOKUP else errno.ENOSYS


def serve(device: int, seconds: float) -> None:
    while True:
        request = os.read(device, 1 << 18)
        _, opcode, unique, node, *_ = HEADER.unpack_from(request)
        answer = response(opcode, node, request[HEADER.size :], seconds)
        if isinstance(answer, int):
            os.write(device, struct.pack("<IiQ", 16, -answer, unique))
        elif answer is not None:
            os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


def main(mount_point: str, seconds: float) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"slow_disk", mount_point.encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("ready", flush=True)
    serve(device, seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
