/* The calls that CPython needs around a fork. os.fork makes them; leeward's processes are made by clone3, in lw_clone.
 *
 * Runs in:  zygote and keeper, each by its only thread, and the new process. */

/* Python.h first, and without the stable ABI's own idea of stdlib macros. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include "fork.h"

void lw_before_fork(void)
{
	PyGILState_STATE held = PyGILState_Ensure();
	PyOS_BeforeFork();
	PyGILState_Release(held);
}

void lw_after_fork_parent(void)
{
	PyGILState_STATE held = PyGILState_Ensure();
	PyOS_AfterFork_Parent();
	PyGILState_Release(held);
}

void lw_after_fork_child(void)
{
	PyGILState_STATE held = PyGILState_Ensure();
	PyOS_AfterFork_Child();
	PyGILState_Release(held);
}
