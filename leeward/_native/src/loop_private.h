/* What the files of the loop share: loop.c (descriptors, streams, events), its two backends (loop_epoll.c, loop_uring.c),
 * and the fast path of short jobs (fast_path.c). "Python" is the daemon's, which has made the loop. */
#pragma once

#include "loop.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Bytes of one receive, and how many such chunks one turn reports. */
#define LW_CHUNK (1u << 16)
#define LW_CHUNKS 16u
/* Descriptors beside one frame. */
#define LW_MOST_FDS 4
/* Descriptors that one wait serves, connections that it accepts, and jobs that a turn starts, at most. With at most two
 * events per descriptor, and one for each of LW_TURN streams with refused requests, a turn stays below LW_LOOP_EVENTS. A
 * turn waits again only while it has few events to report. */
#define LW_TURN 64
#define LW_TURN_JOBS 128

/* The index of no runner of the fast path; it ends their lists. */
#define LW_NOWHERE UINT32_MAX

enum lw_kind { LW_FREE, LW_WATCH, LW_ACCEPT, LW_STREAM, LW_REPLY };

struct lw_bytes {
	uint8_t *data;
	size_t size, room;
};

struct lw_stream {
	int fd;
	uint32_t generation;
	uint64_t number;
	bool reading;	 /* Python wants input */
	bool fast_path;	 /* requests may take the fast path: Python has none of this stream to serve first */
	bool wants_room; /* Python waits for LW_EVENT_ROOM */
	bool receiving;	 /* ring: a receive is in the ring */
	bool minding;	 /* ring: a poll for the peer's hang-up is in the ring */
	bool flying;	 /* ring: a send is in the ring */
	bool from_python; /* ring: that send has a frame of Python's, not answers of the fast path */
	bool shed;	 /* the fast path refuses requests for which no runner is on offer */
	bool guarded;	 /* the peer may send descriptors: see lw_receive */
	bool halfway;	 /* a frame of Python's was sent in part: its rest must come next */
	uint32_t events; /* epoll: the events that are waited for */
	uint32_t refused; /* requests refused in this turn */
	uint32_t first_running, first_held; /* of its runners on the fast path: fast_path.h */
	struct lw_bytes waiting; /* answers of the fast path that aren't sent yet */
	struct lw_bytes sending; /* ring: answers in the present send */
	size_t sent;
	struct msghdr message; /* ring: these three stay as they are while a send is in it */
	struct iovec piece;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(LW_MOST_FDS * sizeof(int))];
	struct lw_stream *next_dead;
};

struct lw_slot {
	uint32_t generation; /* distinguishes the present use of a descriptor number from earlier ones */
	uint8_t kind;
	bool armed; /* ring: an operation for it is in the ring */
	uint32_t events;
	uint32_t entry;
	uint64_t asked; /* ring: the value of `enters` when an operation was last requested */
	struct lw_stream *stream;
};

struct lw_way_to_kernel {
	int (*open)(struct lw_loop *loop);
	void (*close)(struct lw_loop *loop);
	int (*add)(struct lw_loop *loop, int fd);
	int (*change)(struct lw_loop *loop, int fd);
	void (*remove)(struct lw_loop *loop, int fd);
	int (*stream_changed)(struct lw_loop *loop, struct lw_stream *stream);
	int64_t (*send)(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size,
			const int *fds, uint32_t fd_count);
	void (*flush)(struct lw_loop *loop, struct lw_stream *stream);
	int (*turn)(struct lw_loop *loop, int64_t patience_ns);
	int (*go_on)(struct lw_loop *loop, int64_t patience_ns); /* wait again in the same turn; reported data stays valid */
};

struct lw_fast_path;

struct lw_loop {
	const struct lw_way_to_kernel *way;
	void *kernel; /* the backend's own data */
	struct lw_slot *slots;
	int slot_count;
	uint32_t generation;
	struct lw_event urgent[LW_TURN_JOBS + LW_TURN], others[LW_LOOP_EVENTS - LW_TURN_JOBS - LW_TURN];
	uint32_t urgent_count, other_count;
	bool pressing; /* the turn must end, because it has an event that Python must get at once */
	_Atomic uint64_t turns;	     /* finished waits */
	_Atomic int64_t waits_until; /* CLOCK_MONOTONIC nanoseconds; INT64_MAX: without end; 0: it works */
	struct lw_fast_path *fast_path;
};

extern const struct lw_way_to_kernel lw_epoll_way, lw_uring_way;

struct lw_slot *lw_slot_of(struct lw_loop *loop, int fd, uint32_t generation);
struct lw_stream *lw_stream_of(struct lw_loop *loop, int fd);
int lw_begin(struct lw_loop *loop, int fd, enum lw_kind kind, uint32_t events, struct lw_stream *stream);
void lw_tell(struct lw_loop *loop, uint32_t kind, int fd, int64_t value, const uint8_t *data);
int lw_reserve(struct lw_bytes *bytes, size_t size);
void lw_drop(struct lw_bytes *bytes);
void lw_stream_free(struct lw_stream *stream);
void lw_message(struct msghdr *ret, struct iovec *piece, char *control, const uint8_t *data, size_t size, const int *fds,
		uint32_t fd_count);

void lw_woke(struct lw_loop *loop);
bool lw_fed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *chunk, size_t got);
int64_t lw_receive(const struct lw_stream *stream, uint8_t *chunk);

int lw_fast_path_open(struct lw_loop *loop);
void lw_fast_path_close(struct lw_loop *loop);
size_t lw_fast_path_feed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size);
void lw_fast_path_replied(struct lw_loop *loop, uint32_t entry);
int64_t lw_fast_path_patience(const struct lw_loop *loop, int64_t turn_ends_ns);
int64_t lw_now_ns(void);
void lw_fast_path_tell_refused(struct lw_loop *loop);
void lw_fast_path_lost(struct lw_loop *loop, const struct lw_stream *stream);
