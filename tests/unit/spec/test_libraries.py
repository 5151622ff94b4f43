"""The table of libraries that start threads."""

from __future__ import annotations

from leeward.spec import libraries, profiles
from leeward.spec.limits import Limits
from leeward.spec.machine import Machine
from leeward.spec.profiles import HostPython


def test_every_row_has_an_effect_and_a_reason() -> None:
    for library in libraries.LIBRARIES:
        assert library.variables or library.idle
        assert library.why


def test_names_are_as_the_kernel_has_them() -> None:
    """It cuts them off; a longer one would never be found."""
    assert all(0 < len(name.encode()) <= 15 for name in libraries.IDLE)


def test_no_variable_is_set_twice_and_all_are_in_the_environment() -> None:
    names = [name for name, _ in libraries.VARIABLES]
    environment = profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), {}, limits=Limits()).environment

    assert len(set(names)) == len(names)
    assert set(libraries.VARIABLES) <= set(environment)


def test_jobs_with_several_processors_have_their_number() -> None:
    """`nproc` goes by OMP_NUM_THREADS; options of allocators aren't numbers of threads."""
    made = profiles.python(HostPython("/usr/bin/python3", (3, 11), "/usr"), {}, limits=Limits(cpu=400),
                           machine=Machine(8))
    environment = dict(made.environment)
    assert ["4", "4"] == [environment[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
    assert "background_thread:false" == environment["JE_ARROW_MALLOC_CONF"]
