/* leeward.h: run untrusted Python code in leeward's sandboxes, from C and whatever calls C.
 *
 *	leeward_handle *handle = leeward_connect(NULL);
 *	leeward_result *result = leeward_execute(handle, "print(6 * 7)", 12, NULL);
 *	if (result)
 *		fwrite(result->stdout_data, 1, result->stdout_length, stdout);
 *	else
 *		fprintf(stderr, "%s\n", leeward_last_error());
 *	leeward_free_result(result);
 *	leeward_disconnect(handle);
 *
 * Threads: a handle is for one thread at a time; several handles may be used at once, each
 * by a thread of its own. A result belongs to nobody's handle: it may be read by any
 * number of threads, and freed by one, also after leeward_disconnect.
 *
 * Errors: a function that fails returns NULL or a negative leeward_error, and leaves code
 * and text for leeward_last_error_code and leeward_last_error of the same thread. What a
 * job does wrong is no error: it is in the result. NULL and nonsense give
 * LEEWARD_INVALID, never a crash; only a pointer that is stale or wild can do harm.
 *
 * Time: nothing waits for ever. A call without a deadline of its own lasts as long as
 * the daemon shows signs of life: after 10 s of silence the library asks for one, and after
 * 10 s more without a byte it gives up with LEEWARD_NO_ANSWER. A connection may take 5 s.
 *
 * Signals and forks: no signal is raised or blocked; a call that a signal interrupts goes
 * on. After a fork each process has a connection of its own: the child's is made by its
 * first call, and the jobs in flight stay the parent's.
 *
 * C11 or C++17; needs nothing but libc. docs/c-api.md is this as a page, with examples. */
#ifndef LEEWARD_H
#define LEEWARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LEEWARD_API __attribute__((visibility("default")))

/* Why a call failed. Later versions may know more: take an unknown one for LEEWARD_REFUSED. */
typedef enum leeward_error {
	LEEWARD_OK = 0,
	LEEWARD_INVALID = -1,       /* an argument of this call makes no sense */
	LEEWARD_NO_MEMORY = -2,     /* this process has no memory left */
	LEEWARD_AWAY = -3,          /* nobody answers on the socket, or the daemon went away before it answered */
	LEEWARD_NO_ANSWER = -4,     /* the deadline has passed, or the daemon gives no sign of life */
	LEEWARD_BAD_REPLY = -5,     /* what came isn't what docs/wire.md says */
	LEEWARD_NOT_YET = -6,       /* of leeward_wait: no result so far; the jobs go on */
	LEEWARD_REFUSED = -16,      /* the daemon is there and refused, for a reason not listed here */
	LEEWARD_BUSY = -17,         /* its queue is full; try again later */
	LEEWARD_QUEUE_TIMEOUT = -18, /* no worker came free in time */
	LEEWARD_SHUTTING_DOWN = -19, /* it takes no new jobs */
	LEEWARD_VERSION_MISMATCH = -20, /* it speaks another version of the wire */
	LEEWARD_REJECTED = -21,     /* it finds the request impossible: a limit above its ceiling, a wrong name */
	LEEWARD_CANCELLED = -22,    /* leeward_cancel took the job back */
	LEEWARD_FORBIDDEN = -23     /* it doesn't serve this user */
} leeward_error;

/* How a job ended. Exactly one holds. */
typedef enum leeward_outcome {
	LEEWARD_FINISHED = 1,       /* ran to its end, or sys.exit */
	LEEWARD_RAISED = 2,         /* an exception left the main module */
	LEEWARD_SIGNALLED = 3,      /* a signal ended its main process */
	LEEWARD_TIMED_OUT = 4,      /* its time limit */
	LEEWARD_OUT_OF_MEMORY = 5,  /* its memory limit */
	LEEWARD_OUTPUT_LIMIT = 6,   /* it wrote more than it may */
	LEEWARD_INTERNAL = 7        /* the worker was lost under it; the result's error says why */
} leeward_outcome;

/* The limit that a job ran into, whether or not that ended it. */
typedef enum leeward_limit {
	LEEWARD_LIMIT_NONE = 0,
	LEEWARD_LIMIT_MEMORY = 1,
	LEEWARD_LIMIT_PROCESSES = 2,
	LEEWARD_LIMIT_FILES = 3,
	LEEWARD_LIMIT_OUTPUT = 4,
	LEEWARD_LIMIT_TIME = 5
} leeward_limit;

/* A connection to a daemon. */
typedef struct leeward_handle leeward_handle;

/* A file of a job. */
typedef struct leeward_file {
	const char *name;           /* a relative path below the job's /workspace, UTF-8 */
	const void *data;           /* may be NULL where length is 0 */
	size_t length;              /* bytes */
} leeward_file;

/* What a job gets, beside its code. All zero is the daemon's defaults, and so is NULL in
 * place of the struct. The caller owns all of it, and may free it when the call returns.
 *
 * It grows at its end: `size` says which version the caller was compiled with, and 0
 * stands for the first one, which is this. */
typedef struct leeward_options {
	size_t size;                /* sizeof(leeward_options), or 0 */
	double timeout;             /* seconds that the job may run; waiting for a worker doesn't count */
	uint64_t memory;            /* bytes, of all its processes and files together */
	uint64_t output;            /* bytes of stdout and stderr together */
	uint64_t processes;         /* processes and threads at once */
	const char *name;           /* the file name that tracebacks show */
	const char *module;         /* run this module as python -m does; then there is no code */
	const char *const *arguments; /* sys.argv[1:] */
	size_t argument_count;
	const char *const *environment; /* NAME=value each, on top of the sandbox's own; the last of a name counts */
	size_t environment_count;
	const leeward_file *files;  /* put into /workspace before the start */
	size_t file_count;
	const char *const *collect; /* patterns of files below /workspace to bring back, ** included */
	size_t collect_count;
	const void *stdin_data;     /* what the job reads on descriptor 0 */
	size_t stdin_length;        /* bytes */
	double deadline;            /* seconds that leeward_execute may take in all; 0: see Time, above */
} leeward_options;

/* A system call that a job was refused. */
typedef struct leeward_denied {
	const char *name;
	uint64_t count;
} leeward_denied;

/* What a job gave. The library makes it, and it may grow at its end; `size` says how far
 * this one goes. All pointers live until leeward_free_result.
 *
 * stdout, stderr and files are bytes, and not terminated by a NUL: go by the lengths. Large
 * ones are a read-only mapping: a write to it ends the program. Texts are UTF-8 and
 * terminated. Whatever a job wrote, its files' names and its error's text among it, is its
 * own doing: data, not to be trusted. */
typedef struct leeward_result {
	size_t size;                /* bytes of this struct that are filled */
	int64_t id;                 /* what leeward_submit gave */
	int32_t outcome;            /* a leeward_outcome */
	int32_t exit_code;          /* its own; 124 timed out, 125 internal, 137 memory, 153 output, 128 + n signal n */
	int32_t limit;              /* a leeward_limit */
	int32_t truncated;          /* 1: stdout or stderr was cut at the limit */
	const unsigned char *stdout_data; /* never NULL */
	size_t stdout_length;       /* bytes */
	const unsigned char *stderr_data; /* never NULL */
	size_t stderr_length;       /* bytes */
	int64_t duration_us;        /* microseconds from sending the code to its end */
	int64_t cpu_time_us;        /* microseconds of all its processes */
	uint64_t memory_peak;       /* bytes, of all its processes and files together; 0: the host can't tell */
	const leeward_denied *denied; /* NULL where there are none, as the arrays below */
	size_t denied_count;
	const char *const *degraded; /* layers that the operator allowed to be missing */
	size_t degraded_count;
	const char *error_type;     /* the exception that ended it, as the job told it; NULL: none */
	const char *error_message;  /* NULL: none */
	const char *error_traceback; /* NULL: none */
	const leeward_file *files;  /* what `collect` brought back */
	size_t file_count;
} leeward_result;

/* The library's version, such as "0.1.0".
 *
 * Returns: a text that lives as long as the library. Never fails. Any thread. */
LEEWARD_API const char *leeward_version(void);

/* What the last failed call of this thread says, in one line for people.
 *
 * Returns: a text of this thread, "" before its first failure. It lives until the next
 * failing call of the same thread. Never fails. */
LEEWARD_API const char *leeward_last_error(void);

/* The same as a number.
 *
 * Returns: a leeward_error, LEEWARD_OK before the first failure. A call that succeeds leaves it alone. */
LEEWARD_API int leeward_last_error_code(void);

/* Connect to a daemon.
 *
 * Connects at once; if the connection is lost later, the next call makes a new one.
 *
 * Args:
 *	path: the daemon's socket. NULL or "": $LEEWARD_SOCKET, else the user's own daemon:
 *		/run/leeward/leeward.sock for root, $XDG_RUNTIME_DIR/leeward/leeward.sock for others.
 *		Only a socket of root, of the caller's own user or of the user whose number is in
 *		$LEEWARD_TRUSTED_UID is taken.
 * Returns: a handle, which the caller ends by leeward_disconnect; or NULL.
 * Errors: LEEWARD_AWAY, LEEWARD_NO_MEMORY.
 * Threads: any. */
LEEWARD_API leeward_handle *leeward_connect(const char *path);

/* Close the connection and free the handle. The daemon ends its unfinished jobs.
 *
 * Results that were taken stay; those that nobody took go. NULL is allowed.
 *
 * Threads: the handle's. */
LEEWARD_API void leeward_disconnect(leeward_handle *handle);

/* Run code, and wait for its result.
 *
 * Args:
 *	code: Python source, UTF-8 unless it declares a coding; copied before the call
 *		returns. NULL with length 0 where options->module is given.
 *	length: its bytes, at most 16 MiB.
 *	options: NULL for the daemon's defaults.
 * Returns: the result, which the caller frees by leeward_free_result; or NULL. A job that
 *	failed is a result.
 * Errors: LEEWARD_INVALID; LEEWARD_AWAY, LEEWARD_NO_ANSWER and LEEWARD_BAD_REPLY, after which
 *	the job ends, or has ended with its result lost; LEEWARD_REFUSED and those below it, after
 *	which the connection goes on; LEEWARD_NO_MEMORY.
 * Threads: the handle's. */
LEEWARD_API leeward_result *leeward_execute(leeward_handle *handle, const char *code, size_t length,
					    const leeward_options *options);

/* Send a job without waiting for its result; many may be in flight.
 *
 * Takes what leeward_execute takes; options->deadline bounds the sending alone.
 *
 * Returns: the job's id, above 0, for leeward_wait; or a negative leeward_error.
 * Errors: as leeward_execute; LEEWARD_BUSY as well where 256 are in flight.
 * Threads: the handle's. */
LEEWARD_API int64_t leeward_submit(leeward_handle *handle, const char *code, size_t length,
				   const leeward_options *options);

/* Wait for a submitted job. Each job is answered once: by a result, or by an error.
 *
 * Args:
 *	id: which one, and set to the one that was answered. NULL, or a 0 in it: any, in the
 *		order in which they are ready. Left alone where none was answered.
 *	timeout: seconds to wait; 0: only look; below 0: see Time, above.
 * Returns: its result, which the caller frees by leeward_free_result; or NULL.
 * Errors: LEEWARD_NOT_YET: *timeout* has passed and the job goes on; LEEWARD_INVALID: no
 *	such job, or none at all, is in flight; else as leeward_execute, and the job is
 *	answered. A lost connection answers all jobs that are in flight.
 * Threads: the handle's. */
LEEWARD_API leeward_result *leeward_wait(leeward_handle *handle, int64_t *id, double timeout);

/* Take a submitted job back. leeward_wait then gives LEEWARD_CANCELLED for it, or its
 * result if that was quicker.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: LEEWARD_INVALID: no such job is in flight; LEEWARD_AWAY, LEEWARD_NO_ANSWER.
 * Threads: the handle's. */
LEEWARD_API int leeward_cancel(leeward_handle *handle, int64_t id);

/* The descriptor to poll for reading while jobs are in flight.
 *
 * When it is readable call leeward_wait with timeout 0 until that gives LEEWARD_NOT_YET or
 * LEEWARD_INVALID, and only then poll again, by level: one readiness may bring several
 * results. It stays the library's: only poll it. It changes when the library connects again, which
 * only leeward_execute, leeward_submit, leeward_ping and leeward_status do.
 *
 * Returns: the descriptor; or a negative leeward_error.
 * Errors: LEEWARD_INVALID; LEEWARD_AWAY: there is no connection now.
 * Threads: the handle's. */
LEEWARD_API int leeward_fd(leeward_handle *handle);

/* Ask whether the daemon answers.
 *
 * Args:
 *	timeout: seconds to wait; 0: 5 of them.
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: LEEWARD_INVALID, LEEWARD_AWAY, LEEWARD_NO_ANSWER, LEEWARD_BAD_REPLY, LEEWARD_REFUSED
 *	and those below it.
 * Threads: the handle's. */
LEEWARD_API int leeward_ping(leeward_handle *handle, double timeout);

/* Workers, jobs and layers of the daemon, as `leeward status --json` prints them.
 *
 * Args:
 *	timeout: seconds to wait; 0: 5 of them.
 * Returns: one JSON object in ASCII, the handle's until its next leeward_status or
 *	leeward_disconnect; or NULL.
 * Errors: as leeward_ping.
 * Threads: the handle's. */
LEEWARD_API const char *leeward_status(leeward_handle *handle, double timeout);

/* Free a result and unmap what it maps. NULL is allowed.
 *
 * Threads: any, when no other uses the result any more. */
LEEWARD_API void leeward_free_result(leeward_result *result);

/* The same by another name. */
LEEWARD_API void leeward_result_free(leeward_result *result);

#ifdef __cplusplus
}
#endif

#endif
