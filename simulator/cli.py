"""The command `flash-numba`: errors are one line, and nothing heavy is imported to show help."""

from __future__ import annotations

import io
import json as json_module
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from .bench.cli import EXAMPLES as BENCH_EXAMPLES
from .bench.cli import bench
from .claims_cli import EXAMPLES as CLAIMS_EXAMPLES
from .claims_cli import claims_command
from .trace_cli import EXAMPLES as TRACE_EXAMPLES
from .trace_cli import trace_command
from .viewer.cli import EXAMPLES as STEP_EXAMPLES
from .viewer.cli import step

CLICK_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Base of the errors that typer raises about options; typer brings its own or click's."""


class OneLineErrors(typer.core.TyperGroup):
    """A command group that reports what a user can mend as ``error: ...`` and exit code 2."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> NoReturn:
        """Run, and exit."""
        args = sys.argv[1:] if args is None else list(args)
        options |= {"prog_name": "flash-numba", "standalone_mode": False}
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # an odd letter is no reason to fail
        try:
            code = super().main(args or ["--help"], **options)
            if sys.stdout is not None:
                sys.stdout.flush()
        except CLICK_ERROR as error:
            _fail(getattr(error, "format_message", error.__str__)())
        except BrokenPipeError:
            _discard_output()
            sys.exit(1)
        except OSError as error:
            _discard_output()
            _fail(str(error))
        except (ValueError, TypeError) as error:
            _fail(str(error))
        except (MemoryError, OverflowError) as error:
            _fail(f"the problem is too large for this machine: {error}")
        sys.exit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """Let what stdout did not take go, so that Python does not try again, and fail, as it ends."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _fail(message: str) -> NoReturn:
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


EXAMPLES = """\b
Begin with:
  flash-numba step --demo
  flash-numba compare --seqlen 4096
"""

COMPARE_EXAMPLES = """\b
Examples:
  flash-numba compare --seqlen 4096 --causal
  flash-numba compare --seqlen 4096 --tile-m 16
  flash-numba compare --input layer.npz --all-heads --direction both
  flash-numba compare --program all --baseline all --gpu A100 --json
"""

LEARN_EXAMPLES = """\b
Examples:
  flash-numba learn
  flash-numba learn --no-browser --port 8890
  flash-numba learn --allow-root --ip 0.0.0.0     (in a container)
"""

app = typer.Typer(
    cls=OneLineErrors,
    add_completion=False,
    help="FlashAttention to read, run, step through and count.",
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Entry point of the command."""
    app()
    sys.exit()


app.command(epilog=STEP_EXAMPLES)(step)


@app.command(epilog=COMPARE_EXAMPLES)
def compare(
    seqlen: Annotated[int | None, typer.Option(help="Queries and keys. (default: 1024)")] = None,
    seqlen_q: Annotated[int | None, typer.Option(help="Queries, where they differ.")] = None,
    seqlen_k: Annotated[int | None, typer.Option(help="Keys, where they differ.")] = None,
    head_dim: Annotated[
        int | None, typer.Option(help="Columns of Q, K and V. (default: 64)")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads. (default: 1)")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key/value heads. (default: --heads)")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences. (default: 1)")] = None,
    input: Annotated[
        str | None,
        typer.Option(
            help="Take sizes from q, k and v of (batch, seqlen, heads, head_dim) in .npz or "
            ".safetensors, or one .npy of all three; compute too, and show the error.",
            metavar="FILE",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16, bf16 or fp8.", metavar="NAME")] = "fp16",
    tile_m: Annotated[int, typer.Option(help="Rows of a query tile.")] = 128,
    tile_n: Annotated[int, typer.Option(help="Rows of a key tile.")] = 64,
    causal: Annotated[bool, typer.Option("--causal", help="Hide later keys.", metavar="")] = False,
    window: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Keys seen before and after; 'none' is unlimited.", metavar="L R"),
    ] = None,
    direction: Annotated[
        str, typer.Option(help="forward, backward or both.", metavar="WAY")
    ] = "forward",
    program: Annotated[
        list[str] | None,
        typer.Option(
            help="flash1, flash2, flash2_two_kernel or all; repeatable. (default: flash1, flash2)",
            metavar="NAME",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="Standard attention beside algorithm0: tiled, fused_softmax, "
            "with_mask_and_dropout or all; repeatable. (default: tiled)",
            metavar="NAME",
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            help="Whose SRAM and peaks: V100, T4, A100, RTX3090, RTX4090, H100, H200 or B200.",
            metavar="NAME",
        ),
    ] = "H100",
    head: Annotated[
        int | None, typer.Option(help="Query head counted, from 0. (default: 0)")
    ] = None,
    all_heads: Annotated[
        bool, typer.Option("--all-heads", help="Count all heads of all sequences.", metavar="")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", metavar="")
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print comma-separated values.", metavar="")
    ] = False,
) -> None:
    """Count what standard attention and FlashAttention move, beside the closed forms."""
    from flash_numba.problem import Problem

    from . import compare as comparing
    from .inputs import load_input
    from .options import exclude, given_options, problem_of_sizes, window_of

    exclude("--json", json, "--csv", csv)
    exclude("--all-heads", all_heads, "--head", head is not None)
    sizes = {
        "seqlen": seqlen,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "head_dim": head_dim,
        "heads": heads,
        "kv_heads": kv_heads,
        "batch": batch,
    }
    options: dict[str, Any] = {"dtype": dtype, "causal": causal, "window": window_of(window)}
    arrays = None
    if input is None:
        problem = problem_of_sizes(sizes, **options)
    elif given := given_options(sizes):
        raise ValueError(f"--input brings its own sizes, got {', '.join(given)} too")
    else:
        arrays = load_input(input, dtype=dtype)
        problem = Problem.of(*arrays, **options)
    if problem.seqlen_q < 1:
        raise ValueError("seqlen_q must be at least 1 for programs to compare, got 0")
    found = comparing.comparison(
        problem,
        tile_m,
        tile_n,
        direction=direction,
        programs=comparing.choose(program, baseline),
        gpu=gpu,
        arrays=None if json or csv else arrays,
        all_heads=all_heads,
        head=head or 0,
        track=_progress,
    )
    if json:
        print(json_module.dumps(found.to_json(), indent=2))
    elif csv:
        print(found.to_csv(), end="")
    else:
        from .viewer.glyphs import print_in_own_letters

        print_in_own_letters(found.table())


def _progress(jobs: list):
    """Show the passes to run on stderr, if a person is there to see it."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(jobs, "counting", console=console, transient=True, disable=not console.is_terminal)


app.command("trace", epilog=TRACE_EXAMPLES)(trace_command)
app.command(epilog=BENCH_EXAMPLES)(bench)
app.command("claims", epilog=CLAIMS_EXAMPLES)(claims_command)


@app.command(
    epilog=LEARN_EXAMPLES,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def learn(context: typer.Context) -> None:
    """Start Jupyter on the course of notebooks; other options are handed on to it."""
    from .learn import start

    raise typer.Exit(start(context.args))


@app.command()
def doctor(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", metavar="")
    ] = False,
) -> None:
    """Say what is installed, what will run here, what will not and why."""
    from .doctor import examine

    report = examine()
    print(json_module.dumps(report.to_json(), indent=2) if json else report.text())


if __name__ == "__main__":
    main()
