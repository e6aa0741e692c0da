"""Runs a command where there is no network but loopback: `python scripts/offline.py make test`.

A network namespace of its own is what takes the network away, so a test that would reach outside fails here.
Root makes one directly; anybody else inside a user namespace, where they are root for the moment it takes to
switch loopback on, and then themselves again for the command.
"""

import fcntl
import os
import socket
import struct
import sys

INSIDE = "--inside"

# From <linux/sockios.h> and <linux/if.h>.
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
IFREQ_FLAGS = "16sh14x"


def main(arguments: list[str]) -> None:
    if not arguments:
        sys.exit("Say what to run offline, for example: python scripts/offline.py make test")
    if arguments[0] == INSIDE:
        uid, gid, *command = arguments[1:]
        run_inside(int(uid), int(gid), command)
    namespaces = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    here = [sys.executable, __file__, INSIDE, str(os.geteuid()), str(os.getegid())]
    execute(["unshare", *namespaces, *here, *arguments])


def run_inside(uid: int, gid: int, command: list[str]) -> None:
    switch_loopback_on()
    interfaces = [name for _, name in socket.if_nameindex()]
    if interfaces != ["lo"]:
        sys.exit(f"This is not offline: besides loopback there is {', '.join(interfaces)}.")
    print("Network: loopback only", flush=True)
    if uid != 0:
        command = ["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}", *command]
    execute(command)


def switch_loopback_on() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = fcntl.ioctl(asked, SIOCGIFFLAGS, struct.pack(IFREQ_FLAGS, b"lo", 0))
        _, flags = struct.unpack(IFREQ_FLAGS, request)
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack(IFREQ_FLAGS, b"lo", flags | IFF_UP))


def execute(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not on the PATH.")


if __name__ == "__main__":
    main(sys.argv[1:])
