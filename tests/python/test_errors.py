"""The errors as Python's own classes, and their texts: no C++, no empty path, and the way out."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable

import cairn
import pytest

Make = Callable[..., cairn.Checkpointer]

PYTHON_CLASSES = {
    cairn.NotFound: (FileNotFoundError, LookupError, OSError),
    cairn.AlreadyExists: (FileExistsError, OSError),
    cairn.DeadlineExceeded: (TimeoutError, OSError),
    cairn.InvalidArgument: (ValueError,),
    cairn.IoError: (OSError,),
    cairn.NoSpace: (OSError,),
}


@pytest.mark.parametrize("kind", PYTHON_CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_is_also_python_s_own_and_survives_pickling(kind: type[cairn.Error]) -> None:
    error = kind("/mnt/run7: it is gone")

    assert all(isinstance(error, base) for base in (*PYTHON_CLASSES[kind], cairn.Error))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) == "/mnt/run7: it is gone"


def test_a_first_start_can_be_caught_as_a_missing_file(make: Make) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        make().restore({})
    assert cairn.NoSpace("full").errno == errno.ENOSPC
