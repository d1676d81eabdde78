"""torch tensors on the host that pass for tensors on a GPU; see `fake_gpu`."""

from contextlib import nullcontext

import fake_gpu
import pytest
import torch

from flash_numba import arrays
from flash_numba.interop import torch_eager, torch_pass, torch_repeated


def install(monkeypatch: pytest.MonkeyPatch, functions=None) -> fake_gpu.Functions:
    """Put the fake GPU in place for torch tensors too; its plans are forgotten afterwards."""
    functions = fake_gpu.install(monkeypatch, functions=functions)
    pretend(monkeypatch)
    return functions


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch tensors on the host pass for tensors on a GPU, and no more."""
    kind = type(arrays.kind_of("q", torch.empty(0)))
    monkeypatch.setattr(kind, "device", lambda self, array: "cuda:0")
    monkeypatch.setattr(kind, "stream", lambda self, like: 7)
    monkeypatch.setattr(kind, "current", lambda self, like: nullcontext())
    monkeypatch.setattr(torch_pass, "DEVICE", "cpu")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch_pass, "current_device", lambda: -1)
    empty = torch._C._dynamo.guards._empty_strided_cpu  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(torch_pass, "_empty_strided", empty)
    monkeypatch.setattr(torch_pass, "current_stream", lambda device: 7)
    monkeypatch.setattr(torch_eager, "_model", lambda device: ("Fake GPU",))
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch_eager, "_calls", {})
    monkeypatch.setattr(torch_repeated, "_known", [])


def forget() -> None:
    """Let the next call be the first of its kind."""
    torch_eager._calls.clear()
    torch_repeated._known.clear()
