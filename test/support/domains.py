"""ROS domains that no other test run on this machine uses at the same time."""

import functools
import gc
import itertools
import os
import socket
from collections.abc import Iterator

FIRST, COUNT = 10, 90  # above 101, Linux may give the ports of a domain to others
BLOCK = 9  # for each process that runs tests


def domain() -> int:
    """A domain of this process's own, in turn: a test does not hear the last one's late goodbyes.

    Raises nothing: with all blocks taken, the process shares one.
    """
    return next(_domains())


@functools.cache
def _domains() -> Iterator[int]:
    """The domains of one block, for ever.

    A node that ran in this process is garbage with its executor, in a cycle, and stays in its
    domain until Python collects it: before a domain comes again, and not whenever.
    """
    blocks = range(FIRST, FIRST + COUNT, BLOCK)
    first = next((b for b in blocks if _claim(b)), blocks[os.getpid() % len(blocks)])
    for _ in itertools.count():
        gc.collect()
        yield from range(first, first + BLOCK)


_claims: list[socket.socket] = []  # kept open: the claims end with the process


def _claim(first: int) -> bool:
    """Whether no process holds the block that begins with ``first``; this one then does.

    A TCP port stands for the block. It leaves no file behind, and two containers share it when
    they share the network, hence the domains. DDS itself uses UDP.
    """
    claim = socket.socket()
    try:
        claim.bind(("127.0.0.1", 7400 + 250 * first))
        claim.listen()
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
