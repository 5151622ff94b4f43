/* What the files of the fast path share: fast_path.c, whose head says how it works, and fast_path_job.c. */
#pragma once

#include "loop_private.h"

/* Bytes of stdout and stderr together that take the fast path. */
#define LW_MOST_OUTPUT (32u << 10)
/* Bytes of the reply of a job without details, and of an answer without its output, at most. */
#define LW_MOST_REPLY 64
#define LW_MOST_FRAME 1024

enum lw_entry_state {
	LW_VACANT,
	LW_OFFERED, /* waits for a request of any stream */
	LW_HELD,    /* waits for a request of its session */
	LW_RUNNING, /* has a request, whose answer is waited for */
};

/* The chains that an entry may be in, by its runner's number, and by its session's number and its stream. */
enum lw_chain { LW_BY_NUMBER, LW_BY_SESSION, LW_CHAINS };

/* One runner of the fast path. An entry in use is in the chain of its number. If it is held or running, it is also
 * in its stream's list of such entries, and, for a session, in the chain of its session. A vacant entry is only in
 * the list of vacant ones. A connection may hold thousands of entries, so no request searches the list of held ones. */
struct lw_entry {
	enum lw_entry_state state;
	uint32_t next_in[LW_CHAINS], next_of_stream, previous_of_stream, next_vacant;
	struct lw_offer offer;
	uint32_t room; /* the capacity of its job pipe, in bytes */
	int stream; /* the client's stream; for a session also while the entry is held */
	uint32_t stream_generation;
	uint64_t id; /* of the request */
	double started; /* when the request was written; seconds of CLOCK_MONOTONIC, as lw_event has them */
};

struct lw_fast_path {
	bool ready; /* the templates are set */
	struct lw_templates templates;
	int64_t after_start_ns, after_answer_ns; /* how long a turn goes on after a start and an answer */
	struct lw_entry *entries;
	/* Three tables of `count` indexes of entries, in one piece of memory. */
	uint32_t *offered; /* the entries that are LW_OFFERED; the last one is taken first */
	uint32_t *chains[LW_CHAINS]; /* the first entry of each chain */
	uint32_t vacant; /* the first vacant entry */
	uint32_t count, offered_count, held_count;
	struct lw_piece refusal_id, refusal_end; /* the refusal before and behind the id; empty until Python sets it */
	int refusing[LW_TURN]; /* streams with refused requests in this turn */
	uint32_t refusing_count, refused; /* the number of these streams, and of refused requests */
	uint8_t replies[LW_TURN][LW_MOST_REPLY]; /* what LW_EVENT_HANDED points to, until the turn is over */
	uint32_t handed;
	uint8_t output[LW_MOST_OUTPUT]; /* a job's output on its way from the pipe to the answer */
};

int lw_watch_begin(const struct lw_watch *watch);
void lw_entry_run(struct lw_fast_path *path, struct lw_entry *entry, struct lw_stream *stream, uint64_t id,
		  double started);
void lw_entry_hold(struct lw_fast_path *path, struct lw_entry *entry, struct lw_stream *stream);
struct lw_entry *lw_entry_held(const struct lw_fast_path *path, const struct lw_stream *stream, uint64_t session);
void lw_entry_vacate(struct lw_loop *loop, struct lw_entry *entry);
void lw_tell_first(struct lw_loop *loop, const struct lw_event *event);
size_t lw_pipe_bytes(int pipe);
size_t lw_put_whole(uint8_t *to, uint64_t value);
size_t lw_put_number(uint8_t *to, unsigned width, uint64_t value);
double lw_now_s(void);
int lw_keep_piece(struct lw_piece *to, const uint8_t *data, uint32_t size);
