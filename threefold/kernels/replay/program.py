"""y, state = call_n(… call_1(x, state₋)): the native calls of a step, made by one native call

The step of a model is a few native calls per layer, and the Python between them takes longer than
they do. `recording.py` records once which call reads and writes what; a `Program` then fills in the
addresses and makes all calls at once, for one step or for many (`native/program_loop.cpp`). It may
run as long as `validity.py` finds nothing changed; otherwise the step runs as usual.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.replay.growth import Grown, StaleProgramError
from threefold.kernels.replay.listing import LINE, Leaf, Listing, Operand, State, arrange
from threefold.kernels.replay.thread_backoff import ThreadBackoff
from threefold.kernels.replay.validity import Validity

# The words of a request, in the order of native/program_loop.cpp.
REQUEST = (
    *("guards", "guard_count", "regions", "region_count", "first", "odd", "even", "words"),
    *("counters", "counter_count", "steps", "x", "y", "inputs", "outputs", "x_bytes", "y_bytes"),
    "choosing",
)
_OUTPUTS = REQUEST.index("outputs")
# Those of a request to choose tokens, in the order of native/choosing.h.
CHOOSING = (
    *("rows", "vocabulary", "count", "wide", "logits", "tokens", "chosen", "settings", "keys"),
    *("draws", "left", "seen", "ends", "workspace"),
)
# With fewer weights than this in all products, waking a thread takes longer than it saves.
_WORTH_THREADS = 2**20
MAX_ROWS = 64  # of a batch


class Frame:
    """Copies of the program's words with their own workspace, for one run at a time."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.threads = [0, 0, 0]
        self.workspace = torch.empty(program.workspace + LINE, dtype=torch.uint8, device="cpu")
        self.begin = -(-self.workspace.data_ptr() // LINE) * LINE
        self.codes: list[array[int]] = []
        self.counters: array[int] = array("q", [0] * program.counter_count)
        self.request: array[int] = array("q", [0] * len(REQUEST))
        self.done = ctypes.c_int64()
        self.done_pointer = ctypes.byref(self.done)
        self.code(0)

    def code(self, number: int) -> array[int]:
        """The words of the first step, of odd steps (1) and of even ones (2)."""
        while len(self.codes) <= number:
            words = self.program.words[:]
            for index, offset in self.program.buffers:
                words[index] = self.begin + offset
            counters = self.counters.buffer_info()[0]
            for index, leaf, _ in self.program.operands.get("starts", ()):
                words[index] = counters + 8 * self.program.counter_of[leaf]
            self.codes.append(words)
        return self.codes[number]


@dataclass
class Loop:
    """Many steps in one call: what is read, what is kept, and how tokens are chosen."""

    steps: int
    inputs: Tensor | None = None  # [steps, *x]
    keep_outputs: bool = False  # return y of every step, [steps, *y], instead of the last
    choosing: array[int] | None = None  # CHOOSING; its logits and tokens are filled in


class Program:
    """The recorded step of `owner`, ready to run."""

    def __init__(self, listing: Listing, owner: nn.Module) -> None:
        self.listing = listing
        self.validity = Validity(owner)
        self._threads = ThreadBackoff() if listing.weights >= _WORTH_THREADS else None
        self.operands: dict[str, list[tuple[int, int, int]]] = {}
        self.buffers: list[tuple[int, int]] = []
        self.words = self._assemble(*arrange(listing))
        rows = listing.x[0][0]
        growing = [i for i, leaf in enumerate(listing.leaves) if leaf.growth is not None]
        self.counter_of = {leaf: rows * number for number, leaf in enumerate(growing)}
        self.counter_count = rows * len(growing)
        self._growing = growing
        self._template = _template(listing.leaves)
        places = {leaf.path: index for index, leaf in enumerate(listing.results)}
        self._result_of = [places[leaf.path] for leaf in listing.leaves if leaf.path in places]
        self._frames: list[Frame] = []
        self._x_shape, self._x_dtype = torch.Size(listing.x[0]), listing.x[1]

    def _assemble(self, offsets: dict[int, int], total: int) -> array[int]:
        self.workspace = total
        words: array[int] = array("q")
        for call in self.listing.calls:
            for word in call:
                if not isinstance(word, Operand):
                    words.append(word)
                    continue
                at = len(words)
                if word.kind == "buffer":
                    self.buffers.append((at, offsets[word.index] + word.offset))
                else:
                    self.operands.setdefault(word.kind, []).append((at, word.index, word.offset))
                words.append(0)
        return words

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State] | None:
        """Step on x after `state`; None if their shapes or dtypes do not fit."""
        found = self.run_loop(x, state, Loop(1))
        return None if found is None else found[:2]

    def run_loop(self, x: Tensor, state: State, loop: Loop) -> tuple[Tensor, State, int] | None:
        """Steps from x and `state`: (y of the last or all, the state, how many were completed).

        None if the shapes or dtypes do not fit. `StaleProgramError` if the program is not valid.
        """
        before: list[Any] = []
        if x.shape != self._x_shape or x.dtype is not self._x_dtype:
            return None
        if not _match(state, self._template, before):
            return None
        if not self.validity.tensors_hold():
            raise StaleProgramError
        grown = self._claim(before, loop.steps)
        if grown is None:
            if not self.validity.holds():  # a filter with more taps
                raise StaleProgramError
            return None
        x = x.contiguous() if loop.steps == 1 else x.clone(memory_format=torch.contiguous_format)
        y = torch.empty(self.listing.y[0], dtype=self.listing.y[1], device="cpu")
        kept = y.new_empty(loop.steps, *y.shape) if loop.keep_outputs else None
        frame = self._take_frame()
        after = self._fill(frame, x, y, before, grown, loop)
        frame.request[_OUTPUTS] = _address(kept)
        done = 0
        try:
            done = self._call(frame)
        finally:
            for one in grown:
                one.give_back(done)
            self._frames.append(frame)
        if not done:  # a token or a position out of range: the ordinary step says what is wrong
            return None
        return y if kept is None else kept, self._tree(after[(done - 1) % 2], grown, done), done

    @property
    def loops(self) -> bool:
        """Whether the state after a step is one to step from; a handover is not carried."""
        return len(self._result_of) == len(self.listing.leaves) == len(self.listing.results)

    @property
    def ends(self) -> bool:
        """Whether there are states of the right shapes from which it does not run."""
        return any(leaf.growth is not None and leaf.growth.ends for leaf in self.listing.leaves)

    def _claim(self, before: list[Any], steps: int) -> list[Grown] | None:
        """Make room for the new elements of the leaves that grow; None if there cannot be any."""
        grown: list[Grown] = []
        for index in self._growing:
            growth = self.listing.leaves[index].growth
            assert growth is not None
            made = None
            try:
                made = growth.claim(before[index], before, steps)
            finally:
                if made is None:
                    for one in grown:
                        one.give_back(0)
            if made is None:
                return None
            grown.append(made)
        return grown

    def _fill(
        self, frame: Frame, x: Tensor, y: Tensor, before: list[Any], grown: list[Grown], loop: Loop
    ) -> list[list[Any]]:
        """Write all addresses; returns the leaves of the states after odd and even steps."""
        pointers: dict[str, Any] = {"x": [x.data_ptr()], "y": [y.data_ptr()]}
        if grown:
            frame.counters[:] = array("q", [start for one in grown for start in one.starts])
            for index, one in zip(self._growing, grown, strict=True):
                for kind, words in one.words(index).items():
                    pointers.setdefault(kind, {}).update(words)
        threads = 1 if self._threads is None else self._threads.take()
        count = min(loop.steps, 3)
        after = [self._new_leaves() for _ in range(min(count, 2))]
        for number in range(count):
            read = before
            if number:
                read = [after[number - 1][self._result_of[i]] for i in range(len(before))]
            pointers["before"] = list(map(_address, read))
            pointers["after"] = list(map(_address, after[number % 2]))
            self._write(frame, number, pointers, threads)
        self._fill_request(frame, x, y, loop, count)
        return after

    def _new_leaves(self) -> list[Any]:
        return [
            None if leaf.source >= 0 else torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu")
            for leaf in self.listing.results
        ]

    def _write(self, frame: Frame, number: int, pointers: Mapping[str, Any], threads: int) -> None:
        words = frame.code(number)
        for kind, addresses in pointers.items():
            for word, index, offset in self.operands.get(kind, ()):
                words[word] = addresses[index] + offset
        if threads != frame.threads[number]:
            for word, *_ in self.operands["threads"]:
                words[word] = threads
            frame.threads[number] = threads

    def _fill_request(self, frame: Frame, x: Tensor, y: Tensor, loop: Loop, count: int) -> None:
        validity, request, codes = self.validity, frame.request, frame.codes
        address = codes[0].buffer_info()[0]
        request[0:4] = array(
            "q",
            (
                *(validity.guards.buffer_info()[0], len(validity.guards) // 2),
                *(validity.regions.buffer_info()[0], len(validity.regions) // 3),
            ),
        )
        request[4] = address
        request[5] = codes[1].buffer_info()[0] if count > 1 else address
        request[6] = codes[2].buffer_info()[0] if count > 2 else address
        request[7] = len(codes[0])
        request[8], request[9] = frame.counters.buffer_info()
        request[10], request[11], request[12] = loop.steps, x.data_ptr(), y.data_ptr()
        request[13] = _address(loop.inputs)
        request[15], request[16] = x.nbytes, y.nbytes
        request[17] = 0
        if loop.choosing is not None:
            loop.choosing[CHOOSING.index("logits")] = y.data_ptr()
            loop.choosing[CHOOSING.index("tokens")] = x.data_ptr()
            request[17] = loop.choosing.buffer_info()[0]

    def _call(self, frame: Frame) -> int:
        """Run the request; returns the number of completed steps."""
        started = time.perf_counter()
        status = library.run_program(frame.request, frame.done_pointer)
        if status == library.STALE:
            if not self.validity.words_hold() or not self.validity.checksums_hold():
                raise StaleProgramError
            guards = self.validity.guards
            frame.request[0], frame.request[1] = guards.buffer_info()[0], len(guards) // 2
            status = library.run_program(frame.request, frame.done_pointer)
        if status == library.BAD_INDEX:
            return 0
        if status == library.NOT_A_NUMBER:
            raise ThreefoldError("the logits contain NaN; did the training diverge?")
        if status:
            raise ThreefoldError(f"program: {library.STATUS.get(status, f'status {status}')}")
        done = frame.done.value
        if self._threads is not None:
            self._threads.note(frame.threads[0], (time.perf_counter() - started) / max(done, 1))
        return done

    def _take_frame(self) -> Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return Frame(self)

    def _tree(self, leaves: list[Any], grown: list[Grown], done: int) -> State:
        tree: State = {}
        for leaf, tensor in zip(self.listing.results, leaves, strict=True):
            node = tree
            for name in leaf.path[:-1]:
                node = node.setdefault(name, {})
            if tensor is None:
                tensor = grown[self._growing.index(leaf.source)].leaf(done)
            node[leaf.path[-1]] = tensor
        return tree


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _template(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """The tree of leaves, with which a state is compared."""
    tree: dict[str, Any] = {}
    for index, leaf in enumerate(leaves):
        node = tree
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = index, leaf.shape, leaf.dtype, leaf.growth is not None
    return tree


def _match(node: Any, template: dict[str, Any], leaves: list[Any]) -> bool:
    """Collect the leaves of a state in the order of the template; False if they do not fit."""
    if type(node) is not dict or len(node) != len(template):
        return False
    for name, expected in template.items():
        leaf: Any = node.get(name)
        if type(expected) is dict:
            if not _match(leaf, expected, leaves):
                return False
            continue
        _, shape, dtype, grows = expected
        if type(leaf) not in PLAIN_TENSOR_TYPES or leaf.dtype is not dtype or not leaf.is_cpu:
            return False
        if leaf.is_neg() or (not _same_rows(leaf.shape, shape) if grows else leaf.shape != shape):
            return False
        leaves.append(leaf if grows or leaf.is_contiguous() else leaf.contiguous())
    return True


def _same_rows(given: Sequence[int], recorded: Sequence[int]) -> bool:
    """Whether two histories differ only in their lengths."""
    return (given[0], *given[2:]) == (recorded[0], *recorded[2:])


def few_enough_rows(rows: int) -> bool:
    """Whether steps of this many rows are recorded."""
    return 0 < rows <= MAX_ROWS
