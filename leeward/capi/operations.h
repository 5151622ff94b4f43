/* Made by ./dev generate */
/* Requests by their operations: lw_request_write writes them. A field that must be given is written in any case, others if
 * they aren't 0, false or NULL. An operation with an array or a map is written by hand, in request.c and by its senders. */
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
	uint64_t kernel; /* of `kernel_open` */
};
static const struct lw_field lw_fields_kernel_bind[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_bind, sandbox)},
	{"kernel", LW_WHOLE, true, offsetof(struct lw_kernel_bind, kernel)},
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
	bool held; /* the kernel is closed when this connection ends */
};
static const struct lw_field lw_fields_kernel_open[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_kernel_open, sandbox)},
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

/* Wait for output of the job of the request target of this connection, behind what the client has. */
struct lw_output_take {
	uint64_t target; /* the id of the request for the job, an `execute` without `session`, on this connection */
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

/* Read a piece of a changed file in the overlay at target. */
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
	double wait; /* seconds to wait for the next one, at most 3,600 */
};
static const struct lw_field lw_fields_process_read[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_process_read, sandbox)},
	{"process", LW_WHOLE, true, offsetof(struct lw_process_read, process)},
	{"after", LW_WHOLE, false, offsetof(struct lw_process_read, after)},
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

/* Change when sandbox ends. idle as in `sandbox_open`; lifetime counts from now. 0: no change. */
struct lw_sandbox_extend {
	struct lw_bytes sandbox; /* its id */
	double idle; /* as for `sandbox_open` */
	double lifetime; /* seconds from now on, at most `sandbox_lifetime` */
	bool detach; /* the sandbox isn't held by a connection any more */
};
static const struct lw_field lw_fields_sandbox_extend[] = {
	{"sandbox", LW_AS_TEXT, true, offsetof(struct lw_sandbox_extend, sandbox)},
	{"idle", LW_SECONDS, false, offsetof(struct lw_sandbox_extend, idle)},
	{"lifetime", LW_SECONDS, false, offsetof(struct lw_sandbox_extend, lifetime)},
	{"detach", LW_FLAG, false, offsetof(struct lw_sandbox_extend, detach)},
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

/* End session. */
struct lw_session_close {
	uint64_t session; /* the number of a session of this connection */
};
static const struct lw_field lw_fields_session_close[] = {
	{"session", LW_WHOLE, true, offsetof(struct lw_session_close, session)},
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

/* Ask for the state of workers, jobs and layers. */
struct lw_status {
	struct lw_bytes form; /* `json`: the answer is `{"json": text}`, the map below as one JSON object on one line, in ASCII */
};
static const struct lw_field lw_fields_status[] = {
	{"form", LW_AS_TEXT, false, offsetof(struct lw_status, form)},
};
