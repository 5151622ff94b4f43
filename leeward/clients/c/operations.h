/* Made by ./dev generate */
/* Operations: the fields of their requests and of their answers. lw_request_write writes a request: a field that must be
 * given in any case, others if they aren't 0, false, empty or NULL. LW_READ reads an answer. */
#pragma once

#include "request.h"

/* End the request target of this connection, unless it has been answered. */
struct lw_cancel {
	uint64_t target; /* the id of a request of this connection */
	bool interrupt; /* raise `KeyboardInterrupt` in its job instead of ending it; only of an `execute` */
	bool kill; /* end its job, and answer it with its result; only of an `execute`, and not with `interrupt` */
};
static const struct lw_field lw_fields_cancel[] = {
	{"target", LW_WHOLE, true, offsetof(struct lw_cancel, target)},
	{"interrupt", LW_FLAG, false, offsetof(struct lw_cancel, interrupt)},
	{"kill", LW_FLAG, false, offsetof(struct lw_cancel, kill)},
};

/* Answer such a question. */
struct lw_egress_answer {
	uint64_t ask; /* its number */
	bool allow; /* it goes on; else it is refused */
	struct lw_bytes message; /* why, for whoever asked: at most 500 printable characters. "" is `Denied by leeward (request N)` */
};
static const struct lw_field lw_fields_egress_answer[] = {
	{"ask", LW_WHOLE, true, offsetof(struct lw_egress_answer, ask)},
	{"allow", LW_FLAG, false, offsetof(struct lw_egress_answer, allow)},
	{"message", LW_AS_TEXT, false, offsetof(struct lw_egress_answer, message)},
};

/* Ask for the questions of rules of `ask` that sandboxes wait for; only the operator may. */
struct lw_egress_asks {
	uint64_t after; /* the number of the last one that the client has */
	double wait; /* seconds to wait for one, at most 3,600 */
};
static const struct lw_field lw_fields_egress_asks[] = {
	{"after", LW_WHOLE, false, offsetof(struct lw_egress_asks, after)},
	{"wait", LW_SECONDS, false, offsetof(struct lw_egress_asks, wait)},
};

/* Ask what this user's sandboxes tried to reach; for the operator, what all sandboxes tried. */
struct lw_egress_log {
	uint64_t after; /* the number of the last row that the client has */
	double wait; /* seconds to wait for another one, at most 3,600 */
};
static const struct lw_field lw_fields_egress_log[] = {
	{"after", LW_WHOLE, false, offsetof(struct lw_egress_log, after)},
	{"wait", LW_SECONDS, false, offsetof(struct lw_egress_log, wait)},
};

/* Run code, or a module, and answer with its result. */
struct lw_execute {
	uint64_t session; /* the session to run it in, see `session_open`; without it, a process of its own */
	struct lw_bytes code; /* Python source, at most 16 MiB, as text at most 4 MiB */
	struct lw_bytes module; /* a module to run as `python -m` does */
	struct lw_bytes name; /* the file name that tracebacks show; printable, at most 255 characters */
	struct lw_texts args; /* `sys.argv[1:]`; at most 1,024, together 2^20 characters, no NUL */
	struct lw_texts env; /* added to the sandbox's own; bounds as for `args`; no `=` in a name */
	struct lw_files files; /* written to `/workspace` before the start; at most 1,024, together 64 MiB */
	struct lw_bytes stdin_; /* at most 64 MiB */
	struct lw_texts collect; /* names, folders and patterns of regular files below `/workspace` to bring back; at most 64 */
	bool display; /* answer with `results` and `value` as well; not with `module` */
	struct lw_limits limits; /* see below */
	struct lw_bytes label; /* the client's own name for the job, for the daemon's log and the answer: at most 64 letters, digits and `._:/@-` */
	struct lw_bytes profile; /* which files the sandbox shows and what it permits: one of the daemon's [profiles](profiles.md), without `shell`. Not with `session` */
	struct lw_bytes environment; /* the interpreter and packages, one of the daemon's [environments](environments.md); without it the daemon's own. Not with `session` */
	struct lw_bytes egress; /* the name of an [egress policy](egress.md) of the daemon, `[egress.NAME]`; without it the job has no network. Not with `session` */
};
static const struct lw_field lw_fields_execute[] = {
	{"session", LW_WHOLE, false, offsetof(struct lw_execute, session)},
	{"code", LW_AS_BINARY, false, offsetof(struct lw_execute, code)},
	{"module", LW_AS_TEXT, false, offsetof(struct lw_execute, module)},
	{"name", LW_AS_TEXT, false, offsetof(struct lw_execute, name)},
	{"args", LW_TEXTS, false, offsetof(struct lw_execute, args)},
	{"env", LW_SETTINGS, false, offsetof(struct lw_execute, env)},
	{"files", LW_FILES, false, offsetof(struct lw_execute, files)},
	{"stdin", LW_AS_BINARY, false, offsetof(struct lw_execute, stdin_)},
	{"collect", LW_TEXTS, false, offsetof(struct lw_execute, collect)},
	{"display", LW_FLAG, false, offsetof(struct lw_execute, display)},
	{"limits", LW_LIMITS, false, offsetof(struct lw_execute, limits)},
	{"label", LW_AS_TEXT, false, offsetof(struct lw_execute, label)},
	{"profile", LW_AS_TEXT, false, offsetof(struct lw_execute, profile)},
	{"environment", LW_AS_TEXT, false, offsetof(struct lw_execute, environment)},
	{"egress", LW_AS_TEXT, false, offsetof(struct lw_execute, egress)},
};

/* Append to a file, which is made if it doesn't exist. */
struct lw_file_append {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes data; /* at most 1 MiB */
};
static const struct lw_field lw_fields_file_append[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_append, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_append, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_append, timeout)},
	{"data", LW_AS_BINARY, false, offsetof(struct lw_file_append, data)},
};

/* Close a handle. A file that wasn't written completely is removed. */
struct lw_file_close {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	uint64_t handle; /* of an earlier answer */
};
static const struct lw_field lw_fields_file_close[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_close, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_close, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_close, timeout)},
	{"handle", LW_WHOLE, true, offsetof(struct lw_file_close, handle)},
};

/* Copy a file or folder. */
struct lw_file_copy {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes to; /* the copy's name */
};
static const struct lw_field lw_fields_file_copy[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_copy, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_copy, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_copy, timeout)},
	{"to", LW_AS_BINARY, true, offsetof(struct lw_file_copy, to)},
};

/* Replace old, which must occur exactly once, by new. */
struct lw_file_edit {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file */
	double timeout; /* seconds */
	struct lw_bytes old; /* at most 1 MiB each */
	struct lw_bytes new; /* at most 1 MiB each */
};
static const struct lw_field lw_fields_file_edit[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_edit, sandbox)},
	{"path", LW_AS_BINARY, true, offsetof(struct lw_file_edit, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_edit, timeout)},
	{"old", LW_AS_BINARY, true, offsetof(struct lw_file_edit, old)},
	{"new", LW_AS_BINARY, true, offsetof(struct lw_file_edit, new)},
};

/* Find names below the folder path that match pattern. */
struct lw_file_glob {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* the folder where a relative pattern begins */
	double timeout; /* seconds */
	struct lw_bytes pattern; /* at most 4,096 bytes */
	uint64_t most; /* names */
};
static const struct lw_field lw_fields_file_glob[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_glob, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_glob, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_glob, timeout)},
	{"pattern", LW_AS_BINARY, true, offsetof(struct lw_file_glob, pattern)},
	{"most", LW_WHOLE, false, offsetof(struct lw_file_glob, most)},
};

/* Find lines in the file path, or in all files below the folder path. */
struct lw_file_grep {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes pattern; /* at most 4,096 bytes */
	struct lw_bytes include; /* a pattern for names of files */
	bool literal; /* the pattern is text */
	bool ignore_case; /* of ASCII letters */
	uint64_t most; /* lines, at most 4,000 */
};
static const struct lw_field lw_fields_file_grep[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_grep, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_grep, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_grep, timeout)},
	{"pattern", LW_AS_BINARY, true, offsetof(struct lw_file_grep, pattern)},
	{"include", LW_AS_BINARY, false, offsetof(struct lw_file_grep, include)},
	{"literal", LW_FLAG, false, offsetof(struct lw_file_grep, literal)},
	{"ignore_case", LW_FLAG, false, offsetof(struct lw_file_grep, ignore_case)},
	{"most", LW_WHOLE, false, offsetof(struct lw_file_grep, most)},
};

/* Make path a symbolic link to to. It replaces a file or link, but not a folder. */
struct lw_file_link {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes to; /* where it leads */
};
static const struct lw_field lw_fields_file_link[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_link, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_link, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_link, timeout)},
	{"to", LW_AS_BINARY, true, offsetof(struct lw_file_link, to)},
};

/* List a folder, sorted by name. */
struct lw_file_list {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes after; /* names behind this one alone */
};
static const struct lw_field lw_fields_file_list[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_list, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_list, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_list, timeout)},
	{"after", LW_AS_BINARY, false, offsetof(struct lw_file_list, after)},
};

/* Make a folder. */
struct lw_file_mkdir {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	bool parents; /* and those that lead there */
	bool there; /* it may be there already */
};
static const struct lw_field lw_fields_file_mkdir[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_mkdir, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_mkdir, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_mkdir, timeout)},
	{"parents", LW_FLAG, false, offsetof(struct lw_file_mkdir, parents)},
	{"there", LW_FLAG, false, offsetof(struct lw_file_mkdir, there)},
};

/* Rename a file or folder; where `rename(2)` can't, copy and remove it. */
struct lw_file_move {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes to; /* the new name */
};
static const struct lw_field lw_fields_file_move[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_move, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_move, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_move, timeout)},
	{"to", LW_AS_BINARY, true, offsetof(struct lw_file_move, to)},
};

/* Read a piece of a regular file. */
struct lw_file_read {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	uint64_t handle; /* of an earlier answer; then `path` isn't looked at */
	uint64_t offset; /* where the piece begins */
	uint64_t size; /* bytes of it at most */
	uint64_t first; /* lines, from 1 on, to which the file is narrowed; 0 is none */
	uint64_t last; /* lines, from 1 on, to which the file is narrowed; 0 is none */
};
static const struct lw_field lw_fields_file_read[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_read, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_read, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_read, timeout)},
	{"handle", LW_WHOLE, false, offsetof(struct lw_file_read, handle)},
	{"offset", LW_WHOLE, false, offsetof(struct lw_file_read, offset)},
	{"size", LW_WHOLE, false, offsetof(struct lw_file_read, size)},
	{"first", LW_WHOLE, false, offsetof(struct lw_file_read, first)},
	{"last", LW_WHOLE, false, offsetof(struct lw_file_read, last)},
};

/* Read many files, as many of the first ones as one answer holds. */
struct lw_file_read_many {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes paths; /* each with a NUL behind it, at most 4,000 and 1 MiB */
};
static const struct lw_field lw_fields_file_read_many[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_read_many, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_read_many, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_read_many, timeout)},
	{"paths", LW_AS_BINARY, true, offsetof(struct lw_file_read_many, paths)},
};

/* Remove a file, a link, or an empty folder. */
struct lw_file_remove {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	bool recursive; /* a folder with all that is in it */
	bool missing; /* it may be gone already */
};
static const struct lw_field lw_fields_file_remove[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_remove, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_remove, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_remove, timeout)},
	{"recursive", LW_FLAG, false, offsetof(struct lw_file_remove, recursive)},
	{"missing", LW_FLAG, false, offsetof(struct lw_file_remove, missing)},
};

/* Set the mode and the time of the last change of a file or folder; -1 leaves one as it is. */
struct lw_file_set {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_some mode; /* -1 leaves it as it is */
	struct lw_some time; /* -1 leaves it as it is */
};
static const struct lw_field lw_fields_file_set[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_set, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_set, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_set, timeout)},
	{"mode", LW_SOME, false, offsetof(struct lw_file_set, mode)},
	{"time", LW_SOME, false, offsetof(struct lw_file_set, time)},
};

/* Ask for type, mode, size and time of path. */
struct lw_file_stat {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	bool follow; /* a link stands for what it leads to */
};
static const struct lw_field lw_fields_file_stat[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_stat, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_stat, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_stat, timeout)},
	{"follow", LW_FLAG, false, offsetof(struct lw_file_stat, follow)},
};

/* List everything below a folder; fails if one answer can't hold that. */
struct lw_file_walk {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
};
static const struct lw_field lw_fields_file_walk[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_walk, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_walk, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_walk, timeout)},
};

/* Write a piece of a file, which replaces the file path when its last piece has arrived. */
struct lw_file_write {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	uint64_t handle; /* of an earlier answer; then `path` isn't looked at */
	uint64_t offset; /* where the piece belongs */
	struct lw_bytes data; /* at most 1 MiB */
	bool more; /* others follow */
	bool new; /* `EEXIST` if something is there */
	struct lw_some mode; /* permission bits; -1 keeps those of the file before it */
	struct lw_some time; /* of its last change, in nanoseconds since the epoch; -1 for now */
};
static const struct lw_field lw_fields_file_write[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_write, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_write, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_write, timeout)},
	{"handle", LW_WHOLE, false, offsetof(struct lw_file_write, handle)},
	{"offset", LW_WHOLE, false, offsetof(struct lw_file_write, offset)},
	{"data", LW_AS_BINARY, false, offsetof(struct lw_file_write, data)},
	{"more", LW_FLAG, false, offsetof(struct lw_file_write, more)},
	{"new", LW_FLAG, false, offsetof(struct lw_file_write, new)},
	{"mode", LW_SOME, false, offsetof(struct lw_file_write, mode)},
	{"time", LW_SOME, false, offsetof(struct lw_file_write, time)},
};

/* Write many files, each as `file_write` does; one that fails keeps no other back. */
struct lw_file_write_many {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes path; /* of the file or folder */
	double timeout; /* seconds */
	struct lw_bytes data; /* the files, at most 4,000 and 1 MiB */
};
static const struct lw_field lw_fields_file_write_many[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_file_write_many, sandbox)},
	{"path", LW_AS_BINARY, false, offsetof(struct lw_file_write_many, path)},
	{"timeout", LW_SECONDS, false, offsetof(struct lw_file_write_many, timeout)},
	{"data", LW_AS_BINARY, true, offsetof(struct lw_file_write_many, data)},
};

/* Answer a call. */
struct lw_function_answer {
	uint64_t target; /* the id of a request of this connection */
	uint64_t call; /* the call's number */
	struct lw_bytes outcome; /* or `raised`, or `broken` */
	struct lw_bytes value; /* MessagePack, at most 512 KiB: what the function returned, or for `raised` an array of two texts, the exception's type and its text */
};
static const struct lw_field lw_fields_function_answer[] = {
	{"target", LW_WHOLE, true, offsetof(struct lw_function_answer, target)},
	{"call", LW_WHOLE, true, offsetof(struct lw_function_answer, call)},
	{"outcome", LW_AS_TEXT, false, offsetof(struct lw_function_answer, outcome)},
	{"value", LW_AS_BINARY, false, offsetof(struct lw_function_answer, value)},
};

/* Wait for calls of functions by the job of the request target of this connection. */
struct lw_function_take {
	uint64_t target; /* the id of the request for the job, on this connection */
};
static const struct lw_field lw_fields_function_take[] = {
	{"target", LW_WHOLE, true, offsetof(struct lw_function_take, target)},
};

/* Raise KeyboardInterrupt in the job that runs in session. */
struct lw_interrupt {
	uint64_t session; /* the number of a session of this connection */
};
static const struct lw_field lw_fields_interrupt[] = {
	{"session", LW_WHOLE, true, offsetof(struct lw_interrupt, session)},
};

/* Close the memory files of the answer to target. */
struct lw_kept_drop {
	uint64_t target; /* the id of the request that was answered so */
};
static const struct lw_field lw_fields_kept_drop[] = {
	{"target", LW_WHOLE, true, offsetof(struct lw_kept_drop, target)},
};

/* Read a piece of a memory file that was kept. */
struct lw_kept_read {
	uint64_t target; /* the id of the request whose answer announced it */
	uint64_t arena; /* which of that answer's files */
	uint64_t offset; /* where the piece begins */
	uint64_t size; /* bytes of it at most, from 1 to 1 MiB */
};
static const struct lw_field lw_fields_kept_read[] = {
	{"target", LW_WHOLE, true, offsetof(struct lw_kept_read, target)},
	{"arena", LW_WHOLE, false, offsetof(struct lw_kept_read, arena)},
	{"offset", LW_WHOLE, false, offsetof(struct lw_kept_read, offset)},
	{"size", LW_WHOLE, false, offsetof(struct lw_kept_read, size)},
};

/* Give a kernel a number on this connection, by which it takes code alone as a session does. */
struct lw_kernel_bind {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open`; 0 for a fresh interpreter for each request */
	bool display; /* as for `execute`, of each of these requests */
};
static const struct lw_field lw_fields_kernel_bind[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_bind, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_bind, kernel)},
	{"display", LW_FLAG, false, offsetof(struct lw_kernel_bind, display)},
};

/* End a kernel, as a reset does, and give it no other process. */
struct lw_kernel_close {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open` */
};
static const struct lw_field lw_fields_kernel_close[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_close, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_close, kernel)},
};

/* Start a kernel with the state that kernel has. */
struct lw_kernel_fork {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open` */
	bool held; /* as for `kernel_open` */
};
static const struct lw_field lw_fields_kernel_fork[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_fork, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_fork, kernel)},
	{"held", LW_FLAG, false, offsetof(struct lw_kernel_fork, held)},
};

/* Raise KeyboardInterrupt in the code that a kernel runs. */
struct lw_kernel_interrupt {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open` */
};
static const struct lw_field lw_fields_kernel_interrupt[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_interrupt, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_interrupt, kernel)},
};

/* Start a Python in sandbox that keeps its state between requests. */
struct lw_kernel_open {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes snapshot; /* begin with the state of this one; answered when it is there */
	bool same_random; /* with `snapshot`: its random numbers go on, and nothing is seeded anew */
	bool held; /* the kernel is closed when this connection ends */
};
static const struct lw_field lw_fields_kernel_open[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_open, sandbox)},
	{"snapshot", LW_AS_TEXT, false, offsetof(struct lw_kernel_open, snapshot)},
	{"same_random", LW_FLAG, false, offsetof(struct lw_kernel_open, same_random)},
	{"held", LW_FLAG, false, offsetof(struct lw_kernel_open, held)},
};

/* Give a kernel a new process, without the state of the old one. */
struct lw_kernel_reset {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open` */
};
static const struct lw_field lw_fields_kernel_reset[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_reset, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_reset, kernel)},
};

/* Give kernel the state of snapshot after the requests before; refused, it goes on as it was. */
struct lw_kernel_rollback {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open` */
	struct lw_bytes snapshot; /* of `kernel_snapshot` */
	bool same_random; /* as for `kernel_open` */
};
static const struct lw_field lw_fields_kernel_rollback[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_rollback, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_rollback, kernel)},
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_kernel_rollback, snapshot)},
	{"same_random", LW_FLAG, false, offsetof(struct lw_kernel_rollback, same_random)},
};

/* Take the state that kernel has after the requests before, which goes on. */
struct lw_kernel_snapshot {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* of `kernel_open` */
};
static const struct lw_field lw_fields_kernel_snapshot[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_snapshot, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_snapshot, kernel)},
};

/* Wait for output of the job of the request target of this connection, behind what the client has. */
struct lw_output_take {
	uint64_t target; /* the id of the request for the job, an `execute` or a `sandbox_execute`, on this connection */
	uint64_t stdout_; /* bytes of each stream that the client has */
	uint64_t stderr_; /* bytes of each stream that the client has */
};
static const struct lw_field lw_fields_output_take[] = {
	{"target", LW_WHOLE, true, offsetof(struct lw_output_take, target)},
	{"stdout", LW_WHOLE, false, offsetof(struct lw_output_take, stdout_)},
	{"stderr", LW_WHOLE, false, offsetof(struct lw_output_take, stderr_)},
};

/* Keep a copy of what sandbox has changed in its overlay at target, as name; "" stands for the next number. */
struct lw_overlay_checkpoint {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes target; /* of one of its overlays */
	struct lw_bytes name; /* letters, digits, `_`, `-` and `.`, not `.` or `-` first; at most 64 */
};
static const struct lw_field lw_fields_overlay_checkpoint[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_overlay_checkpoint, sandbox)},
	{"target", LW_AS_TEXT, true, offsetof(struct lw_overlay_checkpoint, target)},
	{"name", LW_AS_TEXT, false, offsetof(struct lw_overlay_checkpoint, name)},
};

/* Ask what sandbox has changed in its overlay at target. */
struct lw_overlay_diff {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes target; /* of one of its overlays */
};
static const struct lw_field lw_fields_overlay_diff[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_overlay_diff, sandbox)},
	{"target", LW_AS_TEXT, true, offsetof(struct lw_overlay_diff, target)},
};

/* Undo what sandbox has changed in its overlay at target. */
struct lw_overlay_discard {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes target; /* of one of its overlays */
};
static const struct lw_field lw_fields_overlay_discard[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_overlay_discard, sandbox)},
	{"target", LW_AS_TEXT, true, offsetof(struct lw_overlay_discard, target)},
};

/* Read a piece of a changed file in the overlay at target, or several small files. */
struct lw_overlay_read {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes target; /* of one of its overlays */
	struct lw_bytes path; /* of a file that `overlay_diff` lists */
	uint64_t offset; /* in bytes */
};
static const struct lw_field lw_fields_overlay_read[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_overlay_read, sandbox)},
	{"target", LW_AS_TEXT, true, offsetof(struct lw_overlay_read, target)},
	{"path", LW_AS_BINARY, true, offsetof(struct lw_overlay_read, path)},
	{"offset", LW_WHOLE, false, offsetof(struct lw_overlay_read, offset)},
};

/* Make the overlay at target what it was at the checkpoint name. */
struct lw_overlay_restore {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes target; /* of one of its overlays */
	struct lw_bytes name; /* of a checkpoint there */
};
static const struct lw_field lw_fields_overlay_restore[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_overlay_restore, sandbox)},
	{"target", LW_AS_TEXT, true, offsetof(struct lw_overlay_restore, target)},
	{"name", LW_AS_TEXT, true, offsetof(struct lw_overlay_restore, name)},
};

/* Kill a process and all its descendants. */
struct lw_process_kill {
	struct lw_bytes sandbox; /* its id */
	uint64_t process; /* one that was started */
};
static const struct lw_field lw_fields_process_kill[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_kill, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_kill, process)},
};

/* Ask for the processes of a sandbox. */
struct lw_process_list {
	struct lw_bytes sandbox; /* its id */
};
static const struct lw_field lw_fields_process_list[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_list, sandbox)},
};

/* Take chunks of a process's output. */
struct lw_process_read {
	struct lw_bytes sandbox; /* its id */
	uint64_t process; /* one that was started */
	uint64_t after; /* the number of the last chunk that the client has */
	uint64_t reader; /* a number of the reader's own, such as a random one: each gets all chunks from its first request on */
	double wait; /* seconds to wait for the next one, at most 3,600 */
};
static const struct lw_field lw_fields_process_read[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_read, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_read, process)},
	{"after", LW_WHOLE, false, offsetof(struct lw_process_read, after)},
	{"reader", LW_WHOLE, false, offsetof(struct lw_process_read, reader)},
	{"wait", LW_SECONDS, false, offsetof(struct lw_process_read, wait)},
};

/* Change the size of a process's terminal. */
struct lw_process_resize {
	struct lw_bytes sandbox; /* its id */
	uint64_t process; /* one that was started with `terminal` */
	uint64_t rows; /* from 1 to 65,535 */
	uint64_t columns; /* from 1 to 65,535 */
};
static const struct lw_field lw_fields_process_resize[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_resize, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_resize, process)},
	{"rows", LW_WHOLE, true, offsetof(struct lw_process_resize, rows)},
	{"columns", LW_WHOLE, true, offsetof(struct lw_process_resize, columns)},
};

/* Run a program to its end, and answer as `execute` does. */
struct lw_process_run {
	struct lw_bytes sandbox; /* its id */
	struct lw_texts argv; /* the program, which is looked for in `PATH`, and its arguments; at most 1,024, of at most 131,071 characters each and 2^21 together */
	struct lw_bytes shell; /* a line for `/bin/sh -c`, at most 131,071 characters */
	struct lw_bytes cwd; /* the folder to start in, at most 4,095 characters */
	struct lw_texts env; /* variables, beside the sandbox's; bounds as for `execute` */
	struct lw_bytes stdin_; /* at most 64 MiB */
	struct lw_bytes title; /* what `process_list` shows, at most 255 characters */
	struct lw_limits limits; /* `time`, `output` and `overflow` */
	double cpu_time; /* processor seconds of it and all that descends from it, 0.001 to 3,600, after which they are killed: `timed_out`, with the limit `cpu` */
	bool clean; /* its environment is `PATH`, and what `env` here and the sandbox's `env` say */
	bool ends_children; /* it counts as ended when no process that it has started is left: such are killed when it has ended */
	bool warm; /* the program reads all of its stdin before it does anything */
};
static const struct lw_field lw_fields_process_run[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_run, sandbox)},
	{"argv", LW_TEXTS, false, offsetof(struct lw_process_run, argv)},
	{"shell", LW_AS_TEXT, false, offsetof(struct lw_process_run, shell)},
	{"cwd", LW_AS_TEXT, false, offsetof(struct lw_process_run, cwd)},
	{"env", LW_SETTINGS, false, offsetof(struct lw_process_run, env)},
	{"stdin", LW_AS_BINARY, false, offsetof(struct lw_process_run, stdin_)},
	{"title", LW_AS_TEXT, false, offsetof(struct lw_process_run, title)},
	{"limits", LW_LIMITS, false, offsetof(struct lw_process_run, limits)},
	{"cpu_time", LW_SECONDS, false, offsetof(struct lw_process_run, cpu_time)},
	{"clean", LW_FLAG, false, offsetof(struct lw_process_run, clean)},
	{"ends_children", LW_FLAG, false, offsetof(struct lw_process_run, ends_children)},
	{"warm", LW_FLAG, false, offsetof(struct lw_process_run, warm)},
};

/* Send a signal to a process alone. */
struct lw_process_signal {
	struct lw_bytes sandbox; /* its id */
	uint64_t process; /* one that was started */
	uint64_t signal; /* from 1 to 64 */
};
static const struct lw_field lw_fields_process_signal[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_signal, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_signal, process)},
	{"signal", LW_WHOLE, true, offsetof(struct lw_process_signal, signal)},
};

/* Start a program that is read from and written to while it runs. */
struct lw_process_start {
	struct lw_bytes sandbox; /* its id */
	struct lw_texts argv; /* the program, which is looked for in `PATH`, and its arguments; at most 1,024, of at most 131,071 characters each and 2^21 together */
	struct lw_bytes shell; /* a line for `/bin/sh -c`, at most 131,071 characters */
	struct lw_bytes cwd; /* the folder to start in, at most 4,095 characters */
	struct lw_texts env; /* variables, beside the sandbox's; bounds as for `execute` */
	struct lw_bytes stdin_; /* at most 64 MiB */
	struct lw_bytes title; /* what `process_list` shows, at most 255 characters */
	struct lw_limits limits; /* `time`, `output` and `overflow` */
	double cpu_time; /* processor seconds of it and all that descends from it, 0.001 to 3,600, after which they are killed: `timed_out`, with the limit `cpu` */
	bool clean; /* its environment is `PATH`, and what `env` here and the sandbox's `env` say */
	bool ends_children; /* it counts as ended when no process that it has started is left: such are killed when it has ended */
	bool open; /* its standard input stays open for `process_write` after the content of `stdin` */
	bool bounded; /* the sandbox's `time` and `output` hold where it doesn't set its own; else it has no such limit */
	struct lw_pair terminal; /* two ints, rows and columns, each from 1 to 65,535: it is on a terminal of that size, with standard input open and stdout as its one stream */
	bool held; /* it is killed when this connection ends */
};
static const struct lw_field lw_fields_process_start[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_start, sandbox)},
	{"argv", LW_TEXTS, false, offsetof(struct lw_process_start, argv)},
	{"shell", LW_AS_TEXT, false, offsetof(struct lw_process_start, shell)},
	{"cwd", LW_AS_TEXT, false, offsetof(struct lw_process_start, cwd)},
	{"env", LW_SETTINGS, false, offsetof(struct lw_process_start, env)},
	{"stdin", LW_AS_BINARY, false, offsetof(struct lw_process_start, stdin_)},
	{"title", LW_AS_TEXT, false, offsetof(struct lw_process_start, title)},
	{"limits", LW_LIMITS, false, offsetof(struct lw_process_start, limits)},
	{"cpu_time", LW_SECONDS, false, offsetof(struct lw_process_start, cpu_time)},
	{"clean", LW_FLAG, false, offsetof(struct lw_process_start, clean)},
	{"ends_children", LW_FLAG, false, offsetof(struct lw_process_start, ends_children)},
	{"open", LW_FLAG, false, offsetof(struct lw_process_start, open)},
	{"bounded", LW_FLAG, false, offsetof(struct lw_process_start, bounded)},
	{"terminal", LW_PAIR, false, offsetof(struct lw_process_start, terminal)},
	{"held", LW_FLAG, false, offsetof(struct lw_process_start, held)},
};

/* Answer when a process has ended, or after wait seconds. */
struct lw_process_wait {
	struct lw_bytes sandbox; /* its id */
	uint64_t process; /* one that was started */
	double wait; /* seconds, at most 3,600 */
};
static const struct lw_field lw_fields_process_wait[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_wait, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_wait, process)},
	{"wait", LW_SECONDS, false, offsetof(struct lw_process_wait, wait)},
};

/* Write data to a process's stdin, and then close that if end. */
struct lw_process_write {
	struct lw_bytes sandbox; /* its id */
	uint64_t process; /* one that was started with `open` */
	struct lw_bytes data; /* at most 1 MiB */
	bool end; /* close its standard input behind that */
};
static const struct lw_field lw_fields_process_write[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_write, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_write, process)},
	{"data", LW_AS_BINARY, false, offsetof(struct lw_process_write, data)},
	{"end", LW_FLAG, false, offsetof(struct lw_process_write, end)},
};

/* Ask how this user's last jobs and sandboxes ended. */
struct lw_recall {
	uint64_t after; /* the number of the last event that the client has */
	double wait; /* seconds to wait for another one, at most 3,600 */
};
static const struct lw_field lw_fields_recall[] = {
	{"after", LW_WHOLE, false, offsetof(struct lw_recall, after)},
	{"wait", LW_SECONDS, false, offsetof(struct lw_recall, wait)},
};

/* Ask for a socket that is connected to a server in sandbox. */
struct lw_sandbox_connect {
	struct lw_bytes sandbox; /* its id */
	uint64_t port; /* the server's, of TCP, from 1 to 65,535 */
};
static const struct lw_field lw_fields_sandbox_connect[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_connect, sandbox)},
	{"port", LW_WHOLE, true, offsetof(struct lw_sandbox_connect, port)},
};

/* Make in sandbox what another one of this user has in its writable folders and in overlays of the same folders. */
struct lw_sandbox_copy {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes source; /* the id of the other one */
};
static const struct lw_field lw_fields_sandbox_copy[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_copy, sandbox)},
	{"source", LW_AS_TEXT, true, offsetof(struct lw_sandbox_copy, source)},
};

/* Run Python code in sandbox, and answer as `execute` does; the other fields as there. */
struct lw_sandbox_execute {
	struct lw_bytes sandbox; /* its id */
	uint64_t kernel; /* a kernel of `kernel_open`; 0 for a fresh interpreter */
	struct lw_bytes code; /* as for `execute` */
	struct lw_bytes name; /* as for `execute` */
	struct lw_texts args; /* as for `execute` */
	struct lw_texts env; /* as for `execute` */
	struct lw_files files; /* as for `execute` */
	struct lw_bytes stdin_; /* as for `execute`; a kernel takes none */
	struct lw_texts collect; /* as for `execute` */
	bool display; /* as for `execute` */
	struct lw_limits limits; /* `time`, `output` and `overflow` */
};
static const struct lw_field lw_fields_sandbox_execute[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_execute, sandbox)},
	{"kernel", LW_WHOLE, false, offsetof(struct lw_sandbox_execute, kernel)},
	{"code", LW_AS_BINARY, true, offsetof(struct lw_sandbox_execute, code)},
	{"name", LW_AS_TEXT, false, offsetof(struct lw_sandbox_execute, name)},
	{"args", LW_TEXTS, false, offsetof(struct lw_sandbox_execute, args)},
	{"env", LW_SETTINGS, false, offsetof(struct lw_sandbox_execute, env)},
	{"files", LW_FILES, false, offsetof(struct lw_sandbox_execute, files)},
	{"stdin", LW_AS_BINARY, false, offsetof(struct lw_sandbox_execute, stdin_)},
	{"collect", LW_TEXTS, false, offsetof(struct lw_sandbox_execute, collect)},
	{"display", LW_FLAG, false, offsetof(struct lw_sandbox_execute, display)},
	{"limits", LW_LIMITS, false, offsetof(struct lw_sandbox_execute, limits)},
};

/* Change when sandbox ends, its metadata, or its policies. idle as in `sandbox_open`; lifetime counts from now. What
    is left out or empty stays as it is. One that sleeps keeps its metadata and policies. */
struct lw_sandbox_extend {
	struct lw_bytes sandbox; /* its id */
	double idle; /* as for `sandbox_open` */
	double lifetime; /* seconds from now on, at most `sandbox_lifetime` */
	bool detach; /* the sandbox isn't held by a connection any more */
	struct lw_texts metadata; /* all of it, as for `sandbox_open` */
};
static const struct lw_field lw_fields_sandbox_extend[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend, sandbox)},
	{"idle", LW_SECONDS, false, offsetof(struct lw_sandbox_extend, idle)},
	{"lifetime", LW_SECONDS, false, offsetof(struct lw_sandbox_extend, lifetime)},
	{"detach", LW_FLAG, false, offsetof(struct lw_sandbox_extend, detach)},
	{"metadata", LW_SETTINGS, false, offsetof(struct lw_sandbox_extend, metadata)},
};

/* Send a request of HTTP by the policy of sandbox, and answer with the response. */
struct lw_sandbox_fetch {
	struct lw_bytes sandbox; /* its id */
	struct lw_bytes url; /* http or https, at most 8,192 characters */
	struct lw_bytes method; /* at most 64 characters */
	struct lw_bytes body; /* at most 16 MiB */
};
static const struct lw_field lw_fields_sandbox_fetch[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_fetch, sandbox)},
	{"url", LW_AS_TEXT, true, offsetof(struct lw_sandbox_fetch, url)},
	{"method", LW_AS_TEXT, false, offsetof(struct lw_sandbox_fetch, method)},
	{"body", LW_AS_BINARY, false, offsetof(struct lw_sandbox_fetch, body)},
};

/* Hide names in the mounts of sandbox, which has a home of its own, as `hide` of sandbox_open does. */
struct lw_sandbox_hide {
	struct lw_bytes sandbox; /* its id */
	struct lw_texts hide; /* as for `sandbox_open`; at most 512, 40,960 bytes together, and 2,048 in all requests of a sandbox */
};
static const struct lw_field lw_fields_sandbox_hide[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_hide, sandbox)},
	{"hide", LW_TEXTS, true, offsetof(struct lw_sandbox_hide, hide)},
};

/* Ask for the state of a sandbox. */
struct lw_sandbox_info {
	struct lw_bytes sandbox; /* its id */
};
static const struct lw_field lw_fields_sandbox_info[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_info, sandbox)},
};

/* End every process in a sandbox, and the sandbox. */
struct lw_sandbox_kill {
	struct lw_bytes sandbox; /* its id */
};
static const struct lw_field lw_fields_sandbox_kill[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_kill, sandbox)},
};

/* Ask for all sandboxes of this user. */
struct lw_sandbox_list {
	uint64_t after; /* `last` of the answer before */
};
static const struct lw_field lw_fields_sandbox_list[] = {
	{"after", LW_WHOLE, false, offsetof(struct lw_sandbox_list, after)},
};

/* Open a sandbox that stays until it is killed, idle for too long, or at the end of its lifetime. */
struct lw_sandbox_open {
	struct lw_bytes profile; /* which files the sandbox shows and what it permits: one of the daemon's profiles */
	struct lw_bytes environment; /* as for `execute`, for all that runs in it */
	struct lw_bytes egress; /* as for `execute`, for all that runs in it */
	struct lw_bytes image; /* an [image](images.md) of the daemon's user, whose root file system takes the place of the host's files; not with `environment` */
	struct lw_limits limits; /* as for `execute`, and `files`, bytes in /workspace, /tmp and /dev/shm together. It, `memory` and `processes` hold for the whole sandbox; `time` and `output` for each `process_run` that doesn't set its own */
	double idle; /* seconds without a request about it and without a request that waits for it, after which it ends; at most `sandbox_idle` */
	double lifetime; /* seconds after which it ends in any case; at most `sandbox_lifetime` */
	bool held; /* it ends when this connection does, as `parted`, until a `sandbox_extend` with `detach` */
	bool sleeps; /* when it was idle for too long it sleeps, as by `sandbox_pause`; it ends if it can't */
	struct lw_texts env; /* variables of every process in it, beside the sandbox's own; bounds as for `execute` */
	struct lw_texts metadata; /* shown by `sandbox_info`; at most 64 entries, 16,384 characters together */
	const struct lw_folders *mounts; /* folders of the host, at most 16, whose descriptors lie in `dock`, in this order */
	uint64_t dock; /* the number of a `sandbox_dock` of this connection; `mounts` need one */
	struct lw_bytes cwd; /* of the profile `shell`: the folder in which programs start, and whose `.env` files are hidden */
	struct lw_bytes home; /* of the profile `shell`: a folder whose secrets are hidden, beside the one that the host has for the user. Of the profile `agent`, which needs it, of `approved` and of those based on one of the two: the home folder, a private one at that path */
	struct lw_bytes user; /* with a home folder: the user's name inside. With `image` alone: who runs there, a name of the image's or a number, perhaps `:` and a group's */
	struct lw_texts hide; /* with a home folder: absolute paths in its mounts that can't be seen: a file is empty there and can't be read, a folder is empty. With `protect` and `pin` at most 512, 40,960 bytes together */
	struct lw_texts protect; /* absolute paths in the sandbox's mounts that can't be written. Names that aren't there, and links, are left as they are */
	struct lw_texts pin; /* absolute paths of folders in the sandbox's mounts that can't be renamed, moved or removed, nor the folders above them. A file can be renamed within such a folder, and not into or out of it */
	bool show_secrets; /* of the profile `shell`: hide nothing; `forbidden` where the operator has set `show_secrets = false` */
};
static const struct lw_field lw_fields_sandbox_open[] = {
	{"profile", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, profile)},
	{"environment", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, environment)},
	{"egress", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, egress)},
	{"image", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, image)},
	{"limits", LW_LIMITS, false, offsetof(struct lw_sandbox_open, limits)},
	{"idle", LW_SECONDS, false, offsetof(struct lw_sandbox_open, idle)},
	{"lifetime", LW_SECONDS, false, offsetof(struct lw_sandbox_open, lifetime)},
	{"held", LW_FLAG, false, offsetof(struct lw_sandbox_open, held)},
	{"sleeps", LW_FLAG, false, offsetof(struct lw_sandbox_open, sleeps)},
	{"env", LW_SETTINGS, false, offsetof(struct lw_sandbox_open, env)},
	{"metadata", LW_SETTINGS, false, offsetof(struct lw_sandbox_open, metadata)},
	{"mounts", LW_MOUNTS, false, offsetof(struct lw_sandbox_open, mounts)},
	{"dock", LW_WHOLE, false, offsetof(struct lw_sandbox_open, dock)},
	{"cwd", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, cwd)},
	{"home", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, home)},
	{"user", LW_AS_TEXT, false, offsetof(struct lw_sandbox_open, user)},
	{"hide", LW_TEXTS, false, offsetof(struct lw_sandbox_open, hide)},
	{"protect", LW_TEXTS, false, offsetof(struct lw_sandbox_open, protect)},
	{"pin", LW_TEXTS, false, offsetof(struct lw_sandbox_open, pin)},
	{"show_secrets", LW_FLAG, false, offsetof(struct lw_sandbox_open, show_secrets)},
};

/* Let sandbox sleep: it has no process and no worker until the next request about it. */
struct lw_sandbox_pause {
	struct lw_bytes sandbox; /* its id */
};
static const struct lw_field lw_fields_sandbox_pause[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_pause, sandbox)},
};

/* End session. */
struct lw_session_close {
	uint64_t session; /* the number of a session of this connection */
};
static const struct lw_field lw_fields_session_close[] = {
	{"session", LW_WHOLE, true, offsetof(struct lw_session_close, session)},
};

/* Keep one process for jobs of this connection, one after the other. */
struct lw_session_open {
	struct lw_limits limits; /* as for `execute`. `memory` and `processes` hold for the whole session; `time` and `output` for each job that doesn't set its own */
	double idle; /* seconds without a job after which the session is ended, at most `session_idle` */
	struct lw_bytes profile; /* as for `execute`, for all jobs of the session */
	struct lw_bytes environment; /* as for `execute`, for all jobs of the session */
	struct lw_bytes egress; /* as for `execute`, for all jobs of the session */
};
static const struct lw_field lw_fields_session_open[] = {
	{"limits", LW_LIMITS, false, offsetof(struct lw_session_open, limits)},
	{"idle", LW_SECONDS, false, offsetof(struct lw_session_open, idle)},
	{"profile", LW_AS_TEXT, false, offsetof(struct lw_session_open, profile)},
	{"environment", LW_AS_TEXT, false, offsetof(struct lw_session_open, environment)},
	{"egress", LW_AS_TEXT, false, offsetof(struct lw_session_open, egress)},
};

/* Give session a new process. The state of the old one is lost. */
struct lw_session_reset {
	uint64_t session; /* the number of a session of this connection */
};
static const struct lw_field lw_fields_session_reset[] = {
	{"session", LW_WHOLE, true, offsetof(struct lw_session_reset, session)},
};

/* End the daemon when its jobs are done, as SIGTERM does. */
struct lw_shutdown {
	bool now; /* end running jobs at once */
};
static const struct lw_field lw_fields_shutdown[] = {
	{"now", LW_FLAG, false, offsetof(struct lw_shutdown, now)},
};

/* Serve the request in the arena: a frame's payload of length bytes at the start of slot. */
struct lw_slot {
	uint64_t slot; /* which, from 0 */
	uint64_t length; /* bytes from the slot's start on */
};
static const struct lw_field lw_fields_slot[] = {
	{"slot", LW_WHOLE, true, offsetof(struct lw_slot, slot)},
	{"length", LW_WHOLE, true, offsetof(struct lw_slot, length)},
};

/* Ask what a snapshot needs to be imported again, and how many bytes it has. */
struct lw_snapshot_export {
	struct lw_bytes snapshot; /* of `kernel_snapshot` */
};
static const struct lw_field lw_fields_snapshot_export[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_export, snapshot)},
};

/* Begin a snapshot of bytes that `snapshot_read` answered, perhaps an earlier daemon's; `snapshot_write` adds them. */
struct lw_snapshot_import {
	struct lw_texts key; /* of `snapshot_export` */
	struct lw_pair sizes; /* of `snapshot_export` */
	struct lw_bytes facts; /* MessagePack of a map: `python`, `packages` and `lost` of `kernel_snapshot` */
	double made; /* as `kernel_snapshot` answered */
};
static const struct lw_field lw_fields_snapshot_import[] = {
	{"key", LW_SETTINGS, true, offsetof(struct lw_snapshot_import, key)},
	{"sizes", LW_PAIR, true, offsetof(struct lw_snapshot_import, sizes)},
	{"facts", LW_AS_BINARY, true, offsetof(struct lw_snapshot_import, facts)},
	{"made", LW_SECONDS, true, offsetof(struct lw_snapshot_import, made)},
};

/* Ask what a snapshot is. */
struct lw_snapshot_info {
	struct lw_bytes snapshot; /* of `kernel_snapshot` */
};
static const struct lw_field lw_fields_snapshot_info[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_info, snapshot)},
};

/* Read at most 1 MiB of a snapshot's bytes. */
struct lw_snapshot_read {
	struct lw_bytes snapshot; /* of `kernel_snapshot` */
	uint64_t offset; /* where to begin */
};
static const struct lw_field lw_fields_snapshot_read[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_read, snapshot)},
	{"offset", LW_WHOLE, false, offsetof(struct lw_snapshot_read, offset)},
};

/* Remove a snapshot. Copies that were made of it live on. */
struct lw_snapshot_remove {
	struct lw_bytes snapshot; /* of `kernel_snapshot` */
};
static const struct lw_field lw_fields_snapshot_remove[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_remove, snapshot)},
};

/* Add the next bytes to a snapshot that is imported; with the last ones it is one. */
struct lw_snapshot_write {
	struct lw_bytes snapshot; /* of `snapshot_import` */
	struct lw_bytes data; /* at most 1 MiB */
};
static const struct lw_field lw_fields_snapshot_write[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_write, snapshot)},
	{"data", LW_AS_BINARY, true, offsetof(struct lw_snapshot_write, data)},
};

/* Ask for the state of workers, jobs and layers. */
struct lw_status {
	struct lw_bytes form; /* `json`: the answer is `{"json": text}`, the map below as one JSON object on one line, in ASCII */
};
static const struct lw_field lw_fields_status[] = {
	{"form", LW_AS_TEXT, false, offsetof(struct lw_status, form)},
};

struct lw_arena_answer {
	uint64_t slots;
	uint64_t size;
	struct lw_value arenas;
};
static const struct lw_field lw_fields_arena_answer[] = {
	{"slots", LW_WHOLE, true, offsetof(struct lw_arena_answer, slots)},
	{"size", LW_WHOLE, true, offsetof(struct lw_arena_answer, size)},
	{"arenas", LW_LIST, true, offsetof(struct lw_arena_answer, arenas)},
};

struct lw_cancel_answer {
	bool cancelled;
};
static const struct lw_field lw_fields_cancel_answer[] = {
	{"cancelled", LW_FLAG, true, offsetof(struct lw_cancel_answer, cancelled)},
};

struct lw_egress_answer_answer {
	bool taken;
};
static const struct lw_field lw_fields_egress_answer_answer[] = {
	{"taken", LW_FLAG, true, offsetof(struct lw_egress_answer_answer, taken)},
};

struct lw_egress_asks_answer {
	struct lw_value events;
};
static const struct lw_field lw_fields_egress_asks_answer[] = {
	{"events", LW_LIST, true, offsetof(struct lw_egress_asks_answer, events)},
};

struct lw_egress_log_answer {
	struct lw_value events;
	uint64_t last;
	uint64_t forgotten;
};
static const struct lw_field lw_fields_egress_log_answer[] = {
	{"events", LW_LIST, true, offsetof(struct lw_egress_log_answer, events)},
	{"last", LW_WHOLE, true, offsetof(struct lw_egress_log_answer, last)},
	{"forgotten", LW_WHOLE, true, offsetof(struct lw_egress_log_answer, forgotten)},
};

struct lw_execute_answer {
	struct lw_bytes outcome;
	uint64_t exit_code;
	struct lw_value limit;
	double duration;
	double cpu_time;
	uint64_t memory_peak;
	struct lw_value denied;
	bool truncated;
	struct lw_value omitted;
	struct lw_value degraded;
	struct lw_value error;
	struct lw_bytes hint;
	double starved;
	struct lw_value stdout_;
	struct lw_value stderr_;
	struct lw_value files;
	struct lw_value results;
	struct lw_bytes value;
	struct lw_bytes label;
	uint64_t job;
	struct lw_value left_out;
	struct lw_value arenas;
};
static const struct lw_field lw_fields_execute_answer[] = {
	{"outcome", LW_AS_TEXT, true, offsetof(struct lw_execute_answer, outcome)},
	{"exit_code", LW_WHOLE, true, offsetof(struct lw_execute_answer, exit_code)},
	{"limit", LW_ANYTHING, false, offsetof(struct lw_execute_answer, limit)},
	{"duration", LW_SECONDS, true, offsetof(struct lw_execute_answer, duration)},
	{"cpu_time", LW_SECONDS, true, offsetof(struct lw_execute_answer, cpu_time)},
	{"memory_peak", LW_WHOLE, true, offsetof(struct lw_execute_answer, memory_peak)},
	{"denied", LW_TABLE, true, offsetof(struct lw_execute_answer, denied)},
	{"truncated", LW_FLAG, true, offsetof(struct lw_execute_answer, truncated)},
	{"omitted", LW_LIST, false, offsetof(struct lw_execute_answer, omitted)},
	{"degraded", LW_LIST, true, offsetof(struct lw_execute_answer, degraded)},
	{"error", LW_ANYTHING, false, offsetof(struct lw_execute_answer, error)},
	{"hint", LW_AS_TEXT, false, offsetof(struct lw_execute_answer, hint)},
	{"starved", LW_SECONDS, false, offsetof(struct lw_execute_answer, starved)},
	{"stdout", LW_ANYTHING, false, offsetof(struct lw_execute_answer, stdout_)},
	{"stderr", LW_ANYTHING, false, offsetof(struct lw_execute_answer, stderr_)},
	{"files", LW_TABLE, false, offsetof(struct lw_execute_answer, files)},
	{"results", LW_LIST, false, offsetof(struct lw_execute_answer, results)},
	{"value", LW_AS_TEXT, false, offsetof(struct lw_execute_answer, value)},
	{"label", LW_AS_TEXT, false, offsetof(struct lw_execute_answer, label)},
	{"job", LW_WHOLE, false, offsetof(struct lw_execute_answer, job)},
	{"left_out", LW_LIST, false, offsetof(struct lw_execute_answer, left_out)},
	{"arenas", LW_LIST, false, offsetof(struct lw_execute_answer, arenas)},
};

struct lw_file_append_answer {
	uint64_t size;
};
static const struct lw_field lw_fields_file_append_answer[] = {
	{"size", LW_WHOLE, true, offsetof(struct lw_file_append_answer, size)},
};

struct lw_file_edit_answer {
	uint64_t found;
};
static const struct lw_field lw_fields_file_edit_answer[] = {
	{"found", LW_WHOLE, true, offsetof(struct lw_file_edit_answer, found)},
};

struct lw_file_glob_answer {
	struct lw_value names;
	bool more;
};
static const struct lw_field lw_fields_file_glob_answer[] = {
	{"names", LW_LIST, true, offsetof(struct lw_file_glob_answer, names)},
	{"more", LW_FLAG, true, offsetof(struct lw_file_glob_answer, more)},
};

struct lw_file_grep_answer {
	struct lw_value rows;
	bool more;
};
static const struct lw_field lw_fields_file_grep_answer[] = {
	{"rows", LW_LIST, true, offsetof(struct lw_file_grep_answer, rows)},
	{"more", LW_FLAG, true, offsetof(struct lw_file_grep_answer, more)},
};

struct lw_file_list_answer {
	struct lw_value rows;
	bool more;
};
static const struct lw_field lw_fields_file_list_answer[] = {
	{"rows", LW_LIST, true, offsetof(struct lw_file_list_answer, rows)},
	{"more", LW_FLAG, true, offsetof(struct lw_file_list_answer, more)},
};

struct lw_file_read_answer {
	struct lw_bytes data;
	uint64_t handle;
	uint64_t at;
	uint64_t end;
	uint64_t mode;
	uint64_t time;
};
static const struct lw_field lw_fields_file_read_answer[] = {
	{"data", LW_AS_BINARY, true, offsetof(struct lw_file_read_answer, data)},
	{"handle", LW_WHOLE, true, offsetof(struct lw_file_read_answer, handle)},
	{"at", LW_WHOLE, true, offsetof(struct lw_file_read_answer, at)},
	{"end", LW_WHOLE, true, offsetof(struct lw_file_read_answer, end)},
	{"mode", LW_WHOLE, true, offsetof(struct lw_file_read_answer, mode)},
	{"time", LW_WHOLE, true, offsetof(struct lw_file_read_answer, time)},
};

struct lw_file_read_many_answer {
	struct lw_bytes data;
};
static const struct lw_field lw_fields_file_read_many_answer[] = {
	{"data", LW_AS_BINARY, true, offsetof(struct lw_file_read_many_answer, data)},
};

struct lw_file_stat_answer {
	struct lw_value row;
};
static const struct lw_field lw_fields_file_stat_answer[] = {
	{"row", LW_LIST, true, offsetof(struct lw_file_stat_answer, row)},
};

struct lw_file_walk_answer {
	struct lw_value rows;
};
static const struct lw_field lw_fields_file_walk_answer[] = {
	{"rows", LW_LIST, true, offsetof(struct lw_file_walk_answer, rows)},
};

struct lw_file_write_answer {
	uint64_t handle;
	uint64_t size;
};
static const struct lw_field lw_fields_file_write_answer[] = {
	{"handle", LW_WHOLE, true, offsetof(struct lw_file_write_answer, handle)},
	{"size", LW_WHOLE, true, offsetof(struct lw_file_write_answer, size)},
};

struct lw_file_write_many_answer {
	struct lw_value failed;
};
static const struct lw_field lw_fields_file_write_many_answer[] = {
	{"failed", LW_LIST, true, offsetof(struct lw_file_write_many_answer, failed)},
};

struct lw_function_answer_answer {
	bool taken;
};
static const struct lw_field lw_fields_function_answer_answer[] = {
	{"taken", LW_FLAG, true, offsetof(struct lw_function_answer_answer, taken)},
};

struct lw_function_take_answer {
	struct lw_value calls;
	bool over;
};
static const struct lw_field lw_fields_function_take_answer[] = {
	{"calls", LW_LIST, true, offsetof(struct lw_function_take_answer, calls)},
	{"over", LW_FLAG, true, offsetof(struct lw_function_take_answer, over)},
};

struct lw_interrupt_answer {
	bool interrupted;
};
static const struct lw_field lw_fields_interrupt_answer[] = {
	{"interrupted", LW_FLAG, true, offsetof(struct lw_interrupt_answer, interrupted)},
};

struct lw_kept_drop_answer {
	bool dropped;
};
static const struct lw_field lw_fields_kept_drop_answer[] = {
	{"dropped", LW_FLAG, true, offsetof(struct lw_kept_drop_answer, dropped)},
};

struct lw_kept_read_answer {
	struct lw_bytes data;
};
static const struct lw_field lw_fields_kept_read_answer[] = {
	{"data", LW_AS_BINARY, true, offsetof(struct lw_kept_read_answer, data)},
};

struct lw_kernel_bind_answer {
	uint64_t session;
};
static const struct lw_field lw_fields_kernel_bind_answer[] = {
	{"session", LW_WHOLE, true, offsetof(struct lw_kernel_bind_answer, session)},
};

struct lw_kernel_fork_answer {
	uint64_t kernel;
};
static const struct lw_field lw_fields_kernel_fork_answer[] = {
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_fork_answer, kernel)},
};

struct lw_kernel_interrupt_answer {
	bool interrupted;
};
static const struct lw_field lw_fields_kernel_interrupt_answer[] = {
	{"interrupted", LW_FLAG, true, offsetof(struct lw_kernel_interrupt_answer, interrupted)},
};

struct lw_kernel_open_answer {
	uint64_t kernel;
};
static const struct lw_field lw_fields_kernel_open_answer[] = {
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_open_answer, kernel)},
};

struct lw_kernel_snapshot_answer {
	struct lw_bytes snapshot;
	uint64_t size;
	double made;
	struct lw_bytes python;
	struct lw_value packages;
	struct lw_value lost;
};
static const struct lw_field lw_fields_kernel_snapshot_answer[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_kernel_snapshot_answer, snapshot)},
	{"size", LW_WHOLE, true, offsetof(struct lw_kernel_snapshot_answer, size)},
	{"made", LW_SECONDS, true, offsetof(struct lw_kernel_snapshot_answer, made)},
	{"python", LW_AS_TEXT, true, offsetof(struct lw_kernel_snapshot_answer, python)},
	{"packages", LW_TABLE, true, offsetof(struct lw_kernel_snapshot_answer, packages)},
	{"lost", LW_LIST, true, offsetof(struct lw_kernel_snapshot_answer, lost)},
};

struct lw_output_take_answer {
	struct lw_bytes stdout_;
	struct lw_bytes stderr_;
	bool running;
	bool over;
};
static const struct lw_field lw_fields_output_take_answer[] = {
	{"stdout", LW_AS_BINARY, true, offsetof(struct lw_output_take_answer, stdout_)},
	{"stderr", LW_AS_BINARY, true, offsetof(struct lw_output_take_answer, stderr_)},
	{"running", LW_FLAG, true, offsetof(struct lw_output_take_answer, running)},
	{"over", LW_FLAG, true, offsetof(struct lw_output_take_answer, over)},
};

struct lw_overlay_checkpoint_answer {
	struct lw_bytes name;
};
static const struct lw_field lw_fields_overlay_checkpoint_answer[] = {
	{"name", LW_AS_TEXT, true, offsetof(struct lw_overlay_checkpoint_answer, name)},
};

struct lw_overlay_diff_answer {
	uint64_t size;
	struct lw_value arenas;
};
static const struct lw_field lw_fields_overlay_diff_answer[] = {
	{"size", LW_WHOLE, true, offsetof(struct lw_overlay_diff_answer, size)},
	{"arenas", LW_LIST, false, offsetof(struct lw_overlay_diff_answer, arenas)},
};

struct lw_overlay_read_answer {
	uint64_t size;
	struct lw_value arenas;
};
static const struct lw_field lw_fields_overlay_read_answer[] = {
	{"size", LW_WHOLE, true, offsetof(struct lw_overlay_read_answer, size)},
	{"arenas", LW_LIST, false, offsetof(struct lw_overlay_read_answer, arenas)},
};

struct lw_ping_answer {
	struct lw_bytes version;
	uint64_t wire;
	struct lw_value caps;
};
static const struct lw_field lw_fields_ping_answer[] = {
	{"version", LW_AS_TEXT, true, offsetof(struct lw_ping_answer, version)},
	{"wire", LW_WHOLE, true, offsetof(struct lw_ping_answer, wire)},
	{"caps", LW_TABLE, false, offsetof(struct lw_ping_answer, caps)},
};

struct lw_process_list_answer {
	struct lw_value processes;
};
static const struct lw_field lw_fields_process_list_answer[] = {
	{"processes", LW_LIST, true, offsetof(struct lw_process_list_answer, processes)},
};

struct lw_process_read_answer {
	struct lw_value chunks;
	bool over;
	struct lw_bytes outcome;
	uint64_t exit_code;
	struct lw_value limit;
	double duration;
	double cpu_time;
	uint64_t memory_peak;
	struct lw_value denied;
	bool truncated;
	struct lw_value omitted;
	struct lw_value degraded;
	struct lw_value error;
	struct lw_bytes hint;
	double starved;
};
static const struct lw_field lw_fields_process_read_answer[] = {
	{"chunks", LW_LIST, true, offsetof(struct lw_process_read_answer, chunks)},
	{"over", LW_FLAG, true, offsetof(struct lw_process_read_answer, over)},
	{"outcome", LW_AS_TEXT, false, offsetof(struct lw_process_read_answer, outcome)},
	{"exit_code", LW_WHOLE, false, offsetof(struct lw_process_read_answer, exit_code)},
	{"limit", LW_ANYTHING, false, offsetof(struct lw_process_read_answer, limit)},
	{"duration", LW_SECONDS, false, offsetof(struct lw_process_read_answer, duration)},
	{"cpu_time", LW_SECONDS, false, offsetof(struct lw_process_read_answer, cpu_time)},
	{"memory_peak", LW_WHOLE, false, offsetof(struct lw_process_read_answer, memory_peak)},
	{"denied", LW_TABLE, false, offsetof(struct lw_process_read_answer, denied)},
	{"truncated", LW_FLAG, false, offsetof(struct lw_process_read_answer, truncated)},
	{"omitted", LW_LIST, false, offsetof(struct lw_process_read_answer, omitted)},
	{"degraded", LW_LIST, false, offsetof(struct lw_process_read_answer, degraded)},
	{"error", LW_ANYTHING, false, offsetof(struct lw_process_read_answer, error)},
	{"hint", LW_AS_TEXT, false, offsetof(struct lw_process_read_answer, hint)},
	{"starved", LW_SECONDS, false, offsetof(struct lw_process_read_answer, starved)},
};

struct lw_process_resize_answer {
	bool resized;
};
static const struct lw_field lw_fields_process_resize_answer[] = {
	{"resized", LW_FLAG, true, offsetof(struct lw_process_resize_answer, resized)},
};

struct lw_process_signal_answer {
	bool sent;
};
static const struct lw_field lw_fields_process_signal_answer[] = {
	{"sent", LW_FLAG, true, offsetof(struct lw_process_signal_answer, sent)},
};

struct lw_process_start_answer {
	uint64_t process;
};
static const struct lw_field lw_fields_process_start_answer[] = {
	{"process", LW_WHOLE, true, offsetof(struct lw_process_start_answer, process)},
};

struct lw_process_wait_answer {
	bool over;
	struct lw_bytes outcome;
	uint64_t exit_code;
	struct lw_value limit;
	double duration;
	double cpu_time;
	uint64_t memory_peak;
	struct lw_value denied;
	bool truncated;
	struct lw_value omitted;
	struct lw_value degraded;
	struct lw_value error;
	struct lw_bytes hint;
	double starved;
};
static const struct lw_field lw_fields_process_wait_answer[] = {
	{"over", LW_FLAG, true, offsetof(struct lw_process_wait_answer, over)},
	{"outcome", LW_AS_TEXT, false, offsetof(struct lw_process_wait_answer, outcome)},
	{"exit_code", LW_WHOLE, false, offsetof(struct lw_process_wait_answer, exit_code)},
	{"limit", LW_ANYTHING, false, offsetof(struct lw_process_wait_answer, limit)},
	{"duration", LW_SECONDS, false, offsetof(struct lw_process_wait_answer, duration)},
	{"cpu_time", LW_SECONDS, false, offsetof(struct lw_process_wait_answer, cpu_time)},
	{"memory_peak", LW_WHOLE, false, offsetof(struct lw_process_wait_answer, memory_peak)},
	{"denied", LW_TABLE, false, offsetof(struct lw_process_wait_answer, denied)},
	{"truncated", LW_FLAG, false, offsetof(struct lw_process_wait_answer, truncated)},
	{"omitted", LW_LIST, false, offsetof(struct lw_process_wait_answer, omitted)},
	{"degraded", LW_LIST, false, offsetof(struct lw_process_wait_answer, degraded)},
	{"error", LW_ANYTHING, false, offsetof(struct lw_process_wait_answer, error)},
	{"hint", LW_AS_TEXT, false, offsetof(struct lw_process_wait_answer, hint)},
	{"starved", LW_SECONDS, false, offsetof(struct lw_process_wait_answer, starved)},
};

struct lw_process_write_answer {
	uint64_t written;
};
static const struct lw_field lw_fields_process_write_answer[] = {
	{"written", LW_WHOLE, true, offsetof(struct lw_process_write_answer, written)},
};

struct lw_recall_answer {
	struct lw_value events;
	uint64_t last;
};
static const struct lw_field lw_fields_recall_answer[] = {
	{"events", LW_LIST, true, offsetof(struct lw_recall_answer, events)},
	{"last", LW_WHOLE, true, offsetof(struct lw_recall_answer, last)},
};

struct lw_sandbox_connect_answer {
	bool socket;
};
static const struct lw_field lw_fields_sandbox_connect_answer[] = {
	{"socket", LW_FLAG, true, offsetof(struct lw_sandbox_connect_answer, socket)},
};

struct lw_sandbox_copy_answer {
	uint64_t made;
};
static const struct lw_field lw_fields_sandbox_copy_answer[] = {
	{"made", LW_WHOLE, true, offsetof(struct lw_sandbox_copy_answer, made)},
};

struct lw_sandbox_dock_answer {
	uint64_t dock;
	bool socket;
};
static const struct lw_field lw_fields_sandbox_dock_answer[] = {
	{"dock", LW_WHOLE, true, offsetof(struct lw_sandbox_dock_answer, dock)},
	{"socket", LW_FLAG, true, offsetof(struct lw_sandbox_dock_answer, socket)},
};

struct lw_sandbox_extend_answer {
	struct lw_bytes sandbox;
	struct lw_bytes profile;
	struct lw_bytes environment;
	struct lw_bytes egress;
	struct lw_bytes image;
	struct lw_value metadata;
	double age;
	double idle;
	double unused;
	double left;
	bool held;
	uint64_t processes;
	uint64_t calls;
	uint64_t memory_limit;
	uint64_t memory_peak;
	uint64_t memory;
	double cpu_time;
	uint64_t oom_kills;
	uint64_t forks_refused;
	struct lw_value denied;
	struct lw_value mounts;
	bool asleep;
	struct lw_value layers;
	struct lw_value checkpoints;
};
static const struct lw_field lw_fields_sandbox_extend_answer[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend_answer, sandbox)},
	{"profile", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend_answer, profile)},
	{"environment", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend_answer, environment)},
	{"egress", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend_answer, egress)},
	{"image", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend_answer, image)},
	{"metadata", LW_TABLE, true, offsetof(struct lw_sandbox_extend_answer, metadata)},
	{"age", LW_SECONDS, true, offsetof(struct lw_sandbox_extend_answer, age)},
	{"idle", LW_SECONDS, true, offsetof(struct lw_sandbox_extend_answer, idle)},
	{"unused", LW_SECONDS, true, offsetof(struct lw_sandbox_extend_answer, unused)},
	{"left", LW_SECONDS, true, offsetof(struct lw_sandbox_extend_answer, left)},
	{"held", LW_FLAG, true, offsetof(struct lw_sandbox_extend_answer, held)},
	{"processes", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, processes)},
	{"calls", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, calls)},
	{"memory_limit", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, memory_limit)},
	{"memory_peak", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, memory_peak)},
	{"memory", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, memory)},
	{"cpu_time", LW_SECONDS, true, offsetof(struct lw_sandbox_extend_answer, cpu_time)},
	{"oom_kills", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, oom_kills)},
	{"forks_refused", LW_WHOLE, true, offsetof(struct lw_sandbox_extend_answer, forks_refused)},
	{"denied", LW_TABLE, true, offsetof(struct lw_sandbox_extend_answer, denied)},
	{"mounts", LW_LIST, false, offsetof(struct lw_sandbox_extend_answer, mounts)},
	{"asleep", LW_FLAG, true, offsetof(struct lw_sandbox_extend_answer, asleep)},
	{"layers", LW_LIST, false, offsetof(struct lw_sandbox_extend_answer, layers)},
	{"checkpoints", LW_LIST, false, offsetof(struct lw_sandbox_extend_answer, checkpoints)},
};

struct lw_sandbox_fetch_answer {
	uint64_t status;
	struct lw_value headers;
	struct lw_bytes url;
	struct lw_value history;
	struct lw_bytes address;
	struct lw_value body;
	struct lw_bytes failed;
	struct lw_bytes message;
	bool sent;
	struct lw_value arenas;
};
static const struct lw_field lw_fields_sandbox_fetch_answer[] = {
	{"status", LW_WHOLE, false, offsetof(struct lw_sandbox_fetch_answer, status)},
	{"headers", LW_LIST, false, offsetof(struct lw_sandbox_fetch_answer, headers)},
	{"url", LW_AS_TEXT, true, offsetof(struct lw_sandbox_fetch_answer, url)},
	{"history", LW_LIST, false, offsetof(struct lw_sandbox_fetch_answer, history)},
	{"address", LW_AS_TEXT, false, offsetof(struct lw_sandbox_fetch_answer, address)},
	{"body", LW_ANYTHING, false, offsetof(struct lw_sandbox_fetch_answer, body)},
	{"failed", LW_AS_TEXT, false, offsetof(struct lw_sandbox_fetch_answer, failed)},
	{"message", LW_AS_TEXT, false, offsetof(struct lw_sandbox_fetch_answer, message)},
	{"sent", LW_FLAG, false, offsetof(struct lw_sandbox_fetch_answer, sent)},
	{"arenas", LW_LIST, false, offsetof(struct lw_sandbox_fetch_answer, arenas)},
};

struct lw_sandbox_info_answer {
	struct lw_bytes sandbox;
	struct lw_bytes profile;
	struct lw_bytes environment;
	struct lw_bytes egress;
	struct lw_bytes image;
	struct lw_value metadata;
	double age;
	double idle;
	double unused;
	double left;
	bool held;
	uint64_t processes;
	uint64_t calls;
	uint64_t memory_limit;
	uint64_t memory_peak;
	uint64_t memory;
	double cpu_time;
	uint64_t oom_kills;
	uint64_t forks_refused;
	struct lw_value denied;
	struct lw_value mounts;
	bool asleep;
	struct lw_value layers;
	struct lw_value checkpoints;
};
static const struct lw_field lw_fields_sandbox_info_answer[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_info_answer, sandbox)},
	{"profile", LW_AS_TEXT, true, offsetof(struct lw_sandbox_info_answer, profile)},
	{"environment", LW_AS_TEXT, true, offsetof(struct lw_sandbox_info_answer, environment)},
	{"egress", LW_AS_TEXT, true, offsetof(struct lw_sandbox_info_answer, egress)},
	{"image", LW_AS_TEXT, true, offsetof(struct lw_sandbox_info_answer, image)},
	{"metadata", LW_TABLE, true, offsetof(struct lw_sandbox_info_answer, metadata)},
	{"age", LW_SECONDS, true, offsetof(struct lw_sandbox_info_answer, age)},
	{"idle", LW_SECONDS, true, offsetof(struct lw_sandbox_info_answer, idle)},
	{"unused", LW_SECONDS, true, offsetof(struct lw_sandbox_info_answer, unused)},
	{"left", LW_SECONDS, true, offsetof(struct lw_sandbox_info_answer, left)},
	{"held", LW_FLAG, true, offsetof(struct lw_sandbox_info_answer, held)},
	{"processes", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, processes)},
	{"calls", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, calls)},
	{"memory_limit", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, memory_limit)},
	{"memory_peak", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, memory_peak)},
	{"memory", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, memory)},
	{"cpu_time", LW_SECONDS, true, offsetof(struct lw_sandbox_info_answer, cpu_time)},
	{"oom_kills", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, oom_kills)},
	{"forks_refused", LW_WHOLE, true, offsetof(struct lw_sandbox_info_answer, forks_refused)},
	{"denied", LW_TABLE, true, offsetof(struct lw_sandbox_info_answer, denied)},
	{"mounts", LW_LIST, false, offsetof(struct lw_sandbox_info_answer, mounts)},
	{"asleep", LW_FLAG, true, offsetof(struct lw_sandbox_info_answer, asleep)},
	{"layers", LW_LIST, false, offsetof(struct lw_sandbox_info_answer, layers)},
	{"checkpoints", LW_LIST, false, offsetof(struct lw_sandbox_info_answer, checkpoints)},
};

struct lw_sandbox_list_answer {
	struct lw_value sandboxes;
	bool more;
	uint64_t last;
};
static const struct lw_field lw_fields_sandbox_list_answer[] = {
	{"sandboxes", LW_LIST, true, offsetof(struct lw_sandbox_list_answer, sandboxes)},
	{"more", LW_FLAG, true, offsetof(struct lw_sandbox_list_answer, more)},
	{"last", LW_WHOLE, false, offsetof(struct lw_sandbox_list_answer, last)},
};

struct lw_sandbox_open_answer {
	struct lw_bytes sandbox;
	double idle;
	double lifetime;
};
static const struct lw_field lw_fields_sandbox_open_answer[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_open_answer, sandbox)},
	{"idle", LW_SECONDS, true, offsetof(struct lw_sandbox_open_answer, idle)},
	{"lifetime", LW_SECONDS, true, offsetof(struct lw_sandbox_open_answer, lifetime)},
};

struct lw_session_open_answer {
	uint64_t session;
};
static const struct lw_field lw_fields_session_open_answer[] = {
	{"session", LW_WHOLE, true, offsetof(struct lw_session_open_answer, session)},
};

struct lw_snapshot_export_answer {
	struct lw_value key;
	struct lw_value sizes;
};
static const struct lw_field lw_fields_snapshot_export_answer[] = {
	{"key", LW_TABLE, true, offsetof(struct lw_snapshot_export_answer, key)},
	{"sizes", LW_LIST, true, offsetof(struct lw_snapshot_export_answer, sizes)},
};

struct lw_snapshot_import_answer {
	struct lw_bytes snapshot;
};
static const struct lw_field lw_fields_snapshot_import_answer[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_import_answer, snapshot)},
};

struct lw_snapshot_info_answer {
	struct lw_bytes snapshot;
	uint64_t size;
	double made;
	struct lw_bytes python;
	struct lw_value packages;
	struct lw_value lost;
};
static const struct lw_field lw_fields_snapshot_info_answer[] = {
	{"snapshot", LW_AS_TEXT, true, offsetof(struct lw_snapshot_info_answer, snapshot)},
	{"size", LW_WHOLE, true, offsetof(struct lw_snapshot_info_answer, size)},
	{"made", LW_SECONDS, true, offsetof(struct lw_snapshot_info_answer, made)},
	{"python", LW_AS_TEXT, true, offsetof(struct lw_snapshot_info_answer, python)},
	{"packages", LW_TABLE, true, offsetof(struct lw_snapshot_info_answer, packages)},
	{"lost", LW_LIST, true, offsetof(struct lw_snapshot_info_answer, lost)},
};

struct lw_snapshot_list_answer {
	struct lw_value snapshots;
};
static const struct lw_field lw_fields_snapshot_list_answer[] = {
	{"snapshots", LW_LIST, true, offsetof(struct lw_snapshot_list_answer, snapshots)},
};

struct lw_snapshot_read_answer {
	struct lw_bytes data;
};
static const struct lw_field lw_fields_snapshot_read_answer[] = {
	{"data", LW_AS_BINARY, true, offsetof(struct lw_snapshot_read_answer, data)},
};

struct lw_snapshot_write_answer {
	uint64_t left;
};
static const struct lw_field lw_fields_snapshot_write_answer[] = {
	{"left", LW_WHOLE, true, offsetof(struct lw_snapshot_write_answer, left)},
};

struct lw_status_answer {
	struct lw_bytes json;
	struct lw_value workers;
	struct lw_value jobs;
	uint64_t runners_made;
	uint64_t runners_armed;
	uint64_t runners_arming;
	uint64_t runners_kept;
	struct lw_value layers;
	struct lw_bytes transport;
	struct lw_value degraded;
	struct lw_value pools;
	struct lw_value environments;
	double uptime;
	uint64_t connections;
	uint64_t sessions;
	uint64_t sandboxes;
	uint64_t max_sessions;
	uint64_t max_connections;
	bool fresh_layout;
	struct lw_bytes snapshot;
	uint64_t faults;
	uint64_t pid;
	struct lw_value reloads;
};
static const struct lw_field lw_fields_status_answer[] = {
	{"json", LW_AS_TEXT, false, offsetof(struct lw_status_answer, json)},
	{"workers", LW_TABLE, false, offsetof(struct lw_status_answer, workers)},
	{"jobs", LW_TABLE, false, offsetof(struct lw_status_answer, jobs)},
	{"runners_made", LW_WHOLE, false, offsetof(struct lw_status_answer, runners_made)},
	{"runners_armed", LW_WHOLE, false, offsetof(struct lw_status_answer, runners_armed)},
	{"runners_arming", LW_WHOLE, false, offsetof(struct lw_status_answer, runners_arming)},
	{"runners_kept", LW_WHOLE, false, offsetof(struct lw_status_answer, runners_kept)},
	{"layers", LW_TABLE, false, offsetof(struct lw_status_answer, layers)},
	{"transport", LW_AS_TEXT, false, offsetof(struct lw_status_answer, transport)},
	{"degraded", LW_LIST, false, offsetof(struct lw_status_answer, degraded)},
	{"pools", LW_LIST, false, offsetof(struct lw_status_answer, pools)},
	{"environments", LW_TABLE, false, offsetof(struct lw_status_answer, environments)},
	{"uptime", LW_SECONDS, false, offsetof(struct lw_status_answer, uptime)},
	{"connections", LW_WHOLE, false, offsetof(struct lw_status_answer, connections)},
	{"sessions", LW_WHOLE, false, offsetof(struct lw_status_answer, sessions)},
	{"sandboxes", LW_WHOLE, false, offsetof(struct lw_status_answer, sandboxes)},
	{"max_sessions", LW_WHOLE, false, offsetof(struct lw_status_answer, max_sessions)},
	{"max_connections", LW_WHOLE, false, offsetof(struct lw_status_answer, max_connections)},
	{"fresh_layout", LW_FLAG, false, offsetof(struct lw_status_answer, fresh_layout)},
	{"snapshot", LW_AS_TEXT, false, offsetof(struct lw_status_answer, snapshot)},
	{"faults", LW_WHOLE, false, offsetof(struct lw_status_answer, faults)},
	{"pid", LW_WHOLE, false, offsetof(struct lw_status_answer, pid)},
	{"reloads", LW_LIST, false, offsetof(struct lw_status_answer, reloads)},
};
