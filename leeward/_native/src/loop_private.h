/* What the files of the loop share: loop.c (descriptors, streams, events), its two
 * ways to the kernel (loop_epoll.c, loop_uring.c), and express.c. */

#ifndef LW_LOOP_PRIVATE_H
#define LW_LOOP_PRIVATE_H

#include "loop.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Bytes of one receive; and how many such are told in one turn. */
#define LW_CHUNK (1u << 16)
#define LW_CHUNKS 16u
/* Descriptors beside one frame. */
#define LW_MOST_FDS 4
/* Descriptors served at once in a turn, connections accepted, and jobs started: with two events at most of a
 * descriptor this is below LW_LOOP_EVENTS. A turn goes on only while it has next to nothing to tell. */
#define LW_TURN 64
#define LW_TURN_JOBS 128

enum lw_kind { LW_FREE, LW_WATCH, LW_ACCEPT, LW_STREAM, LW_REPLY };

struct lw_bytes {
	uint8_t *data;
	size_t size, room;
};

struct lw_stream {
	int fd;
	uint32_t generation;
	uint64_t number;
	bool reading;	 /* the owner wants input */
	bool plain;	 /* nothing of it waits with the owner: a whole request may go the short way */
	bool wants_room; /* the owner waits for LW_EVENT_ROOM */
	bool receiving;	 /* ring: a receive is in it */
	bool minding;	 /* ring: a poll for the peer's going is in it */
	bool owners;	 /* ring: what flies is the owner's, not ours */
	bool flying;	 /* ring: a send is in it */
	bool halfway;	 /* the owner's last bytes were taken in part: the rest must come next */
	uint32_t events; /* epoll: what is waited for */
	struct lw_bytes waiting; /* answers of ours that the kernel hasn't taken */
	struct lw_bytes sending; /* ring: what flies of them */
	size_t sent;
	struct msghdr message; /* ring: these three stand for as long as a send flies */
	struct iovec piece;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(LW_MOST_FDS * sizeof(int))];
	struct lw_stream *next_dead;
};

struct lw_slot {
	uint32_t generation; /* tells the present user of a number from those before */
	uint8_t kind;
	bool armed; /* ring: an operation for it is in the ring */
	uint32_t events;
	uint32_t entry;
	uint64_t asked; /* ring: the enter before which something was last asked of it */
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
	int (*go_on)(struct lw_loop *loop, int64_t patience_ns); /* in the same turn: what was told stays as it is */
};

struct lw_express;

struct lw_loop {
	const struct lw_way_to_kernel *way;
	void *kernel; /* the way's own */
	struct lw_slot *slots;
	int slot_count;
	uint32_t generation;
	struct lw_event urgent[LW_TURN_JOBS + LW_TURN], others[LW_LOOP_EVENTS - LW_TURN_JOBS - LW_TURN];
	uint32_t urgent_count, other_count;
	bool pressing; /* of what this turn has to tell, the owner must hear at once */
	struct lw_express *express;
};

extern const struct lw_way_to_kernel lw_epoll_way, lw_uring_way;

struct lw_slot *lw_slot_of(struct lw_loop *loop, int fd, uint32_t generation);
int lw_begin(struct lw_loop *loop, int fd, enum lw_kind kind, uint32_t events);
void lw_tell(struct lw_loop *loop, uint32_t kind, int fd, int64_t value, const uint8_t *data);
int lw_reserve(struct lw_bytes *bytes, size_t size);
void lw_drop(struct lw_bytes *bytes);
void lw_stream_free(struct lw_stream *stream);
size_t lw_control(char *ret_control, const int *fds, uint32_t fd_count);

int lw_express_open(struct lw_loop *loop);
void lw_express_close(struct lw_loop *loop);
size_t lw_express_feed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size);
void lw_express_replied(struct lw_loop *loop, uint32_t entry);
int64_t lw_express_patience(const struct lw_loop *loop, int64_t turn_ends_ns);
int64_t lw_now_ns(void);
void lw_express_lost(struct lw_loop *loop, const struct lw_stream *stream);

#endif
