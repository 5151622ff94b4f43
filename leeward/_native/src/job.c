/* A job from its last lock on: the message that the runner is ready, the frame that is read, the reply that is written.
 *
 * Runs in:  the job's process, after the last lock.
 * Trust:    the frame is the daemon's. The job can change its own process and so break this code, which harms only
 *           the job: no lock depends on it.
 *
 * Theory of operation. A process that has slept for some milliseconds finds neither code nor data in the processor's
 * caches, and a line of Python costs a microsecond or two. So the steps from the pipe to the job's code, and from the
 * code's end to the pipe, are C. After the reply no bytecode runs any more, because the daemon, or its client, may be
 * waiting for the processor.
 *
 * lw_job_begin does what runner.py and inside/main.py do, in the same order, if a request already waits for the job: in
 * bytecode that copied some hundred pages. If a check fails, runner.py repeats all steps: no message was sent by then. */

/* Python.h first, and without the stable ABI's own idea of stdlib macros. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include "job.h"
#include "park.h"
#include "privileges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MOST_PATH 64
#define MOST_REPLY 64
/* The capacity of a pipe; a larger frame gets memory of its own. */
#define ROOM (64u << 10)
/* In place of a frame's size: none will come. wire/job_frames.py */
#define PARK UINT32_MAX

static struct {
	struct lw_job given;
	char workspace[MOST_PATH];
	uint8_t nothing[MOST_REPLY];
	pid_t me;
	uint8_t *taken;
	int64_t size; /* bytes in `taken` */
	void (*left)(void); /* set by lw_job_watch */
	uint8_t room[ROOM];
} job;

/* Set the pipes of this process and of those that are cloned from it. Returns 0, or -E2BIG. */
int lw_job_lay(const struct lw_job *given)
{
	if (strlen(given->workspace) >= MOST_PATH || given->size > MOST_REPLY)
		return -E2BIG;
	job.given = *given;
	strcpy(job.workspace, given->workspace);
	memcpy(job.nothing, given->nothing, given->size);
	job.me = getpid();
	job.taken = job.room;
	return 0;
}

/* Read exactly `size` bytes and none of what follows them. False at the end of the pipe, or after an error. */
static bool all(uint8_t *ret_data, size_t size)
{
	while (size) {
		ssize_t got = read(job.given.job, ret_data, size);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		ret_data += got;
		size -= (size_t)got;
	}
	return true;
}

/* Wait for a frame. Returns its size without the length field; -EPIPE: the writer is gone; -ENOMEM. */
int64_t lw_job_take(void)
{
	uint8_t head[4];
	uint32_t size;

	job.me = getpid();
	if (!all(head, sizeof(head)))
		return -EPIPE;
	size = (uint32_t)head[0] << 24 | (uint32_t)head[1] << 16 | (uint32_t)head[2] << 8 | head[3];
	if (size == PARK)
		lw_park();
	if (size > ROOM)
		job.taken = malloc(size); /* never freed: the process ends after its job */
	if (!job.taken)
		return -ENOMEM;
	if (!all(job.taken, size))
		return -EPIPE;
	if (job.given.last && size && job.given.lone == job.taken[0])
		close(job.given.job);
	return job.size = size;
}

int64_t lw_job_size(void)
{
	return job.size;
}

const char *lw_job_taken(void)
{
	return (const char *)job.taken;
}

/* Send the reply without details, and wait to be killed. Returns if that reply isn't right: this is a child that the job
 * has forked, its file system is full, or the pipe is closed. Returns after a rehearsal, too. */
void lw_job_leave(void)
{
	struct statvfs space;

	if (job.left)
		job.left();
	if (getpid() != job.me || statvfs(job.workspace, &space) || !space.f_bavail || !space.f_favail)
		return;
	/* In one piece or not at all: it is shorter than PIPE_BUF. */
	if (write(job.given.reply, job.nothing, job.given.size) != (ssize_t)job.given.size || !job.given.last)
		return;
	for (;;)
		pause();
}

/* Have lw_job_leave call *left* first, which must not return. */
void lw_job_watch(void (*left)(void))
{
	job.left = left;
}

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

/* Check the process, send the message, and wait for the frame, which lw_job_taken then returns; lw_job_lay has set the
 * pipes. False if a check or the message has failed: the daemon was sent nothing. Exits if it has closed the job pipe. */
bool lw_job_begin(const struct lw_beginning *how)
{
	ssize_t sent;

	if (lw_capabilities_left() || !renewed(how->renew))
		return false;
	while ((sent = write(how->birth, how->ready, how->size)) < 0 && errno == EINTR)
		;
	if (sent != (ssize_t)how->size) /* a datagram, whole or not at all */
		return false;
	close(how->birth);
	int64_t taken = lw_job_take();
	if (taken < 0)
		_exit(taken == -EPIPE ? 0 : 1);
	return true;
}
