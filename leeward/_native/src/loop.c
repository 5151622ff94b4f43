/* The daemon's event loop, below its Python: descriptors, connections, and one turn.
 *
 * Runs in:  the daemon, on the one thread that made the loop.
 * Trust:    bytes of clients and jobs pass through here unread. Only the fast path (fast_path.c) compares
 *           requests and replies with the bytes that it expects.
 *
 * Theory of operation. A descriptor is watched (LW_EVENT_READY while it is ready), accepts, or is a stream: a client's
 * connection, whose bytes come by LW_EVENT_DATA. There are two backends, epoll and io_uring, with the same events. The
 * caller gets all events of a turn at once, those of the fast path first: they report what has been done already, and the
 * handling of the others may depend on it.
 *
 * A descriptor's number is used again as soon as it is closed. So each use has a generation; events of an earlier one are
 * dropped. */

#include "loop_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int grow(struct lw_loop *loop, int fd)
{
	int count = loop->slot_count ? loop->slot_count : 64;
	struct lw_slot *slots;

	if (fd < 0)
		return -EBADF;
	if (fd < loop->slot_count)
		return 0;
	while (count <= fd)
		count *= 2;
	slots = realloc(loop->slots, (size_t)count * sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	memset(slots + loop->slot_count, 0, (size_t)(count - loop->slot_count) * sizeof(*slots));
	loop->slots = slots;
	loop->slot_count = count;
	return 0;
}

struct lw_slot *lw_slot_of(struct lw_loop *loop, int fd, uint32_t generation)
{
	struct lw_slot *slot;

	if (fd < 0 || fd >= loop->slot_count)
		return NULL;
	slot = &loop->slots[fd];
	return slot->kind != LW_FREE && slot->generation == generation ? slot : NULL;
}

static struct lw_slot *used(struct lw_loop *loop, int fd)
{
	if (fd < 0 || fd >= loop->slot_count || loop->slots[fd].kind == LW_FREE)
		return NULL;
	return &loop->slots[fd];
}

struct lw_stream *lw_stream_of(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = used(loop, fd);

	return slot && slot->kind == LW_STREAM ? slot->stream : NULL;
}

void lw_tell(struct lw_loop *loop, uint32_t kind, int fd, int64_t value, const uint8_t *data)
{
	struct lw_event *event = &loop->others[loop->other_count++];

	*event = (struct lw_event){ .kind = kind, .fd = fd, .value = value, .data = data };
}

int lw_reserve(struct lw_bytes *bytes, size_t size)
{
	size_t room = bytes->room ? bytes->room : 2048;
	uint8_t *grown;

	while (room < bytes->size + size)
		room *= 2;
	if (room == bytes->room)
		return 0;
	grown = realloc(bytes->data, room);
	if (!grown)
		return -ENOMEM;
	bytes->data = grown;
	bytes->room = room;
	return 0;
}

void lw_drop(struct lw_bytes *bytes)
{
	free(bytes->data);
	*bytes = (struct lw_bytes){ 0 };
}

void lw_stream_free(struct lw_stream *stream)
{
	lw_drop(&stream->waiting);
	lw_drop(&stream->sending);
	free(stream);
}

/* Fill in a message that sends `data` in one piece, and descriptors, which get into `control`. */
void lw_message(struct msghdr *ret, struct iovec *piece, char *control, const uint8_t *data, size_t size, const int *fds,
		uint32_t fd_count)
{
	*piece = (struct iovec){ .iov_base = (void *)(uintptr_t)data, .iov_len = size };
	*ret = (struct msghdr){ .msg_iov = piece, .msg_iovlen = 1 };
	if (!fd_count)
		return;
	ret->msg_control = control;
	ret->msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
	struct cmsghdr *header = CMSG_FIRSTHDR(ret);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
	memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
}

/* Make a loop. *io* chooses the backend. Returns 0 or -errno; -ENOSYS and -EPERM: io_uring is missing or forbidden. */
int lw_loop_open(uint32_t io, struct lw_loop **ret_loop)
{
	struct lw_loop *loop = calloc(1, sizeof(*loop));
	int failed;

	if (!loop)
		return -ENOMEM;
	loop->way = io == LW_IO_URING ? &lw_uring_way : &lw_epoll_way;
	failed = lw_fast_path_open(loop);
	if (!failed)
		failed = loop->way->open(loop);
	if (failed) {
		lw_fast_path_close(loop);
		free(loop);
		return failed;
	}
	*ret_loop = loop;
	return 0;
}

void lw_loop_close(struct lw_loop *loop)
{
	loop->way->close(loop); /* first: the ring may still read what streams hold */
	for (int fd = 0; fd < loop->slot_count; fd++)
		if (loop->slots[fd].kind == LW_STREAM)
			lw_stream_free(loop->slots[fd].stream);
	lw_fast_path_close(loop);
	free(loop->slots);
	free(loop);
}

int lw_begin(struct lw_loop *loop, int fd, enum lw_kind kind, uint32_t events, struct lw_stream *stream)
{
	int failed = grow(loop, fd);
	struct lw_slot *slot;

	if (failed)
		return failed;
	slot = &loop->slots[fd];
	if (slot->kind != LW_FREE)
		return -EEXIST;
	loop->generation = (loop->generation + 1) & 0xffffff;
	*slot = (struct lw_slot){ .kind = (uint8_t)kind, .events = events, .generation = loop->generation, .stream = stream };
	if (stream)
		stream->generation = loop->generation;
	failed = loop->way->add(loop, fd);
	if (failed)
		slot->kind = LW_FREE;
	return failed;
}

/* Report LW_EVENT_READY whenever `fd` has one of `events` (EPOLL*), a hang-up or an error. Returns 0 or -errno. */
int lw_loop_watch(struct lw_loop *loop, int fd, uint32_t events)
{
	return lw_begin(loop, fd, LW_WATCH, events, NULL);
}

int lw_loop_change(struct lw_loop *loop, int fd, uint32_t events)
{
	struct lw_slot *slot = used(loop, fd);

	if (!slot || slot->kind != LW_WATCH)
		return -ENOENT;
	slot->events = events;
	return loop->way->change(loop, fd);
}

/* Stop serving `fd`, watched, listener or stream. No event of it follows, except LW_EVENT_SENT of a send in progress. */
int lw_loop_forget(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = used(loop, fd);
	struct lw_stream *stream;

	if (!slot)
		return -ENOENT;
	stream = slot->kind == LW_STREAM ? slot->stream : NULL;
	if (stream)
		lw_fast_path_lost(loop, stream);
	loop->way->remove(loop, fd); /* keeps the stream's memory until a send in progress has ended */
	slot->kind = LW_FREE;
	slot->stream = NULL;
	return 0;
}

/* Report LW_EVENT_ACCEPTED for each connection, until one has an error. Returns 0 or -errno. */
int lw_loop_accept(struct lw_loop *loop, int fd)
{
	return lw_begin(loop, fd, LW_ACCEPT, 0, NULL);
}

/* Serve a connection, which is non-blocking. LW_EVENT_SENT has its `number`, since that event may come after the stream was
 * forgotten. `guarded`: the peer may send descriptors, so lw_receive looks before it receives. Returns 0 or -errno. */
int lw_loop_stream(struct lw_loop *loop, int fd, uint64_t number, bool guarded)
{
	struct lw_stream *stream = calloc(1, sizeof(*stream));
	int failed;

	if (!stream)
		return -ENOMEM;
	*stream = (struct lw_stream){ .fd = fd, .number = number, .reading = true, .guarded = guarded,
				      .first_running = LW_NOWHERE, .first_held = LW_NOWHERE };
	failed = lw_begin(loop, fd, LW_STREAM, 0, stream);
	if (failed)
		free(stream);
	return failed;
}

/* Turn reading on or off. Input that was received before may still be reported. Returns 0 or -errno. */
int lw_stream_read(struct lw_loop *loop, int fd, bool on)
{
	struct lw_stream *stream = lw_stream_of(loop, fd);

	if (!stream)
		return -ENOENT;
	if (stream->reading == on)
		return 0;
	stream->reading = on;
	return loop->way->stream_changed(loop, stream);
}

/* Receive at most LW_CHUNK bytes. Returns their number, 0 at the end, or -errno; -EPERM if descriptors come with the next
 * bytes of a guarded stream, which aren't received then: this thread would close them, which can take long
 * (loop/closing.py). */
int64_t lw_receive(const struct lw_stream *stream, uint8_t *chunk)
{
	struct iovec piece = { .iov_base = chunk, .iov_len = LW_CHUNK };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	ssize_t got = LW_CHUNK;

	if (stream->guarded) {
		got = recvmsg(stream->fd, &message, MSG_PEEK | MSG_DONTWAIT);
		if (got <= 0)
			return got < 0 ? -errno : 0;
		if (message.msg_flags & MSG_CTRUNC)
			return -EPERM;
	}
	got = recv(stream->fd, chunk, (size_t)got, MSG_DONTWAIT);
	return got < 0 ? -errno : got;
}

/* Give the fast path the `got` bytes that were received, and tell of the rest. Returns whether there is a rest. */
bool lw_fed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *chunk, size_t got)
{
	size_t taken = lw_fast_path_feed(loop, stream, chunk, got);

	if (taken == got)
		return false;
	stream->fast_path = false;
	lw_tell(loop, LW_EVENT_DATA, stream->fd, (int64_t)(got - taken), chunk + taken);
	return true;
}

/* Turn the fast path on or off for a stream. LW_EVENT_DATA turns it off. Returns 0 or -errno. */
int lw_stream_fast_path(struct lw_loop *loop, int fd, bool on)
{
	struct lw_stream *stream = lw_stream_of(loop, fd);

	if (!stream)
		return -ENOENT;
	stream->fast_path = on;
	return 0;
}

/* Send data. Returns the number of bytes sent, or -errno. -EAGAIN: LW_EVENT_ROOM follows. -EINPROGRESS: LW_EVENT_SENT
 * follows, and until then `data` must not change. */
int64_t lw_stream_send(struct lw_loop *loop, int fd, const uint8_t *data, uint64_t size, const int *fds,
		       uint32_t fd_count)
{
	struct lw_stream *stream = lw_stream_of(loop, fd);

	if (!stream)
		return -ENOENT;
	if (fd_count > LW_MOST_FDS)
		return -E2BIG;
	if (stream->waiting.size || stream->flying) {
		stream->wants_room = true;
		return -EAGAIN;
	}
	return loop->way->send(loop, stream, data, (size_t)size, fds, fd_count);
}

int64_t lw_stream_backlog(struct lw_loop *loop, int fd)
{
	const struct lw_stream *stream = lw_stream_of(loop, fd);

	if (!stream)
		return -ENOENT;
	return (int64_t)(stream->waiting.size + stream->sending.size - stream->sent);
}

int64_t lw_now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* For other threads: record that the loop begins to wait. */
static void waits(struct lw_loop *loop, int64_t until_ns)
{
	atomic_store_explicit(&loop->waits_until, until_ns, memory_order_relaxed);
}

void lw_woke(struct lw_loop *loop)
{
	uint64_t turns = atomic_load_explicit(&loop->turns, memory_order_relaxed);

	atomic_store_explicit(&loop->turns, turns + 1, memory_order_relaxed);
	atomic_store_explicit(&loop->waits_until, 0, memory_order_relaxed);
}

/* How many waits are over, and until when the present wait lasts: INT64_MAX without end, 0 while the loop works. Any thread
 * may call this. The two values may be of different moments. */
void lw_loop_pulse(struct lw_loop *loop, uint64_t *ret_turns, int64_t *ret_waits_until)
{
	*ret_turns = atomic_load_explicit(&loop->turns, memory_order_relaxed);
	*ret_waits_until = atomic_load_explicit(&loop->waits_until, memory_order_relaxed);
}

/* Wait at most `patience_ns` (negative: without end), and serve what is ready; if a short job was started and nothing else
 * is ready, wait on for the moment that such a job takes. Returns the number of events, 0 also after a signal, or -errno. */
int lw_loop_turn(struct lw_loop *loop, int64_t patience_ns, struct lw_event *ret_events)
{
	int64_t ends = patience_ns < 0 ? INT64_MAX : lw_now_ns() + patience_ns;
	int failed;

	loop->urgent_count = loop->other_count = 0;
	loop->pressing = false;
	waits(loop, ends);
	failed = loop->way->turn(loop, patience_ns);
	while (!failed && (patience_ns = lw_fast_path_patience(loop, ends)) > 0) {
		waits(loop, lw_now_ns() + patience_ns);
		failed = loop->way->go_on(loop, patience_ns);
	}
	waits(loop, 0);
	lw_fast_path_tell_refused(loop);
	if (failed < 0 && failed != -EINTR)
		return failed;
	memcpy(ret_events, loop->urgent, loop->urgent_count * sizeof(*ret_events));
	memcpy(ret_events + loop->urgent_count, loop->others, loop->other_count * sizeof(*ret_events));
	return (int)(loop->urgent_count + loop->other_count);
}
