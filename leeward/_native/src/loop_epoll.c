/* The loop's backend over epoll: the kernel reports readiness, then each piece of work takes a system call.
 *
 * Runs in:  the daemon. Any Linux.
 *
 * Level-triggered throughout: what one turn leaves is reported again in the next. */

#include "loop_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

/* Connections accepted in a turn. Each takes a descriptor before Python decides whether there is room for it. */
#define LW_ACCEPTS 4

struct way {
	int epoll;
	uint8_t *chunks; /* LW_CHUNKS of LW_CHUNK bytes, which LW_EVENT_DATA points into */
	uint32_t chunks_used;
};

static uint64_t tag_of(const struct lw_slot *slot, int fd)
{
	return (uint64_t)slot->generation << 32 | (uint32_t)fd;
}

static int control(struct lw_loop *loop, int operation, int fd, uint32_t events)
{
	const struct way *way = loop->kernel;
	struct epoll_event event = { .events = events, .data.u64 = tag_of(&loop->slots[fd], fd) };

	return epoll_ctl(way->epoll, operation, fd, &event) ? -errno : 0;
}

static int open_way(struct lw_loop *loop)
{
	struct way *way = calloc(1, sizeof(*way));

	if (!way)
		return -ENOMEM;
	way->epoll = epoll_create1(EPOLL_CLOEXEC);
	/* Pages are allocated only when a receive fills them. */
	way->chunks = mmap(NULL, (size_t)LW_CHUNKS * LW_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);
	if (way->epoll < 0 || way->chunks == MAP_FAILED) {
		int error = errno;

		if (way->epoll >= 0)
			close(way->epoll);
		free(way);
		return -error;
	}
	loop->kernel = way;
	return 0;
}

static void close_way(struct lw_loop *loop)
{
	struct way *way = loop->kernel;

	close(way->epoll);
	munmap(way->chunks, (size_t)LW_CHUNKS * LW_CHUNK);
	free(way);
}

static uint32_t wanted(const struct lw_stream *stream)
{
	uint32_t in = stream->reading ? EPOLLIN : 0;

	return stream->waiting.size || stream->wants_room ? in | EPOLLOUT : in;
}

static int add(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = &loop->slots[fd];

	if (slot->kind != LW_STREAM)
		return control(loop, EPOLL_CTL_ADD, fd, slot->kind == LW_WATCH ? slot->events : EPOLLIN);
	slot->stream->events = wanted(slot->stream);
	return control(loop, EPOLL_CTL_ADD, fd, slot->stream->events);
}

static int change(struct lw_loop *loop, int fd)
{
	return control(loop, EPOLL_CTL_MOD, fd, loop->slots[fd].events);
}

static void take_away(struct lw_loop *loop, int fd)
{
	struct lw_slot *slot = &loop->slots[fd];

	control(loop, EPOLL_CTL_DEL, fd, 0);
	if (slot->kind == LW_STREAM)
		lw_stream_free(slot->stream);
}

static int stream_changed(struct lw_loop *loop, struct lw_stream *stream)
{
	uint32_t events = wanted(stream);

	if (events == stream->events)
		return 0;
	stream->events = events;
	return control(loop, EPOLL_CTL_MOD, stream->fd, events);
}

static int64_t send_now(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size,
			const int *fds, uint32_t fd_count)
{
	_Alignas(struct cmsghdr) char beside[CMSG_SPACE(LW_MOST_FDS * sizeof(int))] = { 0 };
	struct iovec piece;
	struct msghdr message;
	ssize_t sent;

	lw_message(&message, &piece, beside, data, size, fds, fd_count);
	sent = sendmsg(stream->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (sent < 0 && errno == EAGAIN) {
		stream->wants_room = true;
		stream_changed(loop, stream);
		return -EAGAIN;
	}
	if (sent >= 0)
		stream->halfway = (size_t)sent < size;
	return sent < 0 ? -errno : sent;
}

static void flush(struct lw_loop *loop, struct lw_stream *stream)
{
	ssize_t sent = 0;

	while (stream->sent < stream->waiting.size) {
		sent = send(stream->fd, stream->waiting.data + stream->sent, stream->waiting.size - stream->sent,
			    MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent < 0)
			break;
		stream->sent += (size_t)sent;
	}
	/* After an error the rest is dropped; receiving will report the broken connection. */
	if (stream->sent == stream->waiting.size || (sent < 0 && errno != EAGAIN && errno != EINTR)) {
		stream->sent = stream->waiting.size = 0;
		if (stream->waiting.room > LW_CHUNK)
			lw_drop(&stream->waiting);
	}
	stream_changed(loop, stream);
}

static void receive(struct lw_loop *loop, struct lw_stream *stream)
{
	struct way *way = loop->kernel;
	uint8_t *chunk = way->chunks + (size_t)way->chunks_used * LW_CHUNK;
	int64_t got;

	if (way->chunks_used == LW_CHUNKS)
		return; /* the next turn reports them again */
	got = lw_receive(stream, chunk);
	if (got <= 0) {
		if (got != -EAGAIN && got != -EINTR)
			lw_tell(loop, LW_EVENT_DATA, stream->fd, got, NULL);
		return;
	}
	lw_fed(loop, stream, chunk, (size_t)got);
	way->chunks_used++; /* LW_EVENT_DATA or LW_EVENT_STARTED points into it */
	loop->pressing |= way->chunks_used == LW_CHUNKS; /* nothing can be received until the turn is over */
}

static void serve_stream(struct lw_loop *loop, struct lw_stream *stream, uint32_t events)
{
	if (events & EPOLLOUT) {
		if (stream->waiting.size)
			flush(loop, stream);
		if (stream->wants_room && !stream->waiting.size) {
			stream->wants_room = false;
			stream_changed(loop, stream);
			lw_tell(loop, LW_EVENT_ROOM, stream->fd, 0, NULL);
		}
	}
	if (events & ~(uint32_t)EPOLLOUT) {
		if (stream->reading)
			receive(loop, stream);
		else if (events & ~(uint32_t)(EPOLLIN | EPOLLOUT))
			lw_tell(loop, LW_EVENT_DATA, stream->fd, -EPIPE, NULL); /* the peer hung up */
	}
}

static void accept_some(struct lw_loop *loop, int fd, uint32_t *count)
{
	while (*count < LW_ACCEPTS) {
		int sock = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (sock < 0 && errno == ECONNABORTED)
			continue;
		if (sock < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		lw_tell(loop, LW_EVENT_ACCEPTED, fd, sock < 0 ? -errno : sock, NULL);
		if (sock < 0) { /* Python calls lw_loop_accept again later */
			control(loop, EPOLL_CTL_DEL, fd, 0);
			loop->slots[fd].kind = LW_FREE;
			return;
		}
		++*count;
	}
}

static int go_on(struct lw_loop *loop, int64_t patience_ns)
{
	struct way *way = loop->kernel;
	struct epoll_event ready[LW_TURN];
	/* Rounded up: a wait that ends early would be followed by a second one. */
	int64_t milliseconds = patience_ns < 0 ? -1 : (patience_ns + 999999) / 1000000;
	int count = epoll_wait(way->epoll, ready, LW_TURN, milliseconds > 3600000 ? 3600000 : (int)milliseconds);
	uint32_t accepted = 0;

	lw_woke(loop);
	if (count < 0)
		return -errno;
	for (int at = 0; at < count; at++) {
		int fd = (int)(uint32_t)ready[at].data.u64;
		struct lw_slot *slot = lw_slot_of(loop, fd, (uint32_t)(ready[at].data.u64 >> 32));

		if (!slot)
			continue;
		if (slot->kind == LW_WATCH)
			lw_tell(loop, LW_EVENT_READY, fd, ready[at].events, NULL);
		else if (slot->kind == LW_REPLY)
			lw_fast_path_replied(loop, slot->entry);
		else if (slot->kind == LW_ACCEPT)
			accept_some(loop, fd, &accepted);
		else
			serve_stream(loop, slot->stream, ready[at].events);
	}
	return 0;
}

static int turn(struct lw_loop *loop, int64_t patience_ns)
{
	struct way *way = loop->kernel;

	way->chunks_used = 0;
	return go_on(loop, patience_ns);
}

const struct lw_way_to_kernel lw_epoll_way = {
	.open = open_way,
	.close = close_way,
	.add = add,
	.change = change,
	.remove = take_away,
	.stream_changed = stream_changed,
	.send = send_now,
	.flush = flush,
	.turn = turn,
	.go_on = go_on,
};
