"""A network's functions through torch.compile: a program per shape, bounded and compared.

The compiler keeps its programs with a function's code and gives up after a few; so every shape has
code of its own here. A program is used only where it says what the plain function says, and
whatever goes wrong with it, the plain function answers: no window is lost to the compiler. Knows
no network.
"""

from __future__ import annotations

import gc
import logging
import types
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

MOST = 32  # shapes that have a program; the least recently used one leaves
IN_A_ROW = 3  # calls of one shape before it is compiled: each size of a growing window comes once
CHECKS = {"reduce-overhead": 3}  # runs that are compared: CUDA graphs warm up, record and replay
BOUND = {torch.float32: 5e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}  # relative, in the norm
GRAPHS = "reduce-overhead"


@dataclass
class _Program:
    """What became of one shape."""

    run: Callable[..., Any] | None  # None: the plain function runs
    unchecked: int  # runs that are still to be compared


class Compiler:
    """Runs functions compiled once a shape comes several times in a row. Not thread-safe.

    ``mode`` is torch.compile's, or "" for none. ``compiled`` counts programs so far; ``at_work``
    is whether the newest call compiled or compared one, so that its time and memory tell nothing.
    With ``at_once`` every shape is compiled when it comes first.
    """

    def __init__(
        self,
        mode: str,
        is_out_of_memory: Callable[[BaseException], bool] = lambda error: False,
        backend: str | Callable[..., Any] = "inductor",
        *,
        streams: int = 1,
        fault: Callable[[Any, Any], str] = lambda found, expected: "",
    ) -> None:
        """``streams``: of so many streams the calls come in turns.

        ``fault``: what else is wrong with an answer that is within ``BOUND``, or an empty text.
        """
        self.mode, self.backend, self._streams, self._fault = mode, backend, streams, fault
        self._is_out_of_memory = is_out_of_memory  # which is not the compiler's fault
        self.compiled = 0
        self.at_work = self.at_once = False
        self._programs: OrderedDict[Hashable, _Program] = OrderedDict()  # oldest use first
        # Of each function, the newest call of every stream: its shape, and how often in a row.
        self._newest: dict[str, deque[tuple[Hashable, int]]] = {}
        self._works = False  # whether any program was ever right
        self._said: Counter[str] = Counter()

    def forget(self) -> None:
        """Drop all programs: the network they were made of has changed."""
        self._programs.clear()
        self._newest.clear()

    def release(self) -> None:
        """Drop CUDA graphs: their memory pools serve no other allocation."""
        if self.mode == GRAPHS:
            self.forget()
            gc.collect()  # a graph and what replays it know each other

    def call(
        self, plain: Callable[..., Any], dtype: torch.dtype, state: Hashable, *args: Any, **kw: Any
    ) -> Any:
        """``plain(*args, **kw)``, compiled where that is on, pays, and gives the same.

        ``dtype`` is that of the matrix products; ``state`` what the function depends on beside its
        arguments. Raises what ``plain`` raises.
        """
        self.at_work = False
        program = self._program(plain, (state, _signature((args, kw))))
        if program is None or program.run is None:
            return plain(*args, **kw)
        self.at_work = program.unchecked > 0
        expected = plain(*args, **kw) if self.at_work else None
        try:
            found = self._run(program, args, kw)
        except Exception as error:  # whatever it is, the plain function decides what is wrong
            if self._is_out_of_memory(error):
                if not self.at_work:
                    raise
                program.run = None  # what making it takes is in no plan, and the answer is there
                self._say("memory", "no memory to compile a shape: it runs uncompiled")
                return expected
            reason = f"{type(error).__name__}: {first_line(error)}"
        else:
            reason = self._difference(found, expected, BOUND[dtype]) if self.at_work else ""
        if not reason:
            self._works, program.unchecked = True, max(0, program.unchecked - 1)
            return found
        self._give_up(program, reason)
        return plain(*args, **kw) if expected is None else expected

    def _difference(self, found: Any, expected: Any, bound: float) -> str:
        return difference(found, expected, bound) or self._fault(found, expected)

    def _run(self, program: _Program, args: Any, kw: Any) -> Any:
        assert program.run is not None
        if self.mode == GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()  # what came before has been copied
        return program.run(*args, **kw)

    def _program(self, plain: Callable[..., Any], shape: Hashable) -> _Program | None:
        """The program of a shape; None while it has none."""
        if not self.mode:
            return None
        count = self._count(plain.__name__, shape)
        key = (plain.__name__, shape)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key]
        if count < IN_A_ROW * self._streams and not self.at_once:
            return None
        self._make_room()
        self.compiled += 1
        run = torch.compile(
            with_own_code(plain), fullgraph=True, dynamic=False, backend=self.backend,
            mode=self.mode if self.backend == "inductor" else None,
        )  # fmt: skip
        self._programs[key] = _Program(run, CHECKS.get(self.mode, 1))
        return self._programs[key]

    def _count(self, name: str, shape: Hashable) -> int:
        """How often in a row a function was called with ``shape``, this call included.

        Of several streams that take turns, one call of each may lie between.
        """
        newest = self._newest.setdefault(name, deque(maxlen=self._streams))
        count = 1 + next((n for other, n in reversed(newest) if other == shape), 0)
        newest.append((shape, count))
        return count

    def _make_room(self) -> None:
        """Drop the program that was not used for longest, where there are as many as may be."""
        if len(self._programs) < MOST:
            return
        self._say("full", f"{MOST} shapes are compiled: the least recently used one is dropped")
        self._programs.popitem(last=False)
        gc.collect()  # as in ``release``

    def _give_up(self, program: _Program, reason: str) -> None:
        """This shape runs uncompiled from now on; all do where the compiler never worked."""
        program.run = None
        if self._works:
            self._say("shape", f"torch.compile fails for a shape ({reason}): it runs uncompiled")
            return
        self.mode = ""
        self._say("off", f"torch.compile does not work here ({reason}): running uncompiled")

    def _say(self, what: str, text: str) -> None:
        self._said[what] += 1
        log.log(logging.WARNING if self._said[what] == 1 else logging.DEBUG, "%s", text)


def first_line(error: BaseException) -> str:
    """Of an error's text, which compilers fill with pages."""
    return next(iter(str(error).strip().splitlines()), "")


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` behind code that nothing else has: the compiler counts programs per code."""

    def program(*args: Any, **kw: Any) -> Any:
        return function(*args, **kw)

    own = types.FunctionType(
        program.__code__.replace(co_name=f"{function.__name__}_program"), program.__globals__,
        closure=program.__closure__,
    )  # fmt: skip
    return own


def difference(found: Any, expected: Any, bound: float) -> str:
    """How two equally built answers differ by more than ``bound`` of their norm; else nothing."""
    pairs = list(zip(_tensors(found), _tensors(expected), strict=True))
    for number, (a, b) in enumerate(pairs):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {a.dtype} {list(a.shape)} instead of {list(b.shape)}"
        ours, theirs = a.cpu().double(), b.cpu().double()
        known = theirs.isfinite()
        if not torch.equal(ours.isfinite(), known):
            return f"result {number} has other places that are no number"
        error = (ours - theirs)[known].norm() / theirs[known].norm().clamp_min(1e-30)
        if not float(error) <= bound:
            return f"result {number} is off by {float(error):.2g} of its norm"
    return ""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _signature(value: Any) -> Hashable:
    """What the compiler makes a program for: shapes and types of tensors, and all the rest."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.stride()
    if isinstance(value, dict):
        return tuple((name, _signature(item)) for name, item in value.items())
    if isinstance(value, tuple):
        return type(value).__name__, *map(_signature, value)
    hashable: Hashable = value
    return hashable
