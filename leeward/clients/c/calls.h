/* A handle, and the list of its calls, each a request that was sent and perhaps answered.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     lw_calls_* never. lw_send until the socket takes a request, at most LW_PATIENCE_S without progress; lw_await
 *            as long as the caller says: after LW_PATIENCE_S without a byte a ping is sent, and after as long again the
 *            call fails. Small requests within a wait are sent at once; if there is no room for one the connection is closed.
 *
 * Theory of operation: a handle has one connection and a list of calls. A request is sent completely before the next
 * one. Answers carry the request's id and may come in any order; they stay in the list until the
 * caller waits for them. Answers are read also while a request is being sent, because a daemon whose replies
 * aren't read stops reading requests. Before the first large request an arena is asked for; a slot of it is free again
 * when its request is answered. When a connection breaks, every call ends with the error, and the next call makes a new
 * connection. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "connection.h"
#include "reply.h"
#include "wire.h"

enum lw_op { LW_JOB, LW_RUN, LW_PING, LW_STATUS, LW_CANCEL, LW_ARENA, LW_ASK, LW_DOCK, LW_OUTPUT };

struct lw_call {
	int64_t id;
	enum lw_op op;
	bool done;
	bool abandoned; /* its answer is dropped when it comes */
	uint64_t rank;	/* when done: its place in the order of this handle's answers */
	int slot;	/* the arena's slot with its request; -1: none */
	int code;	/* when done: LEEWARD_OK or what went wrong */
	bool may_have_run; /* when done, and something went wrong */
	double retry_after; /* likewise; seconds, or less than 0 */
	char *text;	/* an error's message, or the daemon's status */
	leeward_result *result;
	int socket;	/* for LW_DOCK: the descriptor that came with the answer; -1: none */
	uint8_t *block;	/* for LW_ASK and LW_DOCK: the frame that `reply` points into */
	struct lw_reply reply;
};

/* Ctrl-C, counted by the program's signal handler. lw_await passes it on to the job that it waits for. */
struct lw_presses {
	volatile sig_atomic_t count;
	volatile sig_atomic_t wanted; /* lw_await waits for a job */
	int handed_on;
};

/* Seconds until a job's output is asked for, and until it is asked for again while the job waits for a worker. */
#define LW_LIVE_S 0.05

/* For a program that shows a job's output while the job runs: lw_await asks for it beside the job's own answer. */
struct lw_live {
	/* Called with the new output of both streams. Returns 0, or -errno, which ends the connection. */
	int (*show)(struct lw_live *live, const struct lw_bytes streams[2]);
	void *context;	   /* of show */
	uint64_t taken[2]; /* bytes of each stream that have been shown */
	int64_t of;	   /* the id of the job's request; 0: none yet */
	double next;	   /* when to ask again */
	bool asked, over;  /* a request for output is unanswered; no more output comes */
	int failed;	   /* -errno of show */
};

struct leeward_handle {
	struct lw_connection connection;
	struct lw_live *live;	      /* NULL: output isn't shown while a job runs */
	struct lw_presses *presses; /* NULL: none; the library itself touches no signal */
	struct lw_buffer out;
	struct lw_call *calls;
	size_t count, capacity;
	int64_t last_id;
	uint64_t answered;
	char *status; /* the last one, as JSON */
};

/* How a job is to end. */
enum lw_end {
	LW_TAKE_BACK, /* its answer is the refusal "cancelled" */
	LW_INTERRUPT, /* by KeyboardInterrupt; its answer is its result */
	LW_KILL,
};

struct lw_call *lw_calls_find(leeward_handle *handle, int64_t id);
struct lw_call *lw_calls_first_done(leeward_handle *handle);
size_t lw_calls_waiting_jobs(const leeward_handle *handle);
int lw_calls_reserve(leeward_handle *handle);
void lw_calls_add(leeward_handle *handle, enum lw_op op, int slot, bool abandoned);
void lw_calls_complete(leeward_handle *handle, struct lw_call *call, int code);
void lw_calls_forget(leeward_handle *handle, struct lw_call *call);
leeward_result *lw_calls_take(leeward_handle *handle, struct lw_call *call);
int lw_calls_lose(leeward_handle *handle, int code);
void lw_calls_part(leeward_handle *handle);

int lw_send_written(leeward_handle *handle, enum lw_op op, double until);
int lw_send(leeward_handle *handle, enum lw_op op, const struct lw_request *request, double until);
int lw_send_cancel(leeward_handle *handle, int64_t id, enum lw_end how);
struct lw_call *lw_await(leeward_handle *handle, int64_t id, double until);
struct lw_call *lw_await_last(leeward_handle *handle, double until);
