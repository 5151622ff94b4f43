/* Many jobs by one call, upon leeward_submit and leeward_wait.
 *
 * Runs in:   libleeward. */

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "calls.h"
#include "connection.h"
#include "fault.h"
#include "leeward.h"

/* Requests of one connection that may be in flight, less some for a cancel of each kind. */
#define MOST 240
/* Seconds from a refusal, without any result, after which a busy daemon is an error; and those until a job is sent again where none is in
 * flight and the daemon names no time. */
#define BUSY_S 30.0
#define PAUSE_S 0.05

/* A job between its `next` and its `ended`. */
struct mapped {
	int64_t number, id; /* id 0: it isn't in flight, but refused for want of room */
	leeward_map_job job;
};

struct map {
	leeward_handle *handle;
	leeward_map_next next;
	leeward_map_ended ended;
	void *context;
	struct mapped *jobs;
	size_t count, in_flight, most; /* of jobs; of those in flight; and how many may be */
	int64_t given;
	bool more;
	double until, refused; /* refused: since the last result, or 0 */
};

static void pause_for(double seconds)
{
	struct timespec pause = {.tv_sec = (time_t)seconds};

	pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
	nanosleep(&pause, NULL);
}

/* Send jobs[at]. Returns a leeward_error. */
static int send_job(struct map *map, size_t at)
{
	struct mapped *one = &map->jobs[at];
	int64_t id = leeward_submit(map->handle, one->job.code, one->job.length, one->job.options);

	if (id < 0)
		return (int)id;
	one->id = id;
	map->in_flight++;
	return LEEWARD_OK;
}

/* Send what was refused as busy, and then further jobs, while there is room. Returns what ends the call, or 0. */
static int fill(struct map *map, size_t room)
{
	for (size_t i = 0; i < map->count && map->in_flight < map->most; i++) {
		int failed = map->jobs[i].id ? LEEWARD_OK : send_job(map, i);

		if (failed)
			return failed;
	}
	while (map->more && map->in_flight < map->most && map->count < room) {
		struct mapped *one = &map->jobs[map->count];
		int given;

		*one = (struct mapped){.number = map->given};
		given = map->next(map->context, map->given, &one->job);
		if (given < 0)
			return given;
		map->more = given > 0;
		if (!map->more)
			break;
		map->given++;
		map->count++;
		given = send_job(map, map->count - 1);
		if (given)
			return given;
	}
	return LEEWARD_OK;
}

/* Wait for one end, and tell of it. Returns what ends the call, or 0. */
static int take(struct map *map, size_t room)
{
	double left = map->until - lw_now();
	int64_t id = 0;
	leeward_result *result = leeward_wait(map->handle, &id, left < 0 ? 0 : isinf(left) ? -1 : left);
	int code = result ? LEEWARD_OK : leeward_last_error_code();
	struct mapped one;
	size_t at = 0;

	if (!result && !id)
		return code == LEEWARD_NOT_YET ? lw_fail(LEEWARD_NO_ANSWER, "jobs have no answer before the deadline") : code;
	while (at < map->count && map->jobs[at].id != id)
		at++;
	if (at == map->count) {
		leeward_free_result(result);
		return lw_fail(LEEWARD_INVALID, "leeward_map: a job of leeward_submit was in flight");
	}
	map->in_flight--;
	if ((code == LEEWARD_BUSY || code == LEEWARD_QUEUE_TIMEOUT) && map->refused <= 0)
		map->refused = lw_now();
	if ((code == LEEWARD_BUSY || (code == LEEWARD_QUEUE_TIMEOUT && map->in_flight)) && lw_now() < map->refused + BUSY_S) {
		map->jobs[at].id = 0;
		map->most = map->in_flight > 1 ? map->in_flight : 1;
		if (!map->in_flight) {
			double after = leeward_last_error_retry_after();

			pause_for(after > PAUSE_S ? after : PAUSE_S);
		}
		return LEEWARD_OK;
	}
	if (code == LEEWARD_AWAY || code == LEEWARD_NO_ANSWER || code == LEEWARD_BAD_REPLY || code == LEEWARD_NO_MEMORY)
		return code;
	if (result) {
		map->refused = 0;
		map->most += map->most < room;
	}
	one = map->jobs[at];
	map->jobs[at] = map->jobs[--map->count];
	return map->ended(map->context, one.number, result);
}

int leeward_map(leeward_handle *handle, leeward_map_next next, leeward_map_ended ended, void *context, size_t at_once,
		double deadline)
{
	size_t room = at_once ? at_once : MOST;
	struct map map = {.handle = handle, .next = next, .ended = ended, .context = context, .most = room, .more = true,
			  .until = deadline > 0 ? lw_now() + deadline : INFINITY};
	int failed = LEEWARD_OK;

	if (!handle || !next || !ended)
		return lw_fail(LEEWARD_INVALID, "handle, next or ended: NULL");
	if (room > MOST || !lw_is_time(deadline))
		return lw_fail(LEEWARD_INVALID, "at_once is at most %d, and deadline a finite number, 0 or more", MOST);
	if (lw_calls_waiting_jobs(handle))
		return lw_fail(LEEWARD_INVALID, "handle: jobs of leeward_submit are in flight");
	map.jobs = calloc(room, sizeof *map.jobs);
	if (!map.jobs)
		return lw_fail_no_memory();
	do {
		failed = fill(&map, room);
		if (!failed && map.in_flight)
			failed = take(&map, room);
	} while (!failed && (map.count || map.more));
	if (failed) {
		struct lw_fault first = *lw_last_fault(); /* the cleanup may fail, too */

		for (size_t i = 0; i < map.count; i++)
			if (map.jobs[i].id && !leeward_cancel(handle, map.jobs[i].id)) {
				int64_t id = map.jobs[i].id;

				leeward_free_result(leeward_wait(handle, &id, -1));
			}
		*lw_last_fault() = first;
	}
	free(map.jobs);
	return failed;
}
