"""Fixed hypothesis profile, and what happens to tests whose hardware or library is absent."""

import functools
import os

import pytest
from hypothesis import HealthCheck, Phase, settings

# Nothing depends on how busy the machine is, also not how long an example takes to draw.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# For the mutation check, which asks only whether a test fails: no search for a small example.
settings.register_profile(
    "mutation", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@functools.cache
def why_no_gpu() -> str | None:
    """None where a CUDA GPU answers, else the reason it does not."""
    try:
        from numba import cuda
    except ImportError as error:
        return f"no CUDA GPU: {error}"
    return None if cuda.is_available() else "no CUDA GPU: the driver found none"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    return torch_is_required(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    return torch_is_required(report)


def torch_is_required(report):
    """Turn a skip for want of torch into a failure where REQUIRE_TORCH=1."""
    required = os.environ.get("REQUIRE_TORCH") == "1"
    if required and report.skipped and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr
        if "torch" in reason:
            report.outcome = "failed"
            report.longrepr = f"REQUIRE_TORCH=1 allows no such skip: {reason}"
    return report
