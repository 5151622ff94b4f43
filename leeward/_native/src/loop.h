#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor.h"

/* Events that one turn reports at most, and the size of the array for lw_loop_turn. */
#define LW_LOOP_EVENTS 512

enum {
	LW_IO_EPOLL,
	LW_IO_URING,
};

enum {
	LW_EVENT_READY = 1, /* fd, value: its events */
	LW_EVENT_ACCEPTED,  /* fd: the listener, value: the new socket, the caller's, or -errno and no more come */
	LW_EVENT_DATA,      /* fd, value: bytes at data until the next turn; 0 at the end of the stream; -errno */
	LW_EVENT_ROOM,      /* fd: try again to send */
	LW_EVENT_SENT,      /* fd, number: the stream's, value: bytes or -errno */
	LW_EVENT_STARTED,   /* fd, id, number: the runner's, session, value: bytes that weren't written, data, size: the code,
			       at: when */
	LW_EVENT_DONE,      /* fd, id, number, session, at: when it ended, cpu: seconds, peak: bytes */
	LW_EVENT_HANDED,    /* number, value: bytes at data of its reply so far; or none */
	LW_EVENT_REFUSED,   /* fd, value: requests of this stream that were refused */
	LW_EVENT_TRANSPORT, /* value: -errno of the ring; the loop goes by epoll from now on */
};

struct lw_event {
	uint32_t kind;
	int32_t fd;
	int64_t value;
	uint64_t number;
	uint64_t id;
	uint64_t session;
	const uint8_t *data;
	uint32_t size;
	double at;
	double cpu;
	uint64_t peak;
};

struct lw_piece {
	const uint8_t *data;
	uint32_t size;
};

/* Bytes that never change, in front of each value and at the end, of four messages: the request, the job, the reply and the
 * answer. The first two of them also as they are in a session: the turn, and its job. */
struct lw_templates {
	struct lw_piece request_id, request_code;
	struct lw_piece job_code;
	struct lw_piece turn_id, turn_session, turn_code;
	struct lw_piece job_turn, job_shown;
	struct lw_piece reply;
	struct lw_piece answer_id, answer_duration, answer_cpu, answer_peak, answer_out, answer_err;
};

/* A number in a control file: the whole file, or behind a word at the start of a line. If the word is LW_CLOCK it is a
 * clock, in nanoseconds, and its id is in place of the descriptor. */
#define LW_CLOCK "@clock"
struct lw_gauge {
	int fd;
	char key[16];
};

/* A job where no controller counts; job 0 where one does. Descriptors are of files of /proc: the children of its init, and
 * children, stat and status of its process. fast_path_watch.c has the rest. */
struct lw_watch {
	int job; /* its pid */
	int orphans, children, stat, status;
	uint64_t free_sockets, socket, inode; /* sockets that aren't charged; bytes of each other one, and of a file */
	uint64_t waited; /* clock ticks of its children before the job */
	uint64_t limit, peak; /* bytes of memory */
	int pidfd, files, sockets; /* a pidfd of its init; descriptors of its tmpfs, and of the sockstat of its network namespace */
	uint64_t tasks[2], data[2]; /* RLIMIT_NPROC and RLIMIT_DATA of a fresh job, soft and hard */
	uint64_t memory, time; /* bytes, and nanoseconds of a processor, at the last look */
	/* At the last look at its pages: bytes of these and of their tables; of all resident ones; its page faults before, those
	 * while it was taken, and its time before. */
	uint64_t pages, resident, faults, late, spent;
};

/* The first look at an armed runner's process: the files for later ones, its number, and what watch.ProcessSample has of it. */
struct lw_first {
	int orphans, children, stat, status, job;
	uint64_t init_started, started; /* clock ticks */
	uint64_t gone, spent; /* clock ticks of what its init has reaped, and its own nanoseconds */
	uint64_t resident, tables, shared, faults, late;
};

/* What watch.ProcessSample has of a process with one task. */
struct lw_process {
	int pid, parent; /* `parent`: the place of the process in the tree; -1 for a child of the init, or of the keeper */
	uint64_t started; /* clock ticks */
	uint64_t resident, tables, shared, faults, late;
	uint64_t spent, waited; /* nanoseconds, and clock ticks of children that it has waited for */
	uint64_t mapped, pages; /* as `stat` has them: bytes of addresses, and resident pages */
};

/* The processes of a sandbox at the last look; parents before children. */
#define LW_TREE_MOST 32
struct lw_tree {
	struct lw_process processes[LW_TREE_MOST];
	uint32_t count;
	uint64_t gone; /* clock ticks of what the init has reaped */
};

/* A process of which the look begins. */
struct lw_root {
	int pid;
	uint64_t started;
};

struct lw_offer {
	uint64_t number;
	int job, reply, out, err;
	struct lw_gauge time, peak, oom, forks;
	double time_unit, time_before;
	uint64_t oom_before, forks_before;
	struct lw_supervisor *supervisor;
	uint32_t denials;
	uint64_t denials_before;
	uint64_t session; /* 0, or the session on `stream` for which the runner is reserved */
	int stream;
	bool shows; /* the session's jobs may display things: they get the template `job_shown` */
	bool once; /* the session's runner takes one job, as a fresh one does */
	struct lw_watch watch;
};

struct lw_loop;

int lw_loop_open(uint32_t io, struct lw_loop **ret_loop);
void lw_loop_close(struct lw_loop *loop);
int lw_loop_watch(struct lw_loop *loop, int fd, uint32_t events);
int lw_loop_change(struct lw_loop *loop, int fd, uint32_t events);
int lw_loop_forget(struct lw_loop *loop, int fd);
int lw_loop_accept(struct lw_loop *loop, int fd);
int lw_loop_stream(struct lw_loop *loop, int fd, uint64_t number, bool guarded);
int lw_stream_read(struct lw_loop *loop, int fd, bool on);
int lw_stream_fast_path(struct lw_loop *loop, int fd, bool on);
int64_t lw_stream_send(struct lw_loop *loop, int fd, const uint8_t *data, uint64_t size, const int *fds,
		       uint32_t fd_count);
int64_t lw_stream_backlog(struct lw_loop *loop, int fd);
void lw_loop_pulse(struct lw_loop *loop, uint64_t *ret_turns, int64_t *ret_waits_until);
int lw_loop_turn(struct lw_loop *loop, int64_t patience_ns, struct lw_event *ret_events);

int lw_fast_path_set_templates(struct lw_loop *loop, const struct lw_templates *templates);
void lw_fast_path_linger(struct lw_loop *loop, int64_t after_start_ns, int64_t after_answer_ns);
int lw_fast_path_offer(struct lw_loop *loop, const struct lw_offer *offer);
int lw_fast_path_adopt(struct lw_loop *loop, const struct lw_offer *offer, int fd, uint64_t id, double started);
int lw_fast_path_withdraw(struct lw_loop *loop, uint64_t number);
int lw_fast_path_refusal(struct lw_loop *loop, const uint8_t *before, uint32_t before_size, const uint8_t *behind,
			 uint32_t behind_size);
int lw_stream_shed(struct lw_loop *loop, int fd, bool on);
int lw_watch_look(struct lw_watch *watch, uint64_t charged);
int lw_watch_first(int init, struct lw_first *ret_first);
int lw_watch_tree(struct lw_tree *tree, const struct lw_root *roots, uint32_t count);
