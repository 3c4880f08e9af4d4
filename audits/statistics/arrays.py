"""Types of the arrays that the statistics take and return."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Labels = Sequence[Hashable] | npt.NDArray[Any]
