/* The fast path's refusals: of requests on connections that send more than can be served.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    as fast_path_request.c, which has checked that the request is code alone.
 *
 * The owner decides which streams are shed (lw_stream_shed), and the text of the refusal (lw_fast_path_refusal). The
 * next request of such a stream gets a runner if one is on offer, else the refusal. LW_EVENT_REFUSED tells the owner how
 * many requests were refused, once per turn and stream. */

#include "fast_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int keep(struct lw_piece *to, const uint8_t *data, uint32_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	if (!copy)
		return -ENOMEM;
	memcpy(copy, data, size);
	free((void *)(uintptr_t)to->data);
	*to = (struct lw_piece){ .data = copy, .size = size };
	return 0;
}

/* Set the refusal: its bytes `before` and `behind` the request's id. Returns 0, -EINVAL or -ENOMEM. Call it before a
 * stream is shed. */
int lw_fast_path_refusal(struct lw_loop *loop, const uint8_t *before, uint32_t before_size, const uint8_t *behind,
			 uint32_t behind_size)
{
	struct lw_fast_path *path = loop->fast_path;
	int failed;

	if (before_size > LW_MOST_FRAME / 2 || behind_size > LW_MOST_FRAME / 2 - 64)
		return -EINVAL;
	failed = keep(&path->refusal_id, before, before_size);
	return failed ? failed : keep(&path->refusal_end, behind, behind_size);
}

void lw_fast_path_drop_refusal(struct lw_fast_path *path)
{
	free((void *)(uintptr_t)path->refusal_id.data);
	free((void *)(uintptr_t)path->refusal_end.data);
}

/* Turn on or off that the fast path refuses requests of this stream if no runner is on offer. Returns 0 or -errno. */
int lw_stream_shed(struct lw_loop *loop, int fd, bool on)
{
	struct lw_slot *slot = fd >= 0 && fd < loop->slot_count ? &loop->slots[fd] : NULL;

	if (!slot || LW_STREAM != slot->kind)
		return -ENOENT;
	if (on && !loop->fast_path->refusal_end.data)
		return -EINVAL;
	slot->stream->shed = on;
	return 0;
}

/* Refuse request `id`. False if the owner has to decide instead. */
bool lw_fast_path_refuse(struct lw_loop *loop, struct lw_stream *stream, uint64_t id)
{
	struct lw_fast_path *path = loop->fast_path;
	struct lw_bytes *to = &stream->waiting;
	size_t head = to->size;

	if (!stream->shed || LW_TURN == path->refused || !lw_may_answer(stream) || lw_reserve(to, LW_MOST_FRAME))
		return false;
	to->size += 4;
	memcpy(to->data + to->size, path->refusal_id.data, path->refusal_id.size);
	to->size += path->refusal_id.size;
	to->size += lw_put_whole(to->data + to->size, id);
	memcpy(to->data + to->size, path->refusal_end.data, path->refusal_end.size);
	to->size += path->refusal_end.size;
	lw_put_number(to->data + head, 4, to->size - head - 4);
	if (!stream->refused++)
		path->refusing[path->refusing_count++] = stream->fd;
	path->refused++;
	return true;
}

/* At the end of the turn: report the streams with refused requests. */
void lw_fast_path_tell_refused(struct lw_loop *loop)
{
	struct lw_fast_path *path = loop->fast_path;

	for (uint32_t at = 0; at < path->refusing_count; at++) {
		struct lw_stream *stream = loop->slots[path->refusing[at]].stream;

		lw_tell(loop, LW_EVENT_REFUSED, stream->fd, stream->refused, NULL);
		stream->refused = 0;
	}
	path->refusing_count = path->refused = 0;
}
