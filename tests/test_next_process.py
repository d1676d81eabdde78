"""What one process compiled the next finds on disk: it loads neither Numba nor a kernel's source.

Planning is real, for every rung, forward and backward; GPU, driver and compiler are not.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda")
torch = pytest.importorskip("torch", reason="torch is not installed")

import fake_driver  # noqa: E402
import fake_torch  # noqa: E402

from flash_numba import kernel_store, ladder, launch, packing  # noqa: E402
from flash_numba.ladder import RUNGS, Gpu  # noqa: E402

CALL = """
import threading
import torch
from flash_numba import flash_attention

def call(rung, dtype):
    options = {"dtype": getattr(torch, dtype), "requires_grad": True}
    q, k, v = (torch.zeros(2, 70, 4, 64, **options) for _ in "qkv")
    o = flash_attention(q, k, v, causal=True, kernel=rung)
    # Gradients are computed on a thread of torch's own, which starts without a context.
    thread = threading.Thread(target=lambda: o.sum().backward())
    thread.start()
    thread.join()
    assert q.grad is not None
"""

NEXT_PROCESS = f"""
import sys
import fake_driver, fake_torch, pytest
{CALL}
patches = pytest.MonkeyPatch()
fake_torch.pretend(patches)
driver = fake_driver.install(patches)
call(*sys.argv[1:])
unwanted = [name for name in sys.modules if name.startswith(("numba", "flash_numba.kernels."))]
print(len(driver.launches), len(driver.loaded), *unwanted)
"""

TYPES = {rung.name: rung.dtypes[0] for rung in RUNGS if rung.modules}


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A fake GPU of compute capability 9.0, and a compiler whose machine code is a name."""
    monkeypatch.setenv(kernel_store.VARIABLE, str(tmp_path))
    fake_torch.pretend(monkeypatch)
    fake = fake_driver.install(monkeypatch)
    device = SimpleNamespace(id=0, compute_capability=(9, 0), MULTIPROCESSOR_COUNT=132)
    monkeypatch.setattr(launch.cuda, "get_current_device", lambda: device)
    monkeypatch.setattr(ladder, "find_gpu", lambda index=0: Gpu("Fake GPU", (9, 0)))
    monkeypatch.setattr(packing, "encoded", lambda tensor_map: bytes(128))

    def compiled(dispatcher, signature, shared_bytes, device):
        key = kernel_store.key_of("kernel", f"{dispatcher.py_func.__name__} {signature}")
        kernel_store.save_kernel(key, key.encode(), "name")
        return SimpleNamespace(handle=ctypes.c_void_p(77)), key

    monkeypatch.setattr(launch, "_function", compiled)
    return fake


@pytest.mark.parametrize("rung", TYPES)
def test_it_launches_without_numba(rung, compiler):
    dtype = {"fp32": "float32", "fp16": "float16"}[TYPES[rung]]
    names = {}
    exec(CALL, names)
    names["call"](rung, dtype)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))
    }
    command = [sys.executable, "-W", "error", "-c", NEXT_PROCESS, rung, dtype]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    launches, loaded, *unwanted = run.stdout.split()
    assert unwanted == []
    assert int(launches) == len(compiler.launches) > 1
    assert 1 < int(loaded) <= int(launches)
