/* From a runner's last lock to its job: the last check, the message that the runner is ready, and the job's frame.
 *
 * Runs in:  the job's process, if a request already waits for it.
 *
 * This code does what runner.py and inside/main.py do, in the same order. In bytecode these steps copied some hundred pages,
 * which this code does not touch. If a check fails, runner.py repeats all steps: no message was sent by then. */

/* Python.h first, and without the stable ABI's own idea of stdlib macros. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include "begin.h"
#include "job.h"
#include "privileges.h"

#include <errno.h>
#include <unistd.h>

static bool renewed(void *renew)
{
	PyGILState_STATE held = PyGILState_Ensure();
	PyObject *done = PyObject_CallNoArgs(renew);

	if (!done)
		PyErr_Clear();
	Py_XDECREF(done);
	PyGILState_Release(held);
	return done;
}

/* Check the process, send the message, and wait for the frame, which lw_job_taken then returns.
 *
 * lw_job_lay has set the pipes. Returns true when the frame is there; false if a check or the message has failed, and the
 * daemon was sent nothing. Exits if the daemon has closed the job pipe. */
bool lw_job_begin(const struct lw_beginning *how)
{
	ssize_t sent;

	if (lw_capabilities_left() || !renewed(how->renew))
		return false;
	while ((sent = write(how->birth, how->ready, how->size)) < 0 && EINTR == errno)
		;
	if (sent != (ssize_t)how->size) /* a datagram, whole or not at all */
		return false;
	close(how->birth);
	int64_t taken = lw_job_take();
	if (taken < 0)
		_exit(-EPIPE == taken ? 0 : 1);
	return true;
}
