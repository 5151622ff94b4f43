/* The fast path's first half: from a client's bytes to a runner's job pipe. fast_path.c explains the whole.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    none in a client's bytes. They are compared with those of the templates; between them are a request's id, a
 *           session's number and the length of the code, and each is checked against its bounds. */

#include "fast_path.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

/* Bytes of code that take the fast path. */
#define MOST_CODE (32u << 10)
/* The largest id of a request; leeward/wire/fields.py. */
#define MOST_ID ((UINT64_C(1) << 53) - 1)

struct request {
	uint64_t id, session;
	const uint8_t *code;
	uint32_t size;
};

/* Step over `piece`, if it comes next. */
static bool begins(const uint8_t **at, const uint8_t *end, const struct lw_piece *piece)
{
	if ((size_t)(end - *at) < piece->size || memcmp(*at, piece->data, piece->size))
		return false;
	*at += piece->size;
	return true;
}

/* Read `width` bytes, big-endian. */
static bool number(const uint8_t **at, const uint8_t *end, unsigned width, uint64_t *ret)
{
	if (end - *at < (ptrdiff_t)width)
		return false;
	for (*ret = 0; width; width--)
		*ret = *ret << 8 | *(*at)++;
	return true;
}

/* Read one of MessagePack's whole numbers from 0 up. */
static bool whole(const uint8_t **at, const uint8_t *end, uint64_t *ret)
{
	uint64_t first;

	if (!number(at, end, 1, &first))
		return false;
	*ret = first;
	return first < 0x80 || (first >= 0xcc && first <= 0xcf && number(at, end, 1u << (first - 0xcc), ret));
}

/* Whether this payload is what our own client sends for code and nothing else, in a session or not. */
static bool is_for_fast_path(const struct lw_templates *templates, const uint8_t *at, const uint8_t *end,
			     struct request *ret)
{
	bool turn = begins(&at, end, &templates->turn_id); /* of a session */
	uint64_t kind, size;

	ret->session = 0;
	if (!turn && !begins(&at, end, &templates->request_id))
		return false;
	if (!whole(&at, end, &ret->id) || !ret->id || ret->id > MOST_ID)
		return false;
	if (turn && (!begins(&at, end, &templates->turn_session) || !whole(&at, end, &ret->session) || !ret->session))
		return false;
	if (!begins(&at, end, turn ? &templates->turn_code : &templates->request_code))
		return false;
	if (!number(&at, end, 1, &kind) || kind < 0xc4 || kind > 0xc6) /* binary, its length in 1, 2 or 4 bytes */
		return false;
	if (!number(&at, end, 1u << (kind - 0xc4), &size) || size > MOST_CODE || size != (uint64_t)(end - at))
		return false;
	ret->code = at;
	ret->size = (uint32_t)size;
	return true;
}

/* Whether a request of this stream with this id is unanswered, or was answered in this turn. If so, the owner has to
 * decide about a second one. */
static bool in_flight(const struct lw_loop *loop, const struct lw_stream *stream, uint64_t id)
{
	const struct lw_fast_path *path = loop->fast_path;

	for (uint32_t at = 0; at < loop->urgent_count; at++) {
		const struct lw_event *event = &loop->urgent[at];

		if (LW_EVENT_DONE == event->kind && event->fd == stream->fd && event->id == id)
			return true;
	}
	for (uint32_t at = stream->first_running; LW_NOWHERE != at; at = path->entries[at].next_of_stream)
		if (path->entries[at].id == id)
			return true;
	return false;
}

/* Write the job's frame, of *ret_size bytes, to the runner's pipe. Returns how many bytes the pipe took, nearly always
 * all of them; or -errno, and no job has begun. -EMSGSIZE: the pipe can't take the frame at once. */
static ssize_t write_job(const struct lw_templates *templates, const struct lw_entry *entry,
			 const struct request *request, size_t *ret_size)
{
	const struct lw_piece *turn = entry->offer.shows ? &templates->job_shown : &templates->job_turn;
	const struct lw_piece *first = request->session ? turn : &templates->job_code;
	uint8_t head[4];
	size_t payload = first->size + request->size;
	struct iovec pieces[] = {
		{ head, sizeof(head) },
		{ (void *)(uintptr_t)first->data, first->size },
		{ (void *)(uintptr_t)request->code, request->size },
	};
	ssize_t written;

	*ret_size = sizeof(head) + payload;
	if (*ret_size > entry->room)
		return -EMSGSIZE;
	lw_put_number(head, sizeof(head), payload);
	written = writev(entry->offer.job, pieces, sizeof(pieces) / sizeof(*pieces));
	return written < 0 ? -errno : written;
}

/* The runner that is next for this request; NULL if there is none. */
static struct lw_entry *next(const struct lw_fast_path *path, const struct lw_stream *stream,
			     const struct request *request)
{
	if (request->session)
		return lw_entry_held(path, stream, request->session);
	return path->offered_count ? &path->entries[path->offered[path->offered_count - 1]] : NULL;
}

/* Give the request to a runner that is offered; false if there is none that takes it. */
static bool start(struct lw_loop *loop, struct lw_stream *stream, const struct request *request)
{
	struct lw_fast_path *path = loop->fast_path;
	struct lw_entry *entry;

	while ((entry = next(path, stream, request))) {
		double started = lw_now_s();
		size_t size;
		ssize_t written;

		/* A session's process that writes a reply while it has no job breaks the protocol. The owner reads it. */
		if (request->session && lw_pipe_bytes(entry->offer.reply)) {
			lw_entry_vacate(loop, entry);
			return false;
		}
		written = write_job(&path->templates, entry, request, &size);
		if (-EMSGSIZE == written)
			return false;
		if (written <= 0) { /* the runner has died, which its keeper reports to the owner */
			lw_entry_vacate(loop, entry);
			continue;
		}
		lw_tell_first(loop, &(struct lw_event){ .kind = LW_EVENT_STARTED, .fd = stream->fd, .id = request->id,
							.number = entry->offer.number, .session = request->session,
							.data = request->code, .size = request->size,
							.value = (int64_t)size - written, .at = started });
		loop->pressing |= written < (ssize_t)size;
		path->offered_count -= !request->session;
		lw_entry_run(path, entry, stream, request->id, started);
		return true;
	}
	return false;
}

/* Start or refuse the requests at the beginning of a client's bytes, up to the first that is incomplete or doesn't fit the
 * fast path. Returns the number of bytes of those requests. The bytes must stay until the turn is over, because LW_EVENT_STARTED
 * points into them. */
size_t lw_fast_path_feed(struct lw_loop *loop, struct lw_stream *stream, const uint8_t *data, size_t size)
{
	struct lw_fast_path *path = loop->fast_path;
	size_t taken = 0;
	bool refused = false;

	while (stream->fast_path && (path->offered_count || path->held_count || stream->shed) &&
	       (!stream->waiting.size || refused) && size - taken >= 4 && loop->urgent_count < LW_TURN_JOBS) {
		const uint8_t *frame = data + taken;
		size_t length = (size_t)frame[0] << 24 | (size_t)frame[1] << 16 | (size_t)frame[2] << 8 | frame[3];
		struct request request;

		if (size - taken - 4 < length || !is_for_fast_path(&path->templates, frame + 4, frame + 4 + length, &request) ||
		    in_flight(loop, stream, request.id))
			break;
		if (!start(loop, stream, &request)) {
			if (request.session || path->offered_count || !lw_fast_path_refuse(loop, stream, request.id))
				break;
			refused = true;
		}
		taken += 4 + length;
	}
	if (refused)
		loop->way->flush(loop, stream);
	return taken;
}

