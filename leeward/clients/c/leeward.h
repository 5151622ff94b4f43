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
 * Threads: only one thread at a time may use a handle; several threads may each use a handle of their own. This
 * rule holds for every function below that has no line about threads. A result is independent of the handle: any
 * number of threads may read it, and one of them frees it, also after leeward_disconnect. So it is with all that a
 * leeward_free_ function frees.
 *
 * Errors: a function that fails returns NULL or a negative leeward_error; one that has nothing else to return gives
 * LEEWARD_OK if it succeeds. After a failure leeward_last_error_code and leeward_last_error have the code and the text,
 * for the calling thread. A job that fails is not an error of the call: its result says how it failed. NULL and invalid
 * arguments give LEEWARD_INVALID, never a crash; only a dangling or invalid pointer can do harm.
 *
 * Time: no call waits for ever. A call without a deadline lasts as long as the daemon responds:
 * after 10 s of silence the library sends the daemon a ping, and after 10 s more without a byte
 * the call fails with LEEWARD_NO_ANSWER. Connecting takes at most 5 s.
 *
 * Signals and forks: the library raises and blocks no signal; a call that a signal interrupts
 * is resumed. After a fork each process has a connection of its own: the child's first call
 * makes it, and the jobs in flight stay with the parent.
 *
 * C11 or C++17; needs nothing but libc. docs/c-api.md has this reference as a page, with examples. */
#ifndef LEEWARD_H
#define LEEWARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LEEWARD_API __attribute__((visibility("default")))

/* Why a call failed. Later versions may add codes: treat an unknown one as LEEWARD_REFUSED. */
typedef enum leeward_error {
	LEEWARD_OK = 0,
	LEEWARD_INVALID = -1,       /* an argument of this call is invalid */
	LEEWARD_NO_MEMORY = -2,     /* this process has no memory left */
	LEEWARD_AWAY = -3,          /* no daemon listens on the socket, or the connection was lost before the answer */
	LEEWARD_NO_ANSWER = -4,     /* the deadline has passed, or the daemon doesn't respond */
	LEEWARD_BAD_REPLY = -5,     /* the reply doesn't follow docs/wire.md */
	LEEWARD_NOT_YET = -6,       /* a wait ended without a result; the jobs go on */
	LEEWARD_FILE = -7,          /* a file call failed inside the sandbox; leeward_last_error_errno has the errno */
	LEEWARD_REFUSED = -16,      /* the daemon refused the request, for a reason not listed here */
	LEEWARD_BUSY = -17,         /* the daemon's queue is full; try again later */
	LEEWARD_QUEUE_TIMEOUT = -18, /* no worker came free in time */
	LEEWARD_SHUTTING_DOWN = -19, /* the daemon is stopping and takes no new jobs */
	LEEWARD_VERSION_MISMATCH = -20, /* the daemon speaks another version of the protocol */
	LEEWARD_REJECTED = -21,     /* the daemon found the request invalid: a limit above its ceiling, a wrong name */
	LEEWARD_CANCELLED = -22,    /* leeward_cancel took the job back */
	LEEWARD_FORBIDDEN = -23,    /* the daemon doesn't serve this user */
	LEEWARD_SANDBOX_OVER = -24, /* this user has no such sandbox, or it has ended */
	LEEWARD_PROCESS_OVER = -25, /* the sandbox has no such process, or it ended a while ago */
	LEEWARD_SESSION_OVER = -26, /* the kernel's process has ended, and its state is lost */
	LEEWARD_SNAPSHOT_FAILED = -27 /* the snapshot couldn't be taken or loaded, or there is none; the message says why */
} leeward_error;

/* How a job ended. */
typedef enum leeward_outcome {
	LEEWARD_FINISHED = 1,       /* ran to its end, or sys.exit */
	LEEWARD_RAISED = 2,         /* an exception left the main module */
	LEEWARD_SIGNALLED = 3,      /* a signal ended its main process */
	LEEWARD_TIMED_OUT = 4,      /* it was ended at its time limit */
	LEEWARD_OUT_OF_MEMORY = 5,  /* it was ended at its memory limit */
	LEEWARD_OUTPUT_LIMIT = 6,   /* it was ended because it wrote more than its output limit */
	LEEWARD_INTERNAL = 7        /* its worker was lost; the result's error says why */
} leeward_outcome;

/* The limit that a job has reached, whether or not that ended it. */
typedef enum leeward_limit {
	LEEWARD_LIMIT_NONE = 0,
	LEEWARD_LIMIT_MEMORY = 1,
	LEEWARD_LIMIT_PROCESSES = 2,
	LEEWARD_LIMIT_FILES = 3,
	LEEWARD_LIMIT_OUTPUT = 4,
	LEEWARD_LIMIT_TIME = 5,
	LEEWARD_LIMIT_CPU = 6, /* processor seconds of a job, or of a program in a live sandbox */
	LEEWARD_LIMIT_DESCRIPTORS = 7 /* open descriptors in one process */
} leeward_limit;

/* What happens to a program whose output exceeds its limit. */
typedef enum leeward_overflow {
	LEEWARD_OVERFLOW_DEFAULT = 0, /* a job is ended; in a live sandbox output is cut */
	LEEWARD_OVERFLOW_CUT = 1,   /* beginning and end of its output are kept, and it goes on */
	LEEWARD_OVERFLOW_END = 2    /* it is ended */
} leeward_overflow;

/* A connection to a daemon. */
typedef struct leeward_handle leeward_handle;

/* A file of a job. */
typedef struct leeward_file {
	const char *name;           /* a relative path below the job's /workspace, UTF-8 */
	const void *data;           /* may be NULL where length is 0 */
	size_t length;              /* bytes */
} leeward_file;

/* Options of a job. A field that is zero stands for the daemon's default, and NULL in place of
 * the struct for all defaults. The caller owns everything, and may free it when the call returns.
 *
 * Later versions append fields: `size` says which version the caller was compiled with, and 0
 * stands for the first one, which ends with `deadline`. */
typedef struct leeward_options {
	size_t size;                /* sizeof(leeward_options), or 0 */
	double timeout;             /* seconds that the job may run; time in the queue doesn't count */
	uint64_t memory;            /* bytes, of all its processes and files together */
	uint64_t output;            /* bytes of stdout and stderr together */
	uint64_t processes;         /* processes and threads at once */
	const char *name;           /* the file name that tracebacks show */
	const char *module;         /* run this module as python -m does, instead of code */
	const char *const *arguments; /* sys.argv[1:] */
	size_t argument_count;
	const char *const *environment; /* NAME=value each, added to the sandbox's own; the last one of a name counts */
	size_t environment_count;
	const leeward_file *files;  /* written to /workspace before the job starts */
	size_t file_count;
	const char *const *collect; /* files, folders and patterns below /workspace that the result returns; docs/wire.md */
	size_t collect_count;
	const void *stdin_data;     /* what the job reads on descriptor 0 */
	size_t stdin_length;        /* bytes */
	double deadline;            /* seconds that leeward_execute may take in all; 0: see Time, above */
	int32_t idempotent;         /* second version. 1: the job may be run twice; see leeward_execute */
	int32_t no_retry;           /* second version. 1: leeward_execute never sends the job again */
	const char *label;          /* third version. Your own name for the job, for the daemon's logs */
	int32_t no_retry_busy;      /* third version. 1: leeward_execute doesn't send the job again if the daemon is busy */
	int32_t display;            /* third version. 1: the result has `value` and `shown`; an older library ignores it */
	int32_t overflow;           /* fourth version. A leeward_overflow; an older library ignores it */
	uint64_t descriptors;       /* fifth version. Open descriptors in each process; an older library ignores it */
	double wall;                /* sixth version. Seconds that the job may run in all, if `timeout` is to count none for which it had no processor */
	double cpu_time;            /* sixth version. Processor seconds of all its processes */
} leeward_options;

/* Something that `collect` left out. */
typedef struct leeward_left_out {
	const char *name;           /* of the file, the folder or the pattern; for display only: don't open it */
	const char *reason;         /* one of docs/wire.md's: "no_match", "link", "too_large" and so on */
} leeward_left_out;

/* A system call that a job was refused. The name `network` counts refused sockets of any family but AF_UNIX. */
typedef struct leeward_denied {
	const char *name;
	uint64_t count;
} leeward_denied;

/* One form of something that a job has displayed: text in UTF-8, or binary, depending on its MIME type. */
typedef struct leeward_form {
	const char *type;           /* "text/plain", "image/png" and so on; docs/wire.md has all */
	const void *data;           /* HTML and SVG may have scripts: display them only where scripts can do no harm */
	size_t length;              /* bytes */
} leeward_form;

/* Something that a job has displayed, in one form or several. */
typedef struct leeward_shown {
	const leeward_form *forms;
	size_t form_count;          /* at least 1 */
} leeward_shown;

/* The result of a job. The library makes it. Later versions append fields; `size` says which
 * fields this one has. All pointers are valid until leeward_free_result.
 *
 * stdout, stderr and files are bytes without a terminating NUL: use the lengths. Large ones are
 * in a read-only mapping: a write to it crashes the program. Texts are UTF-8 with a terminating
 * NUL. Everything that a job wrote, including the names of its files and the text of its error,
 * is untrusted data. */
typedef struct leeward_result {
	size_t size;                /* bytes of this struct that are filled */
	int64_t id;                 /* the id that leeward_submit returned */
	int32_t outcome;            /* a leeward_outcome */
	int32_t exit_code;          /* the job's own; 124 timed out, 125 internal, 137 memory, 153 output, 128 + n signal n */
	int32_t limit;              /* a leeward_limit */
	int32_t truncated;          /* 1: stdout or stderr was cut at the limit */
	const unsigned char *stdout_data; /* never NULL */
	size_t stdout_length;       /* bytes */
	const unsigned char *stderr_data; /* never NULL */
	size_t stderr_length;       /* bytes */
	int64_t duration_us;        /* microseconds from sending the code to the job's end */
	int64_t cpu_time_us;        /* microseconds of all its processes */
	uint64_t memory_peak;       /* bytes, of all its processes and files together; 0: the host can't measure it */
	const leeward_denied *denied; /* NULL if there are none, like the arrays below */
	size_t denied_count;
	const char *const *degraded; /* layers that are missing, with the operator's permission */
	size_t degraded_count;
	const char *error_type;     /* the exception that ended the job, as reported by the job; NULL: none */
	const char *error_message;  /* NULL: none */
	const char *error_traceback; /* NULL: none */
	const leeward_file *files;  /* the files that `collect` asked for */
	size_t file_count;
	const leeward_left_out *left_out; /* second version: what `collect` left out */
	size_t left_out_count;
	const char *value;          /* third version: the repr of the last expression's value, with `display`; NULL: none */
	const leeward_shown *shown; /* third version: what the code displayed, with `display` */
	size_t shown_count;
	uint64_t stdout_omitted;    /* fourth version: bytes that are left out of stdout, where a line says so; see leeward_overflow */
	uint64_t stderr_omitted;    /* fourth version: the same of stderr */
	const char *hint;           /* fifth version: a line about the limit, or how a job that lacks a module has a package; NULL: none */
	int64_t starved_us;         /* sixth version: microseconds of the duration for which it had no processor, with the option `wall` */
} leeward_result;

/* A live sandbox: its id, and the handle that calls about it use. */
typedef struct leeward_sandbox leeward_sandbox;

/* A folder or a file of the host for a live sandbox. The calling process opens it, with its own rights. */
typedef struct leeward_mount {
	const char *source;         /* its path on the host */
	const char *target;         /* absolute path in the sandbox; /workspace is where programs start */
	int32_t writable;           /* 1: writes go to the host's files */
	int32_t overlay;            /* 1: writes stay in the sandbox; see docs/sandboxes.md */
} leeward_mount;

/* Options of a live sandbox. A field that is zero stands for the daemon's default, and NULL in place of the struct for all
 * defaults.
 *
 * Later versions append fields: `size` says which version the caller was compiled with, and 0 stands for the first one,
 * which ends with `lifetime`. */
typedef struct leeward_sandbox_options {
	size_t size;                /* sizeof(leeward_sandbox_options), or 0 for the first version */
	double timeout;             /* seconds that each program and each code may run, unless it sets a limit of its own */
	uint64_t memory;            /* bytes, of all its processes and files together */
	uint64_t output;            /* bytes of stdout and stderr of each program and each code, unless it sets a limit of its own */
	uint64_t processes;         /* processes and threads at once */
	const char *const *environment; /* NAME=value each, for every process in the sandbox */
	size_t environment_count;
	const char *const *metadata; /* NAME=value each, for leeward_sandbox_list to show; at most 64 */
	size_t metadata_count;
	double idle;                /* seconds without a call after which the sandbox ends */
	double lifetime;            /* seconds after which the sandbox ends in any case */
	const leeward_mount *mounts; /* second version, like all fields below. At most 16 */
	size_t mount_count;
	const char *profile;        /* "python", "workdir" or one of the operator's; "python" by default */
	const char *environment_name; /* the Python environment whose packages the sandbox has; none by default */
	const char *egress;         /* the operator's egress policy that says what the sandbox may reach; nothing by default */
	int32_t overflow;           /* third version. A leeward_overflow, of each program and each code that sets none */
	uint64_t descriptors;       /* fourth version. Open descriptors in each process */
	uint64_t files;             /* fourth version. Bytes in /workspace, /tmp and /dev/shm together; they count as memory */
	const char *image;          /* fifth version. The image whose root file system the sandbox has; none by default */
	const char *user;           /* fifth version. With an image: who runs in it, a name or a number; its own by default */
} leeward_sandbox_options;

/* State of a live sandbox. */
typedef struct leeward_sandbox_info {
	size_t size;                /* bytes of this struct that are filled */
	const char *id;             /* 26 characters */
	const char *profile;
	const char *const *metadata; /* names and values in turn: name, value, name, value; NULL if there are none */
	size_t metadata_count;      /* of names */
	int64_t age_us;             /* microseconds since the sandbox was opened */
	int64_t idle_us;            /* microseconds without a call after which the sandbox ends */
	int64_t unused_us;          /* microseconds since the last call */
	int64_t left_us;            /* microseconds until the end of its lifetime */
	int64_t cpu_time_us;        /* microseconds of all its processes */
	uint64_t processes;         /* running processes that clients have started */
	uint64_t calls;             /* requests that wait for an answer from the sandbox */
	uint64_t memory_limit;      /* bytes */
	uint64_t memory_peak;       /* bytes */
} leeward_sandbox_info;

/* A list of live sandboxes of this user, the oldest first. */
typedef struct leeward_sandboxes {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const leeward_sandbox_info *const *sandboxes; /* NULL if there are none */
} leeward_sandboxes;

/* A program for a live sandbox. Set either argv or shell; everything else may be zero. */
typedef struct leeward_program {
	size_t size;                /* sizeof(leeward_program), or 0 for the first version */
	const char *const *argv;    /* the program, which is searched in PATH, and its arguments */
	size_t argc;
	const char *shell;          /* a line for /bin/sh -c */
	const char *cwd;            /* its working directory; /workspace by default */
	const char *const *environment; /* NAME=value each, added to the sandbox's */
	size_t environment_count;
	const void *stdin_data;     /* its standard input */
	size_t stdin_length;        /* bytes */
	const char *title;          /* your own name for the process; argv[0] by default */
	double timeout;             /* seconds; by default the sandbox's, and none for leeward_process_start */
	uint64_t output;            /* bytes of stdout and stderr; default as for timeout */
	double deadline;            /* seconds that leeward_sandbox_run may take in all; 0: see Time, above */
	int32_t keep_stdin;         /* for leeward_process_start. 1: standard input stays open behind stdin_data, for leeward_process_write */
	int32_t bounded;            /* for leeward_process_start. 1: the sandbox's timeout and output limits apply to it, too */
	int32_t rows;               /* for leeward_process_start. Both above 0: the process gets a terminal of this size */
	int32_t columns;            /* see rows */
	int32_t overflow;           /* second version. A leeward_overflow; by default the sandbox's */
} leeward_program;

/* A piece of a process's output. */
typedef struct leeward_chunk {
	size_t size;                /* bytes of this struct that are filled */
	int64_t number;             /* from 1 on, without gaps */
	int32_t stream;             /* 1 stdout, 2 stderr; the output of a terminal is 1 */
	int32_t reserved;
	double time;                /* when the daemon read it: CLOCK_MONOTONIC seconds */
	const unsigned char *data;  /* without a terminating NUL; valid until the callback returns */
	size_t length;              /* bytes */
} leeward_chunk;

/* A callback that leeward_process_read calls with each piece of output, in order.
 *
 * It must not use the handle. It returns 0 to go on. Any other value ends the call; this piece counts as read. */
typedef int (*leeward_take)(void *context, const leeward_chunk *chunk);

/* The type of a file. */
typedef enum leeward_kind {
	LEEWARD_KIND_FILE = 1,
	LEEWARD_KIND_FOLDER = 2,
	LEEWARD_KIND_LINK = 3,
	LEEWARD_KIND_OTHER = 4      /* a FIFO, a socket, a device */
} leeward_kind;

/* A file, folder or link in a live sandbox. Names are bytes without NUL, and need not be UTF-8. */
typedef struct leeward_entry {
	size_t size;                /* bytes of this struct that are filled */
	const char *name;           /* the last component of its path */
	int32_t kind;               /* a leeward_kind */
	uint32_t mode;              /* permission bits */
	uint64_t length;            /* bytes */
	int64_t time_ns;            /* last modification: nanoseconds since the epoch */
	const char *target;         /* the target of a link; NULL for everything else */
} leeward_entry;

/* The entries of a folder, sorted by name; or one entry, of leeward_file_stat. */
typedef struct leeward_entries {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const leeward_entry *const *entries; /* NULL if there are none */
} leeward_entries;

/* The content of a file. */
typedef struct leeward_content {
	size_t size;                /* bytes of this struct that are filled */
	const unsigned char *data;  /* never NULL; without a terminating NUL */
	size_t length;              /* bytes */
	uint32_t mode;              /* permission bits */
	int64_t time_ns;            /* last modification: nanoseconds since the epoch */
} leeward_content;

/* Paths that match a pattern, sorted. They are bytes without NUL, and need not be UTF-8. */
typedef struct leeward_names {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const char *const *names;   /* NULL if there are none */
	int32_t more;               /* 1: there are more than `most` */
} leeward_names;

/* A line that matches a search. */
typedef struct leeward_match {
	size_t size;                /* bytes of this struct that are filled */
	const char *path;           /* path of its file */
	uint64_t line;              /* its number, from 1 on */
	const unsigned char *text;  /* its bytes without the end of the line, at most 1,000; a NUL follows them */
	size_t length;              /* bytes */
} leeward_match;

/* Lines that match a search, file by file. */
typedef struct leeward_matches {
	size_t size;                /* bytes of this struct that are filled */
	size_t count;
	const leeward_match *const *matches; /* NULL if there are none */
	int32_t more;               /* 1: there are more than `most` */
} leeward_matches;

/* How leeward_file_grep reads its pattern. */
typedef enum leeward_grep_flags {
	LEEWARD_GREP_LITERAL = 1,   /* the pattern is text, not a regular expression */
	LEEWARD_GREP_IGNORE_CASE = 2 /* ASCII letters match in either case */
} leeward_grep_flags;

/* The library's version, such as "0.1.0".
 *
 * Returns: a text that stays valid as long as the library is loaded. Never fails.
 * Threads: any. */
LEEWARD_API const char *leeward_version(void);

/* The error message of the last failed call of this thread, in one line.
 *
 * Returns: a text that is valid until the next failing call of the same thread; "" before
 * the first failure. Never fails. */
LEEWARD_API const char *leeward_last_error(void);

/* The error code of the last failed call of this thread.
 *
 * Returns: a leeward_error, LEEWARD_OK before the first failure. A call that succeeds leaves it alone. */
LEEWARD_API int leeward_last_error_code(void);

/* Whether the job of the last failed call, or a part of it, may have run.
 *
 * 0: the job has certainly not run, and can be sent again: there was no daemon, or no byte of the request was sent, or
 * the daemon refused it. 1: the daemon may have received a byte of the request, and didn't answer that the job hasn't run.
 *
 * Returns: 1 or 0, 0 before the first failure. A call that succeeds doesn't change it.
 * Threads: any; each has its own. */
LEEWARD_API int leeward_last_error_may_have_run(void);

/* Seconds after which the request of the last failed call should be sent again, if a busy daemon has named a time.
 *
 * Returns: seconds, or -1 if the daemon named none. A call that succeeds doesn't change it.
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
 *		The socket must belong to root, to the caller's own user or to the user whose uid is in
 *		$LEEWARD_TRUSTED_UID.
 * Returns: a handle, which the caller frees by leeward_disconnect; or NULL.
 * Errors: LEEWARD_AWAY, LEEWARD_NO_MEMORY; LEEWARD_INVALID for a configuration file that others can write, and for a URL
 *	in *path*, or in $LEEWARD_HOST where that is NULL or "": this library speaks to a daemon of this machine alone.
 * Threads: any. */
LEEWARD_API leeward_handle *leeward_connect(const char *path);

/* Close the connection and free the handle. The daemon ends the unfinished jobs of the connection.
 *
 * Results that the caller has stay valid; results that were never waited for are lost.
 * NULL is allowed. */
LEEWARD_API void leeward_disconnect(leeward_handle *handle);

/* Run code, and wait for its result.
 *
 * The library sends a job again in three cases, unless options->no_retry is set:
 * If a daemon that is stopping has refused the job (LEEWARD_SHUTTING_DOWN), or has closed the connection before it read
 * a byte of it, the job is sent over a new connection, for 10 s or until the deadline. This isn't done while other
 * jobs of this handle are in flight.
 * If the connection was lost when the job may have been running, the same is done with options->idempotent.
 * If the daemon is busy (LEEWARD_BUSY), the job is sent again after the time that the daemon names, or a short one, for
 * 30 s or until the deadline, unless options->no_retry_busy is set.
 *
 * Args:
 *	code: Python source, UTF-8 unless it declares another encoding. NULL with length 0 if options->module
 *		is set.
 *	length: bytes of the code, at most 16 MiB.
 *	options: NULL for the daemon's defaults.
 * Returns: the result, which the caller frees by leeward_free_result; or NULL. A job that
 *	failed is a result.
 * Errors: LEEWARD_INVALID; LEEWARD_AWAY, LEEWARD_NO_ANSWER and LEEWARD_BAD_REPLY, after which
 *	the daemon ends the job, or it has ended and its result is lost; LEEWARD_REFUSED and the codes below it,
 *	after which the connection is still usable; LEEWARD_NO_MEMORY. */
LEEWARD_API leeward_result *leeward_execute(leeward_handle *handle, const char *code, size_t length,
					    const leeward_options *options);

/* Send a job without waiting for its result; many may be in flight.
 *
 * Its arguments are those of leeward_execute; options->deadline only bounds the sending. A job that the daemon refuses is
 * not sent again: leeward_wait fails, and leeward_last_error_may_have_run says whether the caller can send it again.
 *
 * Returns: the job's id, above 0, for leeward_wait; or a negative leeward_error.
 * Errors: as leeward_execute; also LEEWARD_BUSY if 256 jobs are in flight. */
LEEWARD_API int64_t leeward_submit(leeward_handle *handle, const char *code, size_t length,
				   const leeward_options *options);

/* Wait for a submitted job. Each job is answered once: by a result, or by an error.
 *
 * Args:
 *	id: in: the job to wait for; NULL or 0: any job, in the order in which they end. Out: the job that was
 *		answered; unchanged if none was.
 *	timeout: seconds to wait; 0: don't wait; below 0: no limit but that of Time, above.
 * Returns: the job's result, which the caller frees by leeward_free_result; or NULL.
 * Errors: LEEWARD_NOT_YET: *timeout* has passed and the job goes on; LEEWARD_INVALID: no
 *	such job, or none at all, is in flight; any other error of leeward_execute is the job's answer.
 *	If the connection is lost, all jobs in flight are answered by an error. */
LEEWARD_API leeward_result *leeward_wait(leeward_handle *handle, int64_t *id, double timeout);

/* A job of leeward_map. What it points to has to stay valid until the job has ended. */
typedef struct leeward_map_job {
	const char *code;           /* as for leeward_execute, like the others; deadline and what says when a job is sent again have no effect */
	size_t length;
	const leeward_options *options;
} leeward_map_job;

/* Give the next job: number *number* from 0 on.
 *
 * Returns: 1 with *ret_job* filled in; 0: there are no more; below 0: end leeward_map, which returns this. */
typedef int (*leeward_map_next)(void *context, int64_t number, leeward_map_job *ret_job);

/* Take the end of job *number*: its result, which this function frees by leeward_free_result; or NULL if the daemon has
 * refused the job, and leeward_last_error_code has the reason.
 *
 * Returns: 0; or below 0: end leeward_map, which returns this. */
typedef int (*leeward_map_ended)(void *context, int64_t number, leeward_result *result);

/* Run many jobs over this handle's connection, as many at once as the daemon takes, and tell of each end as it comes.
 *
 * A job that the daemon refuses because it is busy, or no worker came free in time, is sent again when another one has
 * ended, or after the time that the daemon names; for 30 s in which none was served. No job of leeward_submit may be in flight. The callbacks may call
 * nothing with this handle.
 *
 * Args:
 *	next: called for each job while there is room, so there may be any number.
 *	ended: called once for each job that next has given, in the order in which they end.
 *	at_once: jobs that are sent at once, at most 240; 0: 240.
 *	deadline: seconds for all of them; 0: none.
 * Returns: LEEWARD_OK when all jobs have ended; what a callback has returned; or an error. Jobs that run then are
 *	cancelled, and ended isn't called for them.
 * Errors: LEEWARD_INVALID, also if a job is none; LEEWARD_NO_MEMORY; LEEWARD_NO_ANSWER: the deadline has passed;
 *	LEEWARD_AWAY and LEEWARD_BAD_REPLY: the connection was lost. */
LEEWARD_API int leeward_map(leeward_handle *handle, leeward_map_next next, leeward_map_ended ended, void *context,
			    size_t at_once, double deadline);

/* Cancel a submitted job. leeward_wait then fails with LEEWARD_CANCELLED for it, or returns its
 * result if the job has ended before.
 *
 * Errors: LEEWARD_INVALID: no such job is in flight; LEEWARD_AWAY, LEEWARD_NO_ANSWER. */
LEEWARD_API int leeward_cancel(leeward_handle *handle, int64_t id);

/* Raise KeyboardInterrupt in a submitted job, as Ctrl-C does; leeward_wait then returns its result.
 *
 * A job that handles the exception, or is in C code, runs on. A job that still waits for a worker is cancelled. This
 * function may be called repeatedly.
 *
 * Errors: as leeward_cancel. */
LEEWARD_API int leeward_interrupt(leeward_handle *handle, int64_t id);

/* Kill a submitted job. leeward_wait then returns its result with everything that it has written: outcome
 * LEEWARD_SIGNALLED, exit code 137. A job that still waits for a worker is cancelled.
 *
 * Errors: as leeward_cancel. */
LEEWARD_API int leeward_kill(leeward_handle *handle, int64_t id);

/* The descriptor to poll for reading while jobs are in flight.
 *
 * When the descriptor is readable, call leeward_wait with timeout 0 until it fails with LEEWARD_NOT_YET or
 * LEEWARD_INVALID, and only then poll again, level-triggered: several results may have arrived at once. The library
 * owns the descriptor: don't read, write or close it. It changes when the library connects again, which
 * only leeward_execute, leeward_submit, leeward_ping and leeward_status do.
 *
 * Returns: the descriptor; or a negative leeward_error.
 * Errors: LEEWARD_INVALID; LEEWARD_AWAY: there is no connection at the moment. */
LEEWARD_API int leeward_fd(leeward_handle *handle);

/* Ask whether the daemon answers.
 *
 * Args:
 *	timeout: seconds to wait; 0: 5 s.
 * Errors: LEEWARD_INVALID, LEEWARD_AWAY, LEEWARD_NO_ANSWER, LEEWARD_BAD_REPLY, LEEWARD_REFUSED
 *	and the codes below it. */
LEEWARD_API int leeward_ping(leeward_handle *handle, double timeout);

/* The daemon's status: workers, jobs and layers, as `leeward status --json` prints them.
 *
 * Args:
 *	timeout: seconds to wait; 0: 5 s.
 * Returns: one JSON object in ASCII, which the handle owns, valid until its next leeward_status or
 *	leeward_disconnect; or NULL.
 * Errors: as leeward_ping. */
LEEWARD_API const char *leeward_status(leeward_handle *handle, double timeout);

/* The errno of the last failed file call (LEEWARD_FILE) of this thread, as the kernel gave it inside the sandbox.
 *
 * Returns: a Linux errno; 0 if the last failed call was not a file call, or had invalid arguments. A call that succeeds
 *	doesn't change it.
 * Threads: any; each has its own. */
LEEWARD_API int leeward_last_error_errno(void);

/* Open a live sandbox, in which programs and Python code run and files stay until it ends. docs/sandboxes.md.
 *
 * A sandbox belongs to the user: any connection of this user finds it by its id. A call about a sandbox uses its handle
 * until the call returns; for several calls at the same time attach to the sandbox by several handles.
 *
 * Args:
 *	options: NULL for the daemon's defaults.
 * Returns: the sandbox, which the caller frees by leeward_sandbox_detach, before its handle; or NULL.
 * Errors: LEEWARD_INVALID, LEEWARD_BUSY (the library doesn't send the request again; see
 *	leeward_last_error_retry_after), LEEWARD_REJECTED, LEEWARD_AWAY, LEEWARD_NO_ANSWER, LEEWARD_BAD_REPLY,
 *	LEEWARD_NO_MEMORY, LEEWARD_REFUSED and the codes below it. */
LEEWARD_API leeward_sandbox *leeward_sandbox_open(leeward_handle *handle, const leeward_sandbox_options *options);

/* Find the sandbox with this id, which another program of the same user may have opened.
 *
 * Returns: the sandbox, which the caller frees by leeward_sandbox_detach; or NULL.
 * Errors: LEEWARD_SANDBOX_OVER; else as leeward_sandbox_open. */
LEEWARD_API leeward_sandbox *leeward_sandbox_attach(leeward_handle *handle, const char *id);

/* The id of a sandbox: 26 characters, which the object owns.
 *
 * Returns: a text that is valid as long as the object; NULL for NULL. Never fails.
 * Threads: any. */
LEEWARD_API const char *leeward_sandbox_id(const leeward_sandbox *sandbox);

/* Free the object. The sandbox itself goes on until its idle time or lifetime is over. NULL is allowed. */
LEEWARD_API void leeward_sandbox_detach(leeward_sandbox *sandbox);

/* End the sandbox and every process in it. The caller still has to free the object.
 *
 * Errors: LEEWARD_SANDBOX_OVER: it had ended before; else as leeward_ping. */
LEEWARD_API int leeward_sandbox_kill(leeward_sandbox *sandbox);

/* Change the times after which a sandbox ends.
 *
 * Args:
 *	idle: seconds without a call after which it ends; 0: no change.
 *	lifetime: seconds from now on after which it ends; 0: no change.
 * Errors: as leeward_sandbox_kill, and LEEWARD_REJECTED. */
LEEWARD_API int leeward_sandbox_extend(leeward_sandbox *sandbox, double idle, double lifetime);

/* The state of a sandbox.
 *
 * Returns: a list with this sandbox only, which the caller frees by leeward_free_sandboxes; or NULL.
 * Errors: as leeward_sandbox_kill. */
LEEWARD_API leeward_sandboxes *leeward_sandbox_info_of(leeward_sandbox *sandbox);

/* The state of all live sandboxes of this user.
 *
 * Returns: a list, which the caller frees by leeward_free_sandboxes; or NULL.
 * Errors: as leeward_ping. */
LEEWARD_API leeward_sandboxes *leeward_sandbox_list(leeward_handle *handle);

/* Free a list of sandboxes. NULL is allowed. */
LEEWARD_API void leeward_free_sandboxes(leeward_sandboxes *sandboxes);

/* Run a program in a sandbox to its end.
 *
 * The call returns when the program itself has ended; if children of it live on, their output is collected for 50 ms
 * more. If a limit is hit or the deadline passes, the program and all its descendants are killed.
 *
 * Returns: the result with the program's output, which the caller frees by leeward_free_result; or NULL. The exit code is
 *	127 for a missing program and 126 for one that can't be executed.
 * Errors: LEEWARD_SANDBOX_OVER; else as leeward_execute. The library doesn't send the request again. */
LEEWARD_API leeward_result *leeward_sandbox_run(leeward_sandbox *sandbox, const leeward_program *program);

/* Run Python code in a sandbox, with its files.
 *
 * Args:
 *	kernel: a number from leeward_kernel_open; 0: a new interpreter, for this code only.
 *	code: Python source; NULL isn't allowed.
 *	length: bytes of the code, at most 16 MiB.
 *	options: as for leeward_execute, except module, memory, processes, label, idempotent, no_retry and no_retry_busy;
 *		a kernel takes no stdin. With display the result has what the code displays.
 * Returns: the result, which the caller frees by leeward_free_result; or NULL.
 * Errors: LEEWARD_SANDBOX_OVER; LEEWARD_SESSION_OVER: the kernel's state is lost; else as leeward_execute. The
 *	library doesn't send the request again. */
LEEWARD_API leeward_result *leeward_sandbox_execute(leeward_sandbox *sandbox, int64_t kernel, const char *code,
						    size_t length, const leeward_options *options);

/* Open a kernel: a Python process that keeps variables, imports and threads from one code to the next.
 *
 * Returns: its number, above 0; or a negative leeward_error.
 * Errors: LEEWARD_SANDBOX_OVER, LEEWARD_BUSY; else as leeward_ping. */
LEEWARD_API int64_t leeward_kernel_open(leeward_sandbox *sandbox);

/* Raise KeyboardInterrupt in the code that a kernel runs. Use another handle than the one that waits for the result.
 *
 * Returns: 1, or 0 if the kernel runs no code; or a negative leeward_error.
 * Errors: as leeward_kernel_open. */
LEEWARD_API int leeward_kernel_interrupt(leeward_sandbox *sandbox, int64_t kernel);

/* Give a kernel a new process. Its state is lost; a call that waits for a result of it fails with LEEWARD_SESSION_OVER.
 *
 * Errors: as leeward_kernel_open. */
LEEWARD_API int leeward_kernel_reset(leeward_sandbox *sandbox, int64_t kernel);

/* Characters of a snapshot's id, with its end. */
#define LEEWARD_SNAPSHOT_ID 27

/* Take the state of a kernel, which goes on. The snapshot belongs to the user: it outlives the sandbox, until it is
 * removed, or unused for long, or the daemon ends.
 *
 * Args:
 *	ret_id: LEEWARD_SNAPSHOT_ID bytes; the snapshot's id is written there.
 * Errors: LEEWARD_SNAPSHOT_FAILED: the kernel has threads, say, and is as it was; LEEWARD_SESSION_OVER; else as
 *	leeward_kernel_open. */
LEEWARD_API int leeward_kernel_snapshot(leeward_sandbox *sandbox, int64_t kernel, char *ret_id);

/* Give a kernel the state of a snapshot. After an error it goes on as it was.
 *
 * Errors: LEEWARD_SNAPSHOT_FAILED; else as leeward_kernel_open. */
LEEWARD_API int leeward_kernel_rollback(leeward_sandbox *sandbox, int64_t kernel, const char *snapshot);

/* Open a kernel that begins with the state of a snapshot, which may be of another sandbox of this user's.
 *
 * Returns: its number, above 0; or a negative leeward_error.
 * Errors: LEEWARD_SNAPSHOT_FAILED; else as leeward_kernel_open. */
LEEWARD_API int64_t leeward_kernel_begin(leeward_sandbox *sandbox, const char *snapshot);

/* Make in a sandbox what another one of this user's has in its writable folders and in overlays, with modes, times, links and
 * holes.
 *
 * Args:
 *	source: the id of the other one. Neither may write to folders of the host or have a home; what both show of the host,
 *		and an image, has to be the same.
 * Returns: the number of entries; or a negative leeward_error.
 * Errors: LEEWARD_REJECTED: they don't fit, or one is there already, and some may have been made; LEEWARD_SANDBOX_OVER;
 *	else as leeward_kernel_open. */
LEEWARD_API int64_t leeward_sandbox_copy_files(leeward_sandbox *sandbox, const char *source);

/* Remove a snapshot. Kernels that began with it live on.
 *
 * Errors: LEEWARD_SNAPSHOT_FAILED: there is none; else as leeward_ping. */
LEEWARD_API int leeward_snapshot_remove(leeward_handle *handle, const char *snapshot);

/* Write a snapshot into a file, which only this user can read, so that a later daemon can have it. Whoever reads the file can
 * read what the kernel could. An older file is replaced when the new one is whole.
 *
 * Errors: LEEWARD_SNAPSHOT_FAILED: there is none, or the file can't be written; else as leeward_ping. */
LEEWARD_API int leeward_snapshot_save(leeward_handle *handle, const char *snapshot, const char *path);

/* Take the snapshot in a file into the daemon's memory.
 *
 * Args:
 *	ret_id: LEEWARD_SNAPSHOT_ID bytes; the snapshot's id is written there.
 * Errors: LEEWARD_SNAPSHOT_FAILED: the file can't be read, or isn't as it was written, or the snapshot was taken on another
 *	kernel, processor or version of leeward; else as leeward_ping. */
LEEWARD_API int leeward_snapshot_load(leeward_handle *handle, const char *path, char *ret_id);

/* End a kernel.
 *
 * Errors: as leeward_kernel_open. */
LEEWARD_API int leeward_kernel_close(leeward_sandbox *sandbox, int64_t kernel);

/* Start a program without waiting for its end. It runs until it exits, is killed, or the sandbox ends.
 *
 * Returns: the process's number, above 0, which every handle of this user may use; or a negative leeward_error.
 * Errors: LEEWARD_SANDBOX_OVER; LEEWARD_BUSY: the sandbox has no room for another process; else as leeward_ping. */
LEEWARD_API int64_t leeward_process_start(leeward_sandbox *sandbox, const leeward_program *program);

/* Wait for output of a process, and read it.
 *
 * A process whose output isn't read blocks after it has written some 128 KiB.
 *
 * Args:
 *	after: in: the number of the last piece that was read, 0 at first. Out: the number of the last piece that *take*
 *		was called with.
 *	timeout: seconds to wait for output; 0: don't wait; below 0: until there is output, or the process ends.
 *	take: called with each piece.
 *	context: passed to *take*.
 * Returns: 1 if more output may come, also if there was none within the time; 0 if the process has ended and all its
 *	output was read; or a negative leeward_error.
 * Errors: LEEWARD_PROCESS_OVER, LEEWARD_SANDBOX_OVER; else as leeward_ping. */
LEEWARD_API int leeward_process_read(leeward_sandbox *sandbox, int64_t process, int64_t *after, double timeout,
				     leeward_take take, void *context);

/* Write to the standard input of a process that was started with keep_stdin or on a terminal. Waits until everything is
 * written.
 *
 * Returns: how many bytes were written: fewer than *length* if the process has closed its standard input; or a negative
 *	leeward_error.
 * Errors: as leeward_process_read, and LEEWARD_BUSY: 4 MiB wait for the process already. After an error it isn't known
 *	how many bytes were written. */
LEEWARD_API int64_t leeward_process_write(leeward_sandbox *sandbox, int64_t process, const void *data, size_t length);

/* Close the standard input of a process.
 *
 * Errors: as leeward_process_read; LEEWARD_REJECTED: the process is on a terminal. There, write the byte 4 (Ctrl-D). */
LEEWARD_API int leeward_process_close_stdin(leeward_sandbox *sandbox, int64_t process);

/* Send a signal to a process, but not to its children.
 *
 * Args:
 *	number: a Linux signal number.
 * Returns: 1, or 0 if the process has ended; or a negative leeward_error.
 * Errors: as leeward_process_read. */
LEEWARD_API int leeward_process_signal(leeward_sandbox *sandbox, int64_t process, int number);

/* Change the size of a process's terminal.
 *
 * Returns: 1, or 0 if the process has ended; or a negative leeward_error.
 * Errors: as leeward_process_read; LEEWARD_REJECTED: the process has no terminal. */
LEEWARD_API int leeward_process_resize(leeward_sandbox *sandbox, int64_t process, int rows, int columns);

/* Kill a process and all its descendants, also those that are left after its end. Doesn't wait for their end.
 *
 * Errors: as leeward_process_read. */
LEEWARD_API int leeward_process_kill(leeward_sandbox *sandbox, int64_t process);

/* Wait for the end of a process. If it writes much, read its output meanwhile: see leeward_process_read.
 *
 * Args:
 *	timeout: seconds to wait; 0: don't wait; below 0: as long as it runs.
 * Returns: the result without output, which the caller frees by leeward_free_result; or NULL.
 * Errors: LEEWARD_NOT_YET: the process is still running; else as leeward_process_read. */
LEEWARD_API leeward_result *leeward_process_wait(leeward_sandbox *sandbox, int64_t process, double timeout);

/* Read a file of a sandbox.
 *
 * Args:
 *	path: bytes without NUL; a relative path is below /workspace. This holds for all functions of files.
 *	most: bytes to read at most; for a larger file the call fails with LEEWARD_FILE and EFBIG. 0: 64 MiB.
 * Returns: its content, which the caller frees by leeward_free_content; or NULL.
 * Errors: LEEWARD_FILE, LEEWARD_SANDBOX_OVER, LEEWARD_BUSY; else as leeward_ping. */
LEEWARD_API leeward_content *leeward_file_read(leeward_sandbox *sandbox, const char *path, uint64_t most);

/* Free the content of a file. NULL is allowed. */
LEEWARD_API void leeward_free_content(leeward_content *content);

/* Write a file of a sandbox, as a whole or not at all. Missing parent folders are made.
 *
 * Args:
 *	mode: permission bits; -1: keep those of the file that is replaced, or the default for a new file.
 * Errors: as leeward_file_read. */
LEEWARD_API int leeward_file_write(leeward_sandbox *sandbox, const char *path, const void *data, size_t length, int mode);

/* Append to a file, which is made if it doesn't exist.
 *
 * Errors: as leeward_file_read. */
LEEWARD_API int leeward_file_append(leeward_sandbox *sandbox, const char *path, const void *data, size_t length);

/* List a folder.
 *
 * Returns: its entries, which the caller frees by leeward_free_entries; or NULL.
 * Errors: as leeward_file_read. */
LEEWARD_API leeward_entries *leeward_file_list(leeward_sandbox *sandbox, const char *path);

/* Look at one file, folder or link.
 *
 * Args:
 *	follow: 1: of a link, look at its target.
 * Returns: one entry, which the caller frees by leeward_free_entries; or NULL.
 * Errors: as leeward_file_read. */
LEEWARD_API leeward_entries *leeward_file_stat(leeward_sandbox *sandbox, const char *path, int follow);

/* Free a list of entries. NULL is allowed. */
LEEWARD_API void leeward_free_entries(leeward_entries *entries);

/* Make a folder.
 *
 * Args:
 *	parents: 1: make missing parents as well, and don't fail if the folder exists.
 * Errors: as leeward_file_read. */
LEEWARD_API int leeward_file_mkdir(leeward_sandbox *sandbox, const char *path, int parents);

/* Remove a file, a link or an empty folder.
 *
 * Args:
 *	recursive: 1: remove a folder with everything in it.
 * Errors: as leeward_file_read. */
LEEWARD_API int leeward_file_remove(leeward_sandbox *sandbox, const char *path, int recursive);

/* Rename or move a file or folder.
 *
 * Errors: as leeward_file_read. */
LEEWARD_API int leeward_file_move(leeward_sandbox *sandbox, const char *path, const char *to);

/* Copy a file, or a folder with everything in it. Modes, times and links are kept.
 *
 * Args:
 *	to: path of the copy. Missing parent folders are made; a file there is replaced, and a folder is copied into a
 *		folder that exists.
 * Errors: as leeward_file_read. */
LEEWARD_API int leeward_file_copy(leeward_sandbox *sandbox, const char *path, const char *to);

/* Replace bytes that occur exactly once in a file.
 *
 * Args:
 *	path: of a file of at most 32 MiB.
 *	before: the bytes to replace, 1 byte to 1 MiB.
 *	after: the new bytes, at most 1 MiB; may be NULL if after_length is 0.
 * Returns: how many times *before* occurs. 1: it was replaced; any other number: the file wasn't changed. Or a negative
 *	leeward_error.
 * Errors: as leeward_file_read. */
LEEWARD_API int64_t leeward_file_edit(leeward_sandbox *sandbox, const char *path, const void *before,
				      size_t before_length, const void *after, size_t after_length);

/* Find files and folders by a pattern.
 *
 * Args:
 *	path: the folder to search; "." for /workspace.
 *	pattern: as for Python's glob: *, ?, [a-z], and ** for folders of any depth; at most 4,096 bytes.
 *	most: paths to return at most; 0, and more than 4,000: 4,000.
 * Returns: the paths, which begin with *path* unless that is "."; the caller frees them by leeward_free_names; or NULL.
 * Errors: as leeward_file_read. */
LEEWARD_API leeward_names *leeward_file_glob(leeward_sandbox *sandbox, const char *path, const char *pattern,
					     uint32_t most);

/* Free a list of paths. NULL is allowed. */
LEEWARD_API void leeward_free_names(leeward_names *names);

/* Search a file, or all files below a folder, for lines that match a pattern.
 *
 * Args:
 *	pattern: a Python regular expression, over bytes; at most 4,096 bytes.
 *	include: a pattern for the last component of a file's name, such as "*.py"; NULL for all files.
 *	flags: leeward_grep_flags, combined by |.
 *	most: lines to return at most; 0: 1,000; 4,000 at most.
 * Returns: the lines, which the caller frees by leeward_free_matches; or NULL.
 * Errors: as leeward_file_read; LEEWARD_FILE with errno 0 if the pattern is invalid. */
LEEWARD_API leeward_matches *leeward_file_grep(leeward_sandbox *sandbox, const char *path, const char *pattern,
					       const char *include, uint32_t flags, uint32_t most);

/* Free what leeward_file_grep gave. NULL is allowed. */
LEEWARD_API void leeward_free_matches(leeward_matches *matches);

/* Free a result and unmap its memory files. NULL is allowed.
 *
 * Threads: any, once no other thread uses the result. */
LEEWARD_API void leeward_free_result(leeward_result *result);

/* Another name of leeward_free_result. */
LEEWARD_API void leeward_result_free(leeward_result *result);

#ifdef __cplusplus
}
#endif

#endif
