/* The fast path: a short job's request goes to its runner, and the answer back to its client, without Python.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    nothing is parsed. A request takes the fast path if its bytes are those that our own client sends for code
 *           and nothing else; a reply, if its bytes are those of a job without details. Every other request and reply
 *           is passed to Python, which reads, checks and decides as if this file didn't exist.
 *
 * Theory of operation. The daemon's Python code has made the loop. It offers armed runners, one of each
 * free worker, with everything that an answer needs: pipes, open control files, and the values that these had before.
 * fast_path_job.c writes the code of the next request that fits to an offered runner's job pipe, and waits for the reply.
 * If it is the expected one, and no counter shows a refused call or a limit, it sends the answer, and
 * reports the job to Python by LW_EVENT_STARTED and LW_EVENT_DONE. Otherwise (an exception, much output, a limit)
 * Python gets the job by LW_EVENT_HANDED, and goes on with it. Requests that get no runner, of streams that are shed, are
 * refused. A runner that Python withdraws is used by Python alone from then on.
 *
 * Python's work on an event takes processor time, which the job and its client may be waiting for. So a turn with
 * only such events goes on for a moment, AFTER_START_NS after a start and AFTER_ANSWER_NS after an answer, unless
 * anything else happens; both events of a short job are then reported together.
 *
 * A session's runner is offered to one stream and one session number, and takes its requests, one after the other, until
 * it is withdrawn; or one of them, as a fresh runner does, if it is a live sandbox's for its next job. So a turn may report
 * several jobs of a session, in order.
 *
 * Python gets the same information as without the fast path, only later. So each rule of Python that could forbid
 * a job must be part of the offer, or be set by lw_stream_fast_path. */

#include "fast_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/* How long a turn goes on after a job's start, and after its answer, while nothing else happens. Most short jobs are
 * over, and their clients have woken up, before that, and Python's own checks of a job begin later. Of a session's
 * answer Python only counts the job, so that it may wait as long as a start. */
#define AFTER_START_NS 1000000
#define AFTER_ANSWER_NS 100000
/* Events that may be held back while a turn goes on. One more wait still has room for all its events. */
#define MOST_UNTOLD LW_TURN

double lw_now_s(void)
{
	return 1e-9 * (double)lw_now_ns();
}

void lw_tell_first(struct lw_loop *loop, const struct lw_event *event)
{
	loop->urgent[loop->urgent_count++] = *event;
}

/* How long the turn may go on before its events are reported; at most until `turn_ends_ns`. 0: the turn is over. */
int64_t lw_fast_path_patience(const struct lw_loop *loop, int64_t turn_ends_ns)
{
	const struct lw_fast_path *path = loop->fast_path;
	double ends = (double)turn_ends_ns;
	int64_t left;

	if (loop->pressing || loop->other_count || !loop->urgent_count || loop->urgent_count > MOST_UNTOLD)
		return 0;
	for (uint32_t at = 0; at < loop->urgent_count; at++) {
		const struct lw_event *event = &loop->urgent[at];
		bool counted = event->kind != LW_EVENT_STARTED && !event->session;
		double until = 1e9 * event->at + (double)(counted ? path->after_answer_ns : path->after_start_ns);

		ends = until < ends ? until : ends;
	}
	left = (int64_t)ends - lw_now_ns();
	return left > 0 ? left : 0;
}

int lw_fast_path_open(struct lw_loop *loop)
{
	loop->fast_path = calloc(1, sizeof(*loop->fast_path));
	if (!loop->fast_path)
		return -ENOMEM;
	loop->fast_path->vacant = LW_NOWHERE;
	lw_fast_path_linger(loop, AFTER_START_NS, AFTER_ANSWER_NS);
	return 0;
}

/* For how many nanoseconds a turn goes on after a start and after an answer: tests need a certain order of events. */
void lw_fast_path_linger(struct lw_loop *loop, int64_t after_start_ns, int64_t after_answer_ns)
{
	loop->fast_path->after_start_ns = after_start_ns;
	loop->fast_path->after_answer_ns = after_answer_ns;
}

static void drop_templates(struct lw_templates *templates)
{
	struct lw_piece *pieces = (struct lw_piece *)templates;

	for (size_t at = 0; at < sizeof(*templates) / sizeof(*pieces); at++)
		free((void *)(uintptr_t)pieces[at].data);
	*templates = (struct lw_templates){ 0 };
}

void lw_fast_path_close(struct lw_loop *loop)
{
	struct lw_fast_path *path = loop->fast_path;

	if (!path)
		return;
	drop_templates(&path->templates);
	free((void *)(uintptr_t)path->refusal_id.data);
	free((void *)(uintptr_t)path->refusal_end.data);
	free(path->entries);
	free(path->offered);
	free(path);
}

/* Take a copy of the templates. Once, before the first offer. Returns 0, -EINVAL or -ENOMEM. */
int lw_fast_path_set_templates(struct lw_loop *loop, const struct lw_templates *templates)
{
	struct lw_fast_path *path = loop->fast_path;
	const struct lw_piece *given = (const struct lw_piece *)templates;
	struct lw_piece *kept = (struct lw_piece *)&path->templates;

	size_t answer = templates->answer_id.size + templates->answer_duration.size + templates->answer_cpu.size +
			templates->answer_peak.size + templates->answer_out.size + templates->answer_err.size;

	if (path->ready || templates->reply.size > LW_MOST_REPLY || answer > LW_MOST_FRAME - 64)
		return -EINVAL;
	for (size_t at = 0; at < sizeof(*templates) / sizeof(*given); at++)
		if (lw_keep_piece(&kept[at], given[at].data, given[at].size)) {
			drop_templates(&path->templates);
			return -ENOMEM;
		}
	path->ready = true;
	return 0;
}

static uint32_t *chain_of(const struct lw_fast_path *path, enum lw_chain by, uint64_t number, int stream)
{
	uint64_t hash = by == LW_BY_SESSION ? 31 * number + (uint64_t)stream : number; /* runners are numbered in turn */

	return &path->chains[by][hash & (path->count - 1)];
}

static uint32_t *own_chain(const struct lw_fast_path *path, enum lw_chain by, const struct lw_entry *entry)
{
	return chain_of(path, by, by == LW_BY_SESSION ? entry->offer.session : entry->offer.number, entry->stream);
}

static void put_in(struct lw_fast_path *path, enum lw_chain by, uint32_t at)
{
	uint32_t *first = own_chain(path, by, &path->entries[at]);

	path->entries[at].next_in[by] = *first;
	*first = at;
}

static bool is_in_session(const struct lw_entry *entry)
{
	return entry->offer.session && entry->state >= LW_HELD;
}

/* Make room for more entries, whose count is a power of two. Their places stay the same. */
static int grow(struct lw_fast_path *path)
{
	uint32_t before = path->count, count = before ? 2 * before : 8;
	struct lw_entry *entries = realloc(path->entries, count * sizeof(*entries));
	uint32_t *indexes;

	if (!entries)
		return -ENOMEM;
	path->entries = entries;
	indexes = realloc(path->offered, 3 * count * sizeof(*indexes));
	if (!indexes)
		return -ENOMEM;
	path->offered = indexes;
	path->chains[LW_BY_NUMBER] = indexes + count;
	path->chains[LW_BY_SESSION] = indexes + 2 * count;
	memset(entries + before, 0, (count - before) * sizeof(*entries));
	memset(indexes + count, 0xff, 2 * count * sizeof(*indexes)); /* LW_NOWHERE */
	path->count = count;
	for (uint32_t at = count; at-- > before;) {
		entries[at].next_vacant = path->vacant;
		path->vacant = at;
	}
	for (uint32_t at = 0; at < before; at++) { /* no old entry is vacant */
		put_in(path, LW_BY_NUMBER, at);
		if (is_in_session(&entries[at]))
			put_in(path, LW_BY_SESSION, at);
	}
	return 0;
}

static uint32_t *list_of(const struct lw_entry *entry, struct lw_stream *stream)
{
	return entry->state == LW_RUNNING ? &stream->first_running : &stream->first_held;
}

static void take_off_list(struct lw_fast_path *path, const struct lw_entry *entry, uint32_t *first)
{
	uint32_t next = entry->next_of_stream, previous = entry->previous_of_stream;

	*(previous == LW_NOWHERE ? first : &path->entries[previous].next_of_stream) = next;
	if (next != LW_NOWHERE)
		path->entries[next].previous_of_stream = previous;
}

static void put_on_list(struct lw_fast_path *path, struct lw_entry *entry, struct lw_stream *stream,
			enum lw_entry_state state)
{
	uint32_t at = (uint32_t)(entry - path->entries), *first;
	bool is_new = entry->state == LW_OFFERED;

	if (!is_new)
		take_off_list(path, entry, list_of(entry, stream));
	entry->state = state;
	entry->stream = stream->fd;
	entry->stream_generation = stream->generation;
	if (is_new && entry->offer.session)
		put_in(path, LW_BY_SESSION, at);
	first = list_of(entry, stream);
	entry->next_of_stream = *first;
	entry->previous_of_stream = LW_NOWHERE;
	if (*first != LW_NOWHERE)
		path->entries[*first].previous_of_stream = at;
	*first = at;
}

static void take_out(struct lw_fast_path *path, enum lw_chain by, uint32_t at)
{
	uint32_t *link = own_chain(path, by, &path->entries[at]);

	while (*link != at && *link != LW_NOWHERE)
		link = &path->entries[*link].next_in[by];
	if (*link == at)
		*link = path->entries[at].next_in[by];
}

void lw_entry_run(struct lw_fast_path *path, struct lw_entry *entry, struct lw_stream *stream, uint64_t id,
		  double started)
{
	path->held_count -= entry->state == LW_HELD;
	put_on_list(path, entry, stream, LW_RUNNING);
	entry->id = id;
	entry->started = started;
}

void lw_entry_hold(struct lw_fast_path *path, struct lw_entry *entry, struct lw_stream *stream)
{
	put_on_list(path, entry, stream, LW_HELD);
	path->held_count++;
}

/* The runner of this stream's session that waits for a request; NULL if there is none. */
struct lw_entry *lw_entry_held(const struct lw_fast_path *path, const struct lw_stream *stream, uint64_t session)
{
	uint32_t at = path->count ? *chain_of(path, LW_BY_SESSION, session, stream->fd) : LW_NOWHERE;

	for (; LW_NOWHERE != at; at = path->entries[at].next_in[LW_BY_SESSION]) {
		struct lw_entry *entry = &path->entries[at];

		if (entry->state == LW_HELD && entry->offer.session == session && entry->stream == stream->fd &&
		    entry->stream_generation == stream->generation)
			return entry;
	}
	return NULL;
}

/* Make an entry for the runner, and wait for its reply. Returns 0 or -errno. */
static int enter(struct lw_loop *loop, const struct lw_offer *offer, uint32_t *ret_at)
{
	struct lw_fast_path *path = loop->fast_path;
	int room = fcntl(offer->job, F_GETPIPE_SZ), failed;
	uint32_t at;

	if (!path->ready)
		return -EINVAL;
	if (room < 0)
		return -errno;
	if (path->vacant == LW_NOWHERE && (failed = grow(path)))
		return failed;
	if ((failed = lw_begin(loop, offer->reply, LW_REPLY, 0, NULL)))
		return failed;
	at = path->vacant;
	path->vacant = path->entries[at].next_vacant;
	loop->slots[offer->reply].entry = at;
	path->entries[at] = (struct lw_entry){ .state = LW_OFFERED, .offer = *offer, .room = (uint32_t)room };
	put_in(path, LW_BY_NUMBER, at);
	*ret_at = at;
	return 0;
}

/* Offer a runner for the next job that fits. The caller keeps its descriptors open until it is withdrawn or done. */
int lw_fast_path_offer(struct lw_loop *loop, const struct lw_offer *offer)
{
	struct lw_fast_path *path = loop->fast_path;
	struct lw_stream *stream = lw_stream_of(loop, offer->stream);
	uint32_t at;
	int failed = offer->session && !stream ? -ENOENT : enter(loop, offer, &at);

	if (failed)
		return failed;
	if (offer->session)
		lw_entry_hold(path, &path->entries[at], stream);
	else
		path->offered[path->offered_count++] = at;
	return 0;
}

/* Have the fast path answer request `id` of stream `fd`, whose job Python has started at `started` in this runner. */
int lw_fast_path_adopt(struct lw_loop *loop, const struct lw_offer *offer, int fd, uint64_t id, double started)
{
	struct lw_stream *stream = lw_stream_of(loop, fd);
	uint32_t at;
	int failed = stream ? enter(loop, offer, &at) : -ENOENT;

	if (!failed)
		lw_entry_run(loop->fast_path, &loop->fast_path->entries[at], stream, id, started);
	return failed;
}

void lw_entry_vacate(struct lw_loop *loop, struct lw_entry *entry)
{
	struct lw_fast_path *path = loop->fast_path;
	uint32_t at = (uint32_t)(entry - path->entries), from = 0, to = 0;
	struct lw_slot *slot = entry->state == LW_OFFERED ? NULL : lw_slot_of(loop, entry->stream, entry->stream_generation);

	lw_loop_forget(loop, entry->offer.reply);
	take_out(path, LW_BY_NUMBER, at);
	if (is_in_session(entry))
		take_out(path, LW_BY_SESSION, at);
	if (slot)
		take_off_list(path, entry, list_of(entry, slot->stream));
	for (; LW_OFFERED == entry->state && from < path->offered_count; from++)
		if (path->offered[from] != at)
			path->offered[to++] = path->offered[from];
	if (entry->state == LW_OFFERED)
		path->offered_count = to;
	path->held_count -= entry->state == LW_HELD;
	entry->state = LW_VACANT;
	entry->next_vacant = path->vacant;
	path->vacant = at;
}

/* Withdraw a runner. Returns 1 if it has a job; 0 if it was only offered; -ENOENT if the fast path doesn't have it any
 * more: an LW_EVENT_DONE or LW_EVENT_HANDED has reported that, or is among the events of this turn. */
int lw_fast_path_withdraw(struct lw_loop *loop, uint64_t number)
{
	struct lw_fast_path *path = loop->fast_path;
	uint32_t at = path->count ? *chain_of(path, LW_BY_NUMBER, number, -1) : LW_NOWHERE;
	int running;

	while (at != LW_NOWHERE && path->entries[at].offer.number != number)
		at = path->entries[at].next_in[LW_BY_NUMBER];
	if (at == LW_NOWHERE)
		return -ENOENT;
	running = path->entries[at].state == LW_RUNNING;
	lw_entry_vacate(loop, &path->entries[at]);
	return running;
}

/* Give up the runners of a client that is gone, whose jobs Python has to end. */
void lw_fast_path_lost(struct lw_loop *loop, const struct lw_stream *stream)
{
	while (stream->first_running != LW_NOWHERE)
		lw_entry_vacate(loop, &loop->fast_path->entries[stream->first_running]);
	while (stream->first_held != LW_NOWHERE)
		lw_entry_vacate(loop, &loop->fast_path->entries[stream->first_held]);
}

/* How many bytes wait in a pipe; an impossibly large number if the kernel doesn't say. */
size_t lw_pipe_bytes(int pipe)
{
	int count = 0;

	return ioctl(pipe, FIONREAD, &count) || count < 0 ? SIZE_MAX / 2 : (size_t)count;
}

/* Write `value` in `width` bytes, big-endian. Returns `width`. */
size_t lw_put_number(uint8_t *to, unsigned width, uint64_t value)
{
	for (unsigned at = 0; at < width; at++)
		to[at] = (uint8_t)(value >> 8 * (width - 1 - at));
	return width;
}

/* Write a whole number in MessagePack's shortest form. Returns its length in bytes. */
size_t lw_put_whole(uint8_t *to, uint64_t value)
{
	unsigned power = value > UINT32_MAX ? 3 : value > UINT16_MAX ? 2 : value > UINT8_MAX;

	if (value < 0x80) {
		to[0] = (uint8_t)value;
		return 1;
	}
	to[0] = (uint8_t)(0xcc + power);
	return 1 + lw_put_number(to + 1, 1u << power, value);
}
