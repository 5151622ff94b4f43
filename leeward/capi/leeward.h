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
	LEEWARD_NOT_YET = -6,       /* of a wait: no result so far; the jobs go on */
	LEEWARD_FILE = -7,          /* a file call failed inside the sandbox; leeward_last_error_errno says how */
	LEEWARD_REFUSED = -16,      /* the daemon is there and refused, for a reason not listed here */
	LEEWARD_BUSY = -17,         /* its queue is full; try again later */
	LEEWARD_QUEUE_TIMEOUT = -18, /* no worker came free in time */
	LEEWARD_SHUTTING_DOWN = -19, /* it takes no new jobs */
	LEEWARD_VERSION_MISMATCH = -20, /* it speaks another version of the wire */
	LEEWARD_REJECTED = -21,     /* it finds the request impossible: a limit above its ceiling, a wrong name */
	LEEWARD_CANCELLED = -22,    /* leeward_cancel took the job back */
	LEEWARD_FORBIDDEN = -23,    /* it doesn't serve this user */
	LEEWARD_SANDBOX_OVER = -24, /* this user has no such sandbox, or it is over */
	LEEWARD_PROCESS_OVER = -25, /* the sandbox has no such process, or it ended a while ago */
	LEEWARD_SESSION_OVER = -26  /* the kernel's process has ended, and its state is lost */
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
	LEEWARD_LIMIT_TIME = 5,
	LEEWARD_LIMIT_CPU = 6 /* of a program of a live sandbox alone */
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
 * stands for the first one, which ends with `deadline`. */
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
	const char *const *collect; /* files, folders and patterns below /workspace to bring back; docs/wire.md */
	size_t collect_count;
	const void *stdin_data;     /* what the job reads on descriptor 0 */
	size_t stdin_length;        /* bytes */
	double deadline;            /* seconds that leeward_execute may take in all; 0: see Time, above */
	int32_t idempotent;         /* second version. 1: it does no harm if the job runs twice; see leeward_execute */
	int32_t no_retry;           /* second version. 1: leeward_execute sends nothing again; see there */
	const char *label;          /* third version. Your own name for the job, for the daemon's logs */
	int32_t no_retry_busy;      /* third version. 1: not what a busy daemon has refused */
	int32_t display;            /* third version. 1: the result has `value` and `shown`; an older library ignores it */
} leeward_options;

/* Something that `collect` left out. */
typedef struct leeward_left_out {
	const char *name;           /* of the file, the folder or the pattern; shown, not to be opened */
	const char *reason;         /* one of docs/wire.md's: "no_match", "link", "too_large" and so on */
} leeward_left_out;

/* A system call that a job was refused. `network` is no call: it counts refused sockets of any kind but Unix's. */
typedef struct leeward_denied {
	const char *name;
	uint64_t count;
} leeward_denied;

/* One form of something that a job has shown: text in UTF-8, or binary, by its MIME type. */
typedef struct leeward_form {
	const char *type;           /* "text/plain", "image/png" and so on; docs/wire.md has all */
	const void *data;           /* HTML and SVG may have scripts: show it only where they can do no harm */
	size_t length;              /* bytes */
} leeward_form;

/* Something that a job has shown, in one form or several. */
typedef struct leeward_shown {
	const leeward_form *forms;
	size_t form_count;          /* 1 at least */
} leeward_shown;

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
	const leeward_left_out *left_out; /* second version: what `collect` left out */
	size_t left_out_count;
	const char *value;          /* third version: the repr of the last expression's value, with `display`; NULL: none */
	const leeward_shown *shown; /* third version: what the code showed, with `display` */
	size_t shown_count;
} leeward_result;

/* A live sandbox: its id, and the handle by which it is asked. */
typedef struct leeward_sandbox leeward_sandbox;

/* A folder or a file of the host for a live sandbox. This process opens it, with its own rights. */
typedef struct leeward_mount {
	const char *source;         /* its path on the host */
	const char *target;         /* absolute path in the sandbox; /workspace is where programs start */
	int32_t writable;           /* 1: what is written there is written on the host */
	int32_t overlay;            /* 1: what is written there stays in the sandbox; see docs/sandboxes.md */
} leeward_mount;

/* What a live sandbox gets. All zero is the daemon's defaults, and so is NULL in place of the struct.
 *
 * It grows at its end: `size` says which version the caller was compiled with, and 0 stands for the first one, which ends
 * with `lifetime`. */
typedef struct leeward_sandbox_options {
	size_t size;                /* sizeof(leeward_sandbox_options), or 0 for the first version */
	double timeout;             /* seconds for each program and each code that sets none */
	uint64_t memory;            /* bytes, of all its processes and files together */
	uint64_t output;            /* bytes of stdout and stderr, of each program and each code that sets none */
	uint64_t processes;         /* processes and threads at once */
	const char *const *environment; /* NAME=value each, for every process in it */
	size_t environment_count;
	const char *const *metadata; /* NAME=value each, for leeward_sandbox_list to show; at most 64 */
	size_t metadata_count;
	double idle;                /* seconds without a call after which it ends */
	double lifetime;            /* seconds after which it ends in any case */
	const leeward_mount *mounts; /* second version, as all below. At most 16 */
	size_t mount_count;
	const char *profile;        /* "python", "workdir" or one of the operator's; "python" by default */
	const char *environment_name; /* the Python environment whose packages it has; none by default */
	const char *egress;         /* what it may reach: a policy of the operator's; nothing by default */
} leeward_sandbox_options;

/* What a live sandbox is and has. */
typedef struct leeward_sandbox_info {
	size_t size;                /* bytes of this struct that are filled */
	const char *id;             /* 26 characters */
	const char *profile;
	const char *const *metadata; /* a name, its value, and so on; NULL where there are none */
	size_t metadata_count;      /* of names */
	int64_t age_us;             /* microseconds since it was opened */
	int64_t idle_us;            /* that it may be without a call */
	int64_t unused_us;          /* that it is without one now */
	int64_t left_us;            /* until the end of its lifetime */
	int64_t cpu_time_us;
	uint64_t processes;         /* that clients started and that run */
	uint64_t calls;             /* requests that wait for it */
	uint64_t memory_limit;      /* bytes */
	uint64_t memory_peak;       /* bytes */
} leeward_sandbox_info;

/* Live sandboxes of this user, the oldest first. */
typedef struct leeward_sandboxes {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const leeward_sandbox_info *const *sandboxes; /* NULL where there are none */
} leeward_sandboxes;

/* A program for a live sandbox. Either argv or shell is given; all else may be zero. */
typedef struct leeward_program {
	size_t size;                /* sizeof(leeward_program), or 0 for the first version */
	const char *const *argv;    /* the program, which is looked for in PATH, and its arguments */
	size_t argc;
	const char *shell;          /* a line for /bin/sh -c */
	const char *cwd;            /* where it starts; /workspace by default */
	const char *const *environment; /* NAME=value each, beside the sandbox's */
	size_t environment_count;
	const void *stdin_data;     /* its standard input */
	size_t stdin_length;        /* bytes */
	const char *title;          /* your own name for it; argv[0] by default */
	double timeout;             /* seconds; by default the sandbox's, and none for leeward_process_start */
	uint64_t output;            /* bytes of stdout and stderr; likewise */
	double deadline;            /* seconds that leeward_sandbox_run may take in all; 0: see Time, above */
	int32_t keep_stdin;         /* of leeward_process_start. 1: leeward_process_write writes on behind stdin_data */
	int32_t bounded;            /* of leeward_process_start. 1: the sandbox's timeout and output hold for it, too */
	int32_t rows;               /* of leeward_process_start. Above 0, with columns: it is on a terminal of that size */
	int32_t columns;
} leeward_program;

/* A piece of a process's output. */
typedef struct leeward_chunk {
	size_t size;                /* bytes of this struct that are filled */
	int64_t number;             /* from 1 on, without gaps */
	int32_t stream;             /* 1 stdout, 2 stderr; all that a terminal shows is 1 */
	int32_t reserved;
	double time;                /* when the daemon read it: CLOCK_MONOTONIC seconds */
	const unsigned char *data;  /* not terminated; lives until the callback returns */
	size_t length;              /* bytes */
} leeward_chunk;

/* Is given each piece of output in order.
 *
 * It mustn't use the handle. Returns 0 to go on. Anything else stops the call: this piece counts as read. */
typedef int (*leeward_take)(void *context, const leeward_chunk *chunk);

/* What a file is. */
typedef enum leeward_kind {
	LEEWARD_KIND_FILE = 1,
	LEEWARD_KIND_FOLDER = 2,
	LEEWARD_KIND_LINK = 3,
	LEEWARD_KIND_OTHER = 4      /* a FIFO, a socket, a device */
} leeward_kind;

/* What is by a name in a live sandbox. Names are bytes without NUL, and need not be UTF-8. */
typedef struct leeward_entry {
	size_t size;                /* bytes of this struct that are filled */
	const char *name;           /* in its folder */
	int32_t kind;               /* a leeward_kind */
	uint32_t mode;              /* permission bits */
	uint64_t length;            /* bytes */
	int64_t time_ns;            /* of the last change, since the epoch */
	const char *target;         /* where a link leads; NULL for all else */
} leeward_entry;

/* What is in a folder, sorted by name; or what is by one name. */
typedef struct leeward_entries {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const leeward_entry *const *entries; /* NULL where there are none */
} leeward_entries;

/* What a file holds. */
typedef struct leeward_content {
	size_t size;                /* bytes of this struct that are filled */
	const unsigned char *data;  /* never NULL; not terminated */
	size_t length;              /* bytes */
	uint32_t mode;              /* permission bits */
	int64_t time_ns;            /* of the last change, since the epoch */
} leeward_content;

/* Paths that a pattern fits, sorted. They are bytes without NUL, and need not be UTF-8. */
typedef struct leeward_names {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const char *const *names;   /* NULL where there are none */
	int32_t more;               /* 1: there are more than was asked for */
} leeward_names;

/* A line that a search has found. */
typedef struct leeward_match {
	size_t size;                /* bytes of this struct that are filled */
	const char *path;           /* of its file */
	uint64_t line;              /* its number, from 1 on */
	const unsigned char *text;  /* its bytes without the end of the line, 1,000 at most; a NUL is behind them */
	size_t length;              /* bytes */
} leeward_match;

/* Lines that a search has found, file by file. */
typedef struct leeward_matches {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const leeward_match *const *matches; /* NULL where there are none */
	int32_t more;               /* 1: there are more than was asked for */
} leeward_matches;

/* How leeward_file_grep reads its pattern. */
typedef enum leeward_grep_flags {
	LEEWARD_GREP_LITERAL = 1,   /* as text, not as an expression */
	LEEWARD_GREP_IGNORE_CASE = 2 /* of ASCII's letters */
} leeward_grep_flags;

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

/* Whether the job of the last failed call, or a part of it, may have run.
 *
 * 0 is certain: nobody was there, or no byte of the request was handed over, or the daemon refused it; it
 * can be sent again. 1 as soon as the daemon may have had a byte of it and gave no answer that says otherwise.
 *
 * Returns: 1 or 0, 0 before the first failure. A call that succeeds leaves it alone.
 * Threads: any; each has its own. */
LEEWARD_API int leeward_last_error_may_have_run(void);

/* Seconds after which the request of the last failed call may be taken, where the daemon has told: it was busy.
 *
 * Returns: seconds, or -1 where it isn't known. A call that succeeds leaves it alone.
 * Threads: any; each has its own. */
LEEWARD_API double leeward_last_error_retry_after(void);

/* Connect to a daemon.
 *
 * Connects at once; if the connection is lost later, the next call makes a new one.
 *
 * Args:
 *	path: the daemon's socket. NULL or "": $LEEWARD_SOCKET, else `socket` in the user's or the
 *		system's configuration file, else the user's own daemon:
 *		/run/leeward/leeward.sock for root, $XDG_RUNTIME_DIR/leeward/leeward.sock for others.
 *		Only a socket of root, of the caller's own user or of the user whose number is in
 *		$LEEWARD_TRUSTED_UID is taken.
 * Returns: a handle, which the caller ends by leeward_disconnect; or NULL.
 * Errors: LEEWARD_AWAY, LEEWARD_NO_MEMORY; LEEWARD_INVALID for a configuration file that others can write.
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
 * A daemon that ends refuses a job that it hasn't begun (LEEWARD_SHUTTING_DOWN), or closes the
 * connection before it takes a byte: then the job is sent again over a new connection, for 10 s or until
 * the deadline, unless options->no_retry says otherwise, or other jobs of this handle are in flight. With
 * options->idempotent it is sent again as well where the connection was lost while it may have been running.
 * A daemon that is busy refuses a job (LEEWARD_BUSY), which is sent again over the same connection after the time that
 * the daemon names, or a short one, for 30 s or until the deadline, unless options->no_retry or options->no_retry_busy
 * says otherwise.
 *
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
 * Takes what leeward_execute takes; options->deadline bounds the sending alone. A job that is refused is not sent
 * again: leeward_wait tells, and leeward_last_error_may_have_run says whether the caller may send it.
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

/* Raise KeyboardInterrupt in a submitted job, as Ctrl-C does; its result then comes to leeward_wait.
 *
 * A job that handles it, or is in C code, runs on. One that waits for a worker yet is taken back. May be called again.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_cancel.
 * Threads: the handle's. */
LEEWARD_API int leeward_interrupt(leeward_handle *handle, int64_t id);

/* End a submitted job, and have leeward_wait give its result with all that it wrote until then: outcome
 * LEEWARD_SIGNALLED, exit code 137. One that waits for a worker yet is taken back.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_cancel.
 * Threads: the handle's. */
LEEWARD_API int leeward_kill(leeward_handle *handle, int64_t id);

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

/* The errno of the last failed file call (LEEWARD_FILE) of this thread, as the kernel gave it inside the sandbox.
 *
 * Returns: an errno of Linux; 0 where the last failed call was no file call, or made no sense. A call that succeeds
 *	leaves it alone.
 * Threads: any; each has its own. */
LEEWARD_API int leeward_last_error_errno(void);

/* Open a live sandbox: programs, Python and files in it, until it is killed or over. docs/sandboxes.md.
 *
 * It belongs to the user: any connection finds it by its id. A call about it takes its handle until it returns; for
 * calls at the same time attach to it by several handles.
 *
 * Args:
 *	options: NULL for the daemon's defaults.
 * Returns: the sandbox, which the caller frees by leeward_sandbox_detach, before its handle; or NULL.
 * Errors: LEEWARD_INVALID, LEEWARD_BUSY (nothing is sent again; see leeward_last_error_retry_after), LEEWARD_REJECTED,
 *	LEEWARD_AWAY, LEEWARD_NO_ANSWER, LEEWARD_BAD_REPLY, LEEWARD_NO_MEMORY, and those below LEEWARD_REFUSED.
 * Threads: the handle's, as for all functions of a sandbox. */
LEEWARD_API leeward_sandbox *leeward_sandbox_open(leeward_handle *handle, const leeward_sandbox_options *options);

/* Find the sandbox with this id, which another program of the same user may have opened.
 *
 * Returns: the sandbox, which the caller frees by leeward_sandbox_detach; or NULL.
 * Errors: LEEWARD_SANDBOX_OVER; else as leeward_sandbox_open.
 * Threads: the handle's. */
LEEWARD_API leeward_sandbox *leeward_sandbox_attach(leeward_handle *handle, const char *id);

/* Its id: 26 characters, which the object owns.
 *
 * Returns: a text that lives as long as the object; NULL for NULL. Never fails.
 * Threads: any. */
LEEWARD_API const char *leeward_sandbox_id(const leeward_sandbox *sandbox);

/* Free the object. The sandbox itself stays, until it was idle for too long. NULL is allowed.
 *
 * Threads: the handle's. */
LEEWARD_API void leeward_sandbox_detach(leeward_sandbox *sandbox);

/* End every process in it, and the sandbox. The object is still the caller's to free.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: LEEWARD_SANDBOX_OVER: it was over before; else as leeward_ping.
 * Threads: the handle's. */
LEEWARD_API int leeward_sandbox_kill(leeward_sandbox *sandbox);

/* Give it other times.
 *
 * Args:
 *	idle: seconds without a call after which it ends; 0 leaves them as they are.
 *	lifetime: seconds from now on after which it ends; 0 likewise.
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_sandbox_kill, and LEEWARD_REJECTED.
 * Threads: the handle's. */
LEEWARD_API int leeward_sandbox_extend(leeward_sandbox *sandbox, double idle, double lifetime);

/* What it is and has.
 *
 * Returns: a list with this one, which the caller frees by leeward_free_sandboxes; or NULL.
 * Errors: as leeward_sandbox_kill.
 * Threads: the handle's. */
LEEWARD_API leeward_sandboxes *leeward_sandbox_info_of(leeward_sandbox *sandbox);

/* What all live sandboxes of this user are and have.
 *
 * Returns: a list, which the caller frees by leeward_free_sandboxes; or NULL.
 * Errors: as leeward_ping.
 * Threads: the handle's. */
LEEWARD_API leeward_sandboxes *leeward_sandbox_list(leeward_handle *handle);

/* Free a list of sandboxes. NULL is allowed.
 *
 * Threads: any. */
LEEWARD_API void leeward_free_sandboxes(leeward_sandboxes *sandboxes);

/* Run a program in a sandbox to its end.
 *
 * It ends with the program itself: output of children that live on is waited for 50 ms more. A limit ends all that
 * descends from it. A deadline that passes does, too.
 *
 * Returns: how it ended, with its output, which the caller frees by leeward_free_result: exit code 127 for a missing
 *	program and 126 for one that can't be run; or NULL.
 * Errors: LEEWARD_SANDBOX_OVER; else as leeward_execute. Nothing is sent again.
 * Threads: the handle's. */
LEEWARD_API leeward_result *leeward_sandbox_run(leeward_sandbox *sandbox, const leeward_program *program);

/* Run Python code in a sandbox, with its files.
 *
 * Args:
 *	kernel: a number of leeward_kernel_open; 0: an interpreter of its own.
 *	code: Python source; NULL isn't allowed.
 *	length: its bytes, at most 16 MiB.
 *	options: as for leeward_execute, except module, memory, processes, label and those about sending again; a kernel
 *		takes no stdin. With display the result has what the code shows.
 * Returns: the result, which the caller frees by leeward_free_result; or NULL.
 * Errors: LEEWARD_SANDBOX_OVER; LEEWARD_SESSION_OVER: the kernel's state is lost; else as leeward_execute. Nothing
 *	is sent again.
 * Threads: the handle's. */
LEEWARD_API leeward_result *leeward_sandbox_execute(leeward_sandbox *sandbox, int64_t kernel, const char *code,
						    size_t length, const leeward_options *options);

/* Start a Python that keeps its state: variables, imports, threads.
 *
 * Returns: its number, above 0; or a negative leeward_error.
 * Errors: LEEWARD_SANDBOX_OVER, LEEWARD_BUSY; else as leeward_ping.
 * Threads: the handle's. */
LEEWARD_API int64_t leeward_kernel_open(leeward_sandbox *sandbox);

/* Raise KeyboardInterrupt in what a kernel runs: by another handle than the one that waits for it.
 *
 * Returns: 1, or 0 where nothing runs; or a negative leeward_error.
 * Errors: as leeward_kernel_open.
 * Threads: the handle's. */
LEEWARD_API int leeward_kernel_interrupt(leeward_sandbox *sandbox, int64_t kernel);

/* Give a kernel a fresh process. Its state is lost; who waits for a result of it gets LEEWARD_SESSION_OVER.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_kernel_open.
 * Threads: the handle's. */
LEEWARD_API int leeward_kernel_reset(leeward_sandbox *sandbox, int64_t kernel);

/* End a kernel.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_kernel_open.
 * Threads: the handle's. */
LEEWARD_API int leeward_kernel_close(leeward_sandbox *sandbox, int64_t kernel);

/* Start a program and come back at once. It runs until it ends, is killed, or the sandbox is over.
 *
 * Returns: its number, above 0, which every handle of this user may use; or a negative leeward_error.
 * Errors: LEEWARD_SANDBOX_OVER, LEEWARD_BUSY: as many run as may; else as leeward_ping.
 * Threads: the handle's. */
LEEWARD_API int64_t leeward_process_start(leeward_sandbox *sandbox, const leeward_program *program);

/* Read output of a process, as soon as there is any.
 *
 * While nobody reads its output it can write some 128 KiB, and then waits.
 *
 * Args:
 *	after: the number of the last piece that was taken, 0 at first; set to that of the last one that *take* was given.
 *	timeout: seconds to wait for output; 0: only what is there; below 0: until there is some, or its end.
 *	take: is given each piece.
 *	context: is given to *take*.
 * Returns: 1 if more may come; 0 if the process has ended and this was all; or a negative leeward_error. Nothing at all
 *	within the time is 1 as well.
 * Errors: LEEWARD_PROCESS_OVER, LEEWARD_SANDBOX_OVER; else as leeward_ping.
 * Threads: the handle's. */
LEEWARD_API int leeward_process_read(leeward_sandbox *sandbox, int64_t process, int64_t *after, double timeout,
				     leeward_take take, void *context);

/* Write to a process that was started with keep_stdin or on a terminal; waits until it has taken all.
 *
 * Returns: how many bytes were taken: fewer than *length* where it reads no more; or a negative leeward_error.
 * Errors: as leeward_process_read, and LEEWARD_BUSY: 4 MiB wait for it already. What was taken before an error isn't told.
 * Threads: the handle's. */
LEEWARD_API int64_t leeward_process_write(leeward_sandbox *sandbox, int64_t process, const void *data, size_t length);

/* End the standard input of a process.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_process_read; LEEWARD_REJECTED for one on a terminal, where the byte 4 says it to most programs.
 * Threads: the handle's. */
LEEWARD_API int leeward_process_close_stdin(leeward_sandbox *sandbox, int64_t process);

/* Send a process a signal; it alone, not its children.
 *
 * Returns: 1, or 0 where it has ended; or a negative leeward_error.
 * Errors: as leeward_process_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_process_signal(leeward_sandbox *sandbox, int64_t process, int number);

/* Give a process's terminal another size.
 *
 * Returns: 1, or 0 where it has ended; or a negative leeward_error.
 * Errors: as leeward_process_read; LEEWARD_REJECTED: it is on no terminal.
 * Threads: the handle's. */
LEEWARD_API int leeward_process_resize(leeward_sandbox *sandbox, int64_t process, int rows, int columns);

/* End a process and all that descends from it. Doesn't wait for that.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_process_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_process_kill(leeward_sandbox *sandbox, int64_t process);

/* Wait for the end of a process. It can only end if somebody reads what it writes.
 *
 * Args:
 *	timeout: seconds to wait; 0: only look; below 0: as long as it runs.
 * Returns: how it ended, without output, which the caller frees by leeward_free_result; or NULL.
 * Errors: LEEWARD_NOT_YET: it runs on; else as leeward_process_read.
 * Threads: the handle's. */
LEEWARD_API leeward_result *leeward_process_wait(leeward_sandbox *sandbox, int64_t process, double timeout);

/* Read a file of a sandbox.
 *
 * Args:
 *	path: bytes without NUL; a relative one begins at /workspace. So for all functions of files.
 *	most: bytes; a file with more is LEEWARD_FILE with EFBIG. 0: 64 MiB.
 * Returns: its content, which the caller frees by leeward_free_content; or NULL.
 * Errors: LEEWARD_FILE; LEEWARD_SANDBOX_OVER, LEEWARD_BUSY; else as leeward_ping. So for all functions of files.
 * Threads: the handle's. */
LEEWARD_API leeward_content *leeward_file_read(leeward_sandbox *sandbox, const char *path, uint64_t most);

/* Free what leeward_file_read gave. NULL is allowed.
 *
 * Threads: any. */
LEEWARD_API void leeward_free_content(leeward_content *content);

/* Write a file of a sandbox: all of it, or nothing. Folders that lead there are made.
 *
 * Args:
 *	mode: permission bits; -1: those of the file before it.
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_file_write(leeward_sandbox *sandbox, const char *path, const void *data, size_t length, int mode);

/* Write at the end of a file, which is made if it isn't there.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_file_append(leeward_sandbox *sandbox, const char *path, const void *data, size_t length);

/* What is in a folder.
 *
 * Returns: its entries, which the caller frees by leeward_free_entries; or NULL.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API leeward_entries *leeward_file_list(leeward_sandbox *sandbox, const char *path);

/* What is by a name.
 *
 * Args:
 *	follow: 1: a link stands for what it leads to.
 * Returns: one entry, which the caller frees by leeward_free_entries; or NULL.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API leeward_entries *leeward_file_stat(leeward_sandbox *sandbox, const char *path, int follow);

/* Free a list of entries. NULL is allowed.
 *
 * Threads: any. */
LEEWARD_API void leeward_free_entries(leeward_entries *entries);

/* Make a folder.
 *
 * Args:
 *	parents: 1: and those that lead there, and it may be there already.
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_file_mkdir(leeward_sandbox *sandbox, const char *path, int parents);

/* Remove a file, a link or an empty folder.
 *
 * Args:
 *	recursive: 1: a folder with all that is in it.
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_file_remove(leeward_sandbox *sandbox, const char *path, int recursive);

/* Give a file or folder another name, or place.
 *
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_file_move(leeward_sandbox *sandbox, const char *path, const char *to);

/* Copy a file, or a folder with all that is in it. Modes, times and links are kept.
 *
 * Args:
 *	to: the new one; there is nothing by that name but perhaps a file, in whose place a file is put.
 * Returns: LEEWARD_OK, or a negative leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int leeward_file_copy(leeward_sandbox *sandbox, const char *path, const char *to);

/* Replace bytes that occur exactly once in a file.
 *
 * Args:
 *	path: of a file of 32 MiB at most.
 *	before: what is replaced: 1 byte to 1 MiB.
 *	after: what is there then: 1 MiB at most; may be NULL where after_length is 0.
 * Returns: 1: it was replaced; 0, or 2 and more: how many times *before* is there, and nothing was changed; or a negative
 *	leeward_error.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API int64_t leeward_file_edit(leeward_sandbox *sandbox, const char *path, const void *before,
				      size_t before_length, const void *after, size_t after_length);

/* Find files and folders by a pattern.
 *
 * Args:
 *	path: the folder below which they are; "." for /workspace.
 *	pattern: as for Python's glob: *, ?, [a-z], and ** for folders of any depth; 4,096 bytes at most.
 *	most: paths; 0, and more than 4,000: 4,000.
 * Returns: the paths, with *path* in front unless it is ".", which the caller frees by leeward_free_names; or NULL.
 * Errors: as leeward_file_read.
 * Threads: the handle's. */
LEEWARD_API leeward_names *leeward_file_glob(leeward_sandbox *sandbox, const char *path, const char *pattern,
					     uint32_t most);

/* Free what leeward_file_glob gave. NULL is allowed.
 *
 * Threads: any. */
LEEWARD_API void leeward_free_names(leeward_names *names);

/* Search a file, or all files below a folder, for lines.
 *
 * Args:
 *	pattern: a regular expression of Python's, over bytes; 4,096 bytes at most.
 *	include: a pattern for the last component of a file's name, such as "*.py"; NULL for all files.
 *	flags: of leeward_grep_flags.
 *	most: lines; 0: 1,000; 4,000 at most.
 * Returns: the lines, which the caller frees by leeward_free_matches; or NULL.
 * Errors: as leeward_file_read; LEEWARD_FILE with the errno 0 where the pattern is none.
 * Threads: the handle's. */
LEEWARD_API leeward_matches *leeward_file_grep(leeward_sandbox *sandbox, const char *path, const char *pattern,
					       const char *include, uint32_t flags, uint32_t most);

/* Free what leeward_file_grep gave. NULL is allowed.
 *
 * Threads: any. */
LEEWARD_API void leeward_free_matches(leeward_matches *matches);

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
