"""The rungs of the ladder - the implementations that exist - and which of them answers a call.

A rung is data: what it needs, and where its functions are. With a GPU those functions run, without
one the simulator's program of the same algorithm does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from .checks import shown
from .determinism import costs_much
from .problem import Problem

SIMULATOR = "tile simulator"


class Gpu(NamedTuple):
    """A GPU that kernels can run on.

    Attributes
    ----------
    name : str
    compute_capability : tuple of int
        (major, minor).
    """

    name: str
    compute_capability: tuple[int, int]

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"{self.name} (compute capability {major}.{minor})"


class NoGpu(NamedTuple):
    """Why no kernel can run here."""

    reason: str

    def __str__(self) -> str:
        return f"{SIMULATOR} ({self.reason})"


@cache
def find_gpu(index: int = 0) -> Gpu | NoGpu:
    """GPU number `index` of this machine, or why there is none. Looked for once a process."""
    try:
        from numba import config, cuda
    except ImportError as error:
        return NoGpu(f"no CUDA GPU: {error}")
    if getattr(config, "ENABLE_CUDASIM", 0):
        return NoGpu("no CUDA GPU: NUMBA_ENABLE_CUDASIM is set")
    if not cuda.is_available():
        return NoGpu("no CUDA GPU: the driver found none")
    device = cuda.gpus.lst[index]
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    return Gpu(name, tuple(device.compute_capability))


@dataclass(frozen=True)
class Rung:
    """One implementation of attention.

    Attributes
    ----------
    name : str
        What ``kernel=`` calls it.
    title : str
        One line on what it is.
    modules : tuple of str, or None
        Where the GPU functions of its forward and of its backward pass live, imported when first
        needed; None = the simulator alone has this rung. They have ::

            forward(problem, q, k, v, o, lse, stream)
            workspace(problem, numbers)  # -> bytes, in one or more parts
            backward(problem, q, k, v, o, lse, do, dq, dk, dv, memory, dlse, stream, d_aux)

        with arrays as `DeviceArray`, and `stream` the handle of a CUDA stream or the `plan.Plan`
        that records what `launch.launch` and `launch.fill_zero` are asked for: then addresses may
        not be known yet (see `addresses`), and nothing else may touch the GPU. o, lse and the
        gradients are written; a gradient that is None is not computed. `memory` is a float32 array
        of ``sum(workspace(problem, numbers))`` bytes on a 16-byte boundary; its content is lost.
        `dlse` may be None. `d_aux` is () or has an entry for each of ``problem.score_mods``: None,
        or a float32 array of shape `scores.aux_shape`, which is written; `numbers` are those of the
        latter. A rung whose forward pass needs memory too has
        ``forward_workspace(problem)``, and its `forward` is handed ``memory`` after `stream`. Of a
        packed batch both are handed ``packed``, a `sequences.Packed` of `DeviceArray`, too.
        ``counted_as(problem)``, if there, names the simulator's program of the module's schedule
        and its tile_m and tile_n.
    programs : tuple of str
        The simulator's programs of the forward and of the backward pass.
    compute_capability : tuple of int
        The least that its kernels need.
    majors : tuple of int
        Major numbers of the compute capabilities that have its instructions; () = all.
    copies_boxes : bool
        Whether its kernels move boxes of tensors: `head_dim` and `head_dim_v` are multiples of 8,
        neighbours adjoin, and rows start on 16 bytes.
    dtypes : tuple of str
        Element types of q, k and v.
    dtype_capability : tuple of (str, tuple of int)
        Element types that need more than `compute_capability`, and what.
    max_head_dim : int
        The largest head_dim and head_dim_v of its kernels.
    lacks : frozenset of str
        Names of `features_of` that it does not have.
    kernels_lack : frozenset of str
        Names of `features_of` that its simulator programs have and its kernels do not.
    deterministic : bool
        Whether its backward gives the same bits each time.
    fast_backward : str or None
        A module like the second of `modules`, whose backward may be faster and may give other bits
        each time. Who does not say which they want gets it where `determinism.costs_much`.
    borrows_backward : str or None
        Another rung, whose kernels do the backward pass where gradients of a bias or of a
        score_mod's tensors are asked for.
    """

    name: str
    title: str
    modules: tuple[str, str] | None
    programs: tuple[str, str]
    compute_capability: tuple[int, int] = (7, 5)
    majors: tuple[int, ...] = ()
    copies_boxes: bool = False
    dtypes: tuple[str, ...] = ("fp32", "fp16", "bf16")
    dtype_capability: tuple[tuple[str, tuple[int, int]], ...] = ()
    max_head_dim: int = 256
    lacks: frozenset[str] = frozenset()
    kernels_lack: frozenset[str] = frozenset()
    deterministic: bool = True
    fast_backward: str | None = None
    borrows_backward: str | None = None

    def wished(self, deterministic: bool | None, problem: Problem) -> Rung:
        """The rung as a call with this wish runs it: with its fast backward pass, or as it is."""
        if deterministic is None:
            deterministic = not costs_much(problem)
        return self if deterministic else self.fast

    @property
    def fast(self) -> Rung:
        """The rung with its fast backward pass; as it is if it has none."""
        if self.fast_backward is None:
            return self
        assert self.modules is not None
        modules = self.modules[0], self.fast_backward
        return replace(self, modules=modules, fast_backward=None, deterministic=False)

    def forms(self, direction: str) -> tuple[Rung, ...]:
        """The rung as it is and, backward, its `fast` form, if that is another one."""
        return (self, self.fast) if direction == "backward" and self.fast_backward else (self,)

    @property
    def label(self) -> str:
        """Its name, and whether its backward pass is the fast one."""
        return self.name if self.deterministic else f"{self.name} fast"

    def functions(self, direction: str) -> Any:
        """The module of its GPU functions of the "forward" or "backward" pass."""
        assert self.modules is not None
        return import_module(self.modules[direction == "backward"], __package__)

    def needed_capability(self, dtype: str) -> tuple[int, int]:
        """The least that its kernels for an element type need."""
        return max(self.compute_capability, dict(self.dtype_capability).get(dtype, (0, 0)))

    def why_not(
        self,
        problem: Problem,
        gpu: Gpu | NoGpu,
        deterministic: bool | None = None,
        needs: Sequence[str] = (),
        aligned: bool = True,
    ) -> str | None:
        """What keeps this rung from answering, or None if nothing does; as for `look`."""
        if problem.dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)}, got {problem.dtype}"
        if missing := sorted(self.lacks & features_of(problem, needs)):
            return f"has no {', '.join(missing)}"
        if deterministic and not self.deterministic:
            return "its backward is not deterministic, got deterministic=True"
        if isinstance(gpu, NoGpu):
            return None
        if self.modules is None:
            return "has no kernel for a GPU"
        if missing := sorted(self.kernels_lack & features_of(problem, needs)):
            return f"has no {', '.join(missing)} on a GPU"
        need = self.needed_capability(problem.dtype)
        if gpu.compute_capability < need:
            of = f" for {problem.dtype}" if problem.dtype in dict(self.dtype_capability) else ""
            return "needs compute capability {}.{} or newer{}, got {}".format(*need, of, gpu)
        if self.majors and gpu.compute_capability[0] not in self.majors:
            need = ", ".join(f"{major}.x" for major in self.majors)
            return f"needs instructions that only compute capability {need} has, got {gpu}"
        if self.copies_boxes and (problem.head_dim % 8 or problem.head_dim_v % 8):
            return (
                f"takes a head_dim and head_dim_v that are multiples of 8, got "
                f"{problem.head_dim} and {problem.head_dim_v}"
            )
        if self.copies_boxes and not aligned:
            return "takes tensors whose last axis is contiguous and whose rows start on 16 bytes"
        if max(problem.head_dim, problem.head_dim_v) > self.max_head_dim:
            return (
                f"takes a head_dim and head_dim_v up to {self.max_head_dim}, got "
                f"{problem.head_dim} and {problem.head_dim_v}"
            )
        return None

    def on_backward(
        self, problem: Problem, gpu: Gpu | NoGpu, needs: Sequence[str] = (), asked_by: str = ""
    ) -> str:
        """What is to be said of its backward pass on a GPU: whose it is, or which of its forms."""
        if isinstance(gpu, NoGpu):
            return ""
        asked = sorted({"bias", "score_mod"}.intersection(needs))
        if self.borrows_backward is not None and asked:
            reason = f"its own has no gradient of {' and '.join(asked)}"
            return f"its backward pass is {self.borrows_backward}'s: {reason}"
        if self.fast_backward is not None:
            text = "its backward pass gives the same bits each time"
            text += f", which {asked_by} asks for" if asked_by else ""
            text += "; deterministic=False may be faster"
            if self.borrows_backward is not None and problem.score_mods:
                text += f"; gradients of what a score change reads are {self.borrows_backward}'s"
            return text
        if self.deterministic:
            return ""
        return "its backward pass may give other bits each time; deterministic=True may be slower"


_NOT_PACKED = frozenset({"packed sequences"})
_PACKED_SCORE_MOD = "gradient of score_mod in packed sequences"

RUNGS: tuple[Rung, ...] = (
    Rung(
        "hopper",
        "FlashAttention-3's schedule: copy engine, warpgroup products, a producer and consumers",
        (".kernels.hopper", ".kernels.hopper_backward"),
        ("flash2", "flash2_two_kernel"),
        compute_capability=(9, 0),
        majors=(9,),
        copies_boxes=True,
        dtypes=("fp16", "bf16"),
        kernels_lack=_NOT_PACKED,
        fast_backward=".kernels.hopper_backward_fast",
        borrows_backward="tensor_core",
    ),
    Rung(
        "tensor_core",
        "FlashAttention-2 on the tensor cores (mma.sync)",
        (".kernels.tensor_core", ".kernels.tensor_core_backward"),
        ("flash2", "flash2_two_kernel"),
        dtypes=("fp16", "bf16"),
        dtype_capability=(("bf16", (8, 0)),),
        kernels_lack=frozenset({_PACKED_SCORE_MOD}),
    ),
    Rung(
        "flash2",
        "FlashAttention-2: query tiles outside, O in registers",
        (".kernels.flash2", ".kernels.flash2_backward"),
        ("flash2", "flash2_two_kernel"),
        kernels_lack=_NOT_PACKED,
    ),
    Rung(
        "flash1",
        "FlashAttention-1: key tiles outside, O rewritten at every pair of tiles",
        (".kernels.flash1", ".kernels.flash1_backward"),
        ("flash1", "flash1"),
        kernels_lack=_NOT_PACKED,
    ),
    Rung(
        "standard",
        "Standard attention in tiles, S and P in memory",
        (".kernels.standard", ".kernels.standard_backward"),
        ("tiled", "tiled"),
        kernels_lack=_NOT_PACKED,
    ),
)
"""The rungs that exist, the fastest first."""


def features_of(problem: Problem, needs: Sequence[str] = ()) -> frozenset[str]:
    """Names of what a problem, and a backward pass for `needs`, ask for beyond plain attention."""
    asked = {
        "causal": problem.causal,
        "window": problem.window != (None, None),
        "key lengths": problem.key_lengths is not None,
        "packed sequences": problem.sequences is not None,
        "mask": problem.mask is not None,
        "block mask": problem.block_mask is not None,
        "score changes": bool(problem.score_mods),
        "dropout": problem.dropout_p > 0,
        "grouped heads": problem.group > 1,
        "another head_dim_v": problem.head_dim_v != problem.head_dim,
        "gradient of bias": "bias" in needs,
        "gradient of score_mod": "score_mod" in needs,
        _PACKED_SCORE_MOD: "score_mod" in needs and problem.sequences is not None,
    }
    return frozenset(name for name, used in asked.items() if used)


@dataclass(frozen=True)
class Choice:
    """Which rung answers a call, and why each other one does not.

    Attributes
    ----------
    rung : Rung or None
        None if none can.
    gpu : Gpu or NoGpu
        What it runs on; without a GPU, the tile simulator.
    reasons : dict of str to str
        By name of every other rung.
    backward : str
        What is to be said of the backward pass: another rung's kernels, or which form.
    """

    rung: Rung | None
    gpu: Gpu | NoGpu
    reasons: dict[str, str] = field(default_factory=dict)
    backward: str = ""

    def __str__(self) -> str:
        runs = f"{self.rung.name} runs" if self.rung else "no rung runs"
        others = (f"  {name}: {reason}" for name, reason in self.reasons.items())
        of_backward = (f"  {self.backward}",) if self.backward else ()
        return "\n".join((f"{runs} on the {self.gpu}", *of_backward, *others))


def check_wishes(kernel, deterministic) -> None:
    """Raise a ValueError or TypeError unless `look` knows them."""
    names = ["auto", *(rung.name for rung in RUNGS)]
    if not isinstance(kernel, str) or kernel not in names:
        raise ValueError(f"kernel must be one of {', '.join(names)}; got {shown(kernel)}")
    if deterministic is not None and not isinstance(deterministic, bool):
        raise TypeError(f"deterministic must be True, False or None, got {shown(deterministic)}")


def look(
    problem: Problem,
    gpu: Gpu | NoGpu,
    kernel: str = "auto",
    deterministic: bool | None = None,
    needs: Sequence[str] = (),
    aligned: bool = True,
    asked_by: str = "",
) -> Choice:
    """Find the rung that answers, without complaint if there is none.

    Parameters
    ----------
    problem : Problem
    gpu : Gpu or NoGpu
    kernel : str
        "auto", or the name of the one rung to consider.
    deterministic : bool or None
        True: only rungs whose backward gives the same bits each time. False: the fast form of a
        rung that has one. None takes the deterministic form unless it takes more than 1.2 times as
        long as the fast one (`determinism.costs_much`).
    needs : sequence of str
        Gradients that a backward pass is asked for.
    aligned : bool
        Whether q, k and v lie in memory as `Rung.copies_boxes` says.
    asked_by : str
        Who asks for the same bits each time, if not the call.

    Raises
    ------
    ValueError, TypeError
        If `kernel` or `deterministic` is not one of these.
    """
    check_wishes(kernel, deterministic)
    chosen, reasons = None, {}
    for rung in RUNGS:
        if kernel not in ("auto", rung.name):
            reasons[rung.name] = f"not asked for: kernel={kernel!r}"
        elif reason := rung.why_not(problem, gpu, deterministic, needs, aligned):
            reasons[rung.name] = reason
        elif chosen is not None:
            reasons[rung.name] = f"{chosen.name} comes first: it is faster"
        else:
            chosen = rung.wished(deterministic, problem)
    of_backward = chosen.on_backward(problem, gpu, needs, asked_by) if chosen else ""
    return Choice(chosen, gpu, reasons, of_backward)


def choose(
    problem: Problem,
    gpu: Gpu | NoGpu,
    kernel: str = "auto",
    deterministic: bool | None = None,
    needs: Sequence[str] = (),
    aligned: bool = True,
) -> Rung:
    """The rung that answers; parameters as for `look`.

    Raises
    ------
    ValueError
        If none can, with the reason of each.
    """
    choice = look(problem, gpu, kernel, deterministic, needs, aligned)
    if choice.rung is None:
        raise ValueError(str(choice))
    return choice.rung
