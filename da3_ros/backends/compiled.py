"""Compiles functions with torch.compile: one program per input shape, limited and verified.

torch.compile stores programs per code object and gives up after a few, so each shape gets a code
object of its own. A program is used only after its results agreed with the plain function; if
anything fails, the plain function runs instead, so no window is lost. Independent of any network.
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

MAX_PROGRAMS = 32  # the least recently used program is dropped
# Consecutive calls of a shape before it is compiled: sizes of a growing window occur only once.
CALLS_BEFORE_COMPILING = 3
CHECKS = {"reduce-overhead": 3}  # verified runs: CUDA graphs warm up, record and replay
BOUND = {torch.float32: 5e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}  # of the norm, relative
GRAPHS = "reduce-overhead"


@dataclass
class _Program:
    """The program of one shape."""

    run: Callable[..., Any] | None  # None: the plain function runs
    unchecked: int  # number of runs still to be verified


class Compiler:
    """Compiles a function after several consecutive calls of one shape. Not thread-safe.

    ``mode`` is torch.compile's, or "" for none. ``compiled`` counts programs. ``at_work``: the
    newest call compiled or verified a program, so its time and memory are not representative.
    ``at_once``: compile at the first call of a shape.
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
        """``streams``: number of streams whose calls alternate.

        ``fault``: further check of a result within ``BOUND``; returns an empty text if it passes.
        """
        self.mode, self.backend, self._streams, self._fault = mode, backend, streams, fault
        self._is_out_of_memory = is_out_of_memory  # such an error is not the compiler's fault
        self.compiled = 0
        self.at_work = self.at_once = False
        self._programs: OrderedDict[Hashable, _Program] = OrderedDict()  # oldest use first
        # By function: the newest call of each stream, as (shape, consecutive calls).
        self._newest: dict[str, deque[tuple[Hashable, int]]] = {}
        self._any_valid = False  # whether any program has passed its verification
        self._log_counts: Counter[str] = Counter()

    def forget(self) -> None:
        """Drop all programs: the network has changed."""
        self._programs.clear()
        self._newest.clear()

    def release(self) -> None:
        """Drop CUDA graphs: no other allocation can use their memory pools."""
        if self.mode == GRAPHS:
            self.forget()
            gc.collect()  # graphs are part of reference cycles

    def call(
        self, plain: Callable[..., Any], dtype: torch.dtype, state: Hashable, *args: Any, **kw: Any
    ) -> Any:
        """``plain(*args, **kw)``, compiled if that is enabled and its results agree.

        ``dtype``: type of the matrix products. ``state``: all that the function depends on in
        addition to its arguments. Raises as ``plain``.
        """
        self.at_work = False
        program = self._program(plain, (state, _signature((args, kw))))
        if program is None or program.run is None:
            return plain(*args, **kw)
        self.at_work = program.unchecked > 0
        expected = plain(*args, **kw) if self.at_work else None
        try:
            found = self._run(program, args, kw)
        except Exception as error:  # of any kind: the plain function runs instead
            if self._is_out_of_memory(error):
                if not self.at_work:
                    raise
                program.run = None  # compiling is not part of the memory plan; the result exists
                self._log_once("memory", "no memory to compile a shape: it runs uncompiled")
                return expected
            reason = f"{type(error).__name__}: {first_line(error)}"
        else:
            reason = self._difference(found, expected, BOUND[dtype]) if self.at_work else ""
        if not reason:
            self._any_valid, program.unchecked = True, max(0, program.unchecked - 1)
            return found
        self._give_up(program, reason)
        return plain(*args, **kw) if expected is None else expected

    def _difference(self, found: Any, expected: Any, bound: float) -> str:
        return difference(found, expected, bound) or self._fault(found, expected)

    def _run(self, program: _Program, args: Any, kw: Any) -> Any:
        assert program.run is not None
        if self.mode == GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()  # earlier outputs have been copied
        return program.run(*args, **kw)

    def _program(self, plain: Callable[..., Any], shape: Hashable) -> _Program | None:
        """The program of a shape; None before it is compiled."""
        if not self.mode:
            return None
        count = self._count(plain.__name__, shape)
        key = (plain.__name__, shape)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key]
        if count < CALLS_BEFORE_COMPILING * self._streams and not self.at_once:
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
        """Number of consecutive calls of a function with ``shape``, this call included.

        With several streams, one call of each other stream may lie in between.
        """
        newest = self._newest.setdefault(name, deque(maxlen=self._streams))
        count = 1 + next((n for other, n in reversed(newest) if other == shape), 0)
        newest.append((shape, count))
        return count

    def _make_room(self) -> None:
        """Drop the least recently used program if there are ``MAX_PROGRAMS``."""
        if len(self._programs) < MAX_PROGRAMS:
            return
        self._log_once(
            "full", f"{MAX_PROGRAMS} shapes are compiled: the least recently used one is dropped"
        )
        self._programs.popitem(last=False)
        gc.collect()  # as in ``release``

    def _give_up(self, program: _Program, reason: str) -> None:
        """Run this shape uncompiled from now on; all shapes if no program was ever valid."""
        program.run = None
        if self._any_valid:
            self._log_once(
                "shape", f"torch.compile fails for a shape ({reason}): it runs uncompiled"
            )
            return
        self.mode = ""
        self._log_once("off", f"torch.compile does not work here ({reason}): running uncompiled")

    def _log_once(self, what: str, text: str) -> None:
        self._log_counts[what] += 1
        log.log(logging.WARNING if self._log_counts[what] == 1 else logging.DEBUG, "%s", text)


def first_line(error: BaseException) -> str:
    """First line of an error's text: compiler errors have many pages."""
    return next(iter(str(error).strip().splitlines()), "")


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with a code object of its own: the compiler limits programs per code object."""

    def program(*args: Any, **kw: Any) -> Any:
        return function(*args, **kw)

    own = types.FunctionType(
        program.__code__.replace(co_name=f"{function.__name__}_program"), program.__globals__,
        closure=program.__closure__,
    )  # fmt: skip
    return own


def difference(found: Any, expected: Any, bound: float) -> str:
    """Text about results that differ by more than ``bound`` of their norm; empty if none do."""
    pairs = list(zip(_tensors(found), _tensors(expected), strict=True))
    for number, (a, b) in enumerate(pairs):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {a.dtype} {list(a.shape)} instead of {list(b.shape)}"
        own, reference = a.cpu().double(), b.cpu().double()
        known = reference.isfinite()
        if not torch.equal(own.isfinite(), known):
            return f"result {number} has non-finite values elsewhere"
        error = (own - reference)[known].norm() / reference[known].norm().clamp_min(1e-30)
        if not float(error) <= bound:
            return f"result {number} differs by {float(error):.2g} of its norm"
    return ""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _signature(value: Any) -> Hashable:
    """Key of a program: shapes, types and strides of tensors, and all other values."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.stride()
    if isinstance(value, dict):
        return tuple((name, _signature(item)) for name, item in value.items())
    if isinstance(value, tuple):
        return type(value).__name__, *map(_signature, value)
    hashable: Hashable = value
    return hashable
