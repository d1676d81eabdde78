"""What the notebooks of ``tutorials`` share: how they begin, pictures from real runs, the stepper.

Needs the extra ``tutorials`` (matplotlib, ipywidgets). Every picture is drawn from counts or from a
run's event log, in colours that people with colour blindness tell apart, and comes with its text.

Reading order: `notebook`, `stepping`, `style`, `hierarchy`, `flow`, `tiles`, `limits`, `sharing`,
`cores`, `ledger`, `live`.
"""

from .notebook import begin, show
from .stepping import frame_at, record, stepper

__all__ = ["begin", "frame_at", "record", "show", "stepper"]
