#include "reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shown.h"
#include "text.h"

/* A result with the memory that it owns. The public part comes first, so a pointer to one is a pointer to the other. */
struct result {
	leeward_result shown;
	uint8_t *block; /* the frame that the public part points into; its last byte is spare */
	struct lw_mapping mappings[LW_MAX_ARENAS];
	leeward_denied *denied;
	const char **degraded;
	leeward_file *files;
	leeward_left_out *left_out;
	leeward_shown *shown_things; /* each with its forms, which are one array */
	leeward_form *forms;
};

static const char *const OUTCOMES[] = {
	[LEEWARD_FINISHED] = "finished", [LEEWARD_RAISED] = "raised", [LEEWARD_SIGNALLED] = "signalled",
	[LEEWARD_TIMED_OUT] = "timed_out", [LEEWARD_OUT_OF_MEMORY] = "out_of_memory",
	[LEEWARD_OUTPUT_LIMIT] = "output_limit", [LEEWARD_INTERNAL] = "internal",
};

static const char *const LIMITS[] = {
	[LEEWARD_LIMIT_MEMORY] = "memory", [LEEWARD_LIMIT_PROCESSES] = "processes", [LEEWARD_LIMIT_FILES] = "files",
	[LEEWARD_LIMIT_OUTPUT] = "output", [LEEWARD_LIMIT_TIME] = "time",
	[LEEWARD_LIMIT_CPU] = "cpu",
};

static const char *const LEFT_OUT[] = {
	"", "no_match", "hidden", "folder", "link", "special", "unreadable", "name", "too_large", "too_many", "ended", "more",
};

/* Entries of `left_out`, at most. */
#define MAX_LEFT_OUT 1024

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The index of *word* in a table, whose entry 0 is unused; 0 if the word isn't there. */
static int32_t place_of(const struct lw_value *word, const char *const *table, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (lw_is(word, table[i]))
			return (int32_t)i;
	return 0;
}

/* Read the whole number at *key*. False if it is missing or not between 0 and *most*. */
static bool whole(const struct lw_value *map, const char *key, int64_t most, int64_t *ret_number)
{
	struct lw_value value;

	lw_find(map, key, &value);
	*ret_number = value.integer;
	return value.type == LW_INTEGER && value.integer >= 0 && value.integer <= most;
}

/* Read a number of seconds. False if it is none. */
static bool is_time(const struct lw_value *value, double *ret_seconds)
{
	if (value->type != LW_INTEGER && value->type != LW_NUMBER)
		return false;
	*ret_seconds = value->type == LW_INTEGER ? (double)value->integer : value->number;
	return *ret_seconds >= 0 && *ret_seconds < 1e12; /* not so for NaN */
}

/* Read the seconds at *key* as microseconds. False if there are none. */
static bool seconds(const struct lw_value *map, const char *key, int64_t *ret_us)
{
	struct lw_value value;
	double time;

	lw_find(map, key, &value);
	if (!is_time(&value, &time))
		return false;
	*ret_us = (int64_t)(time * 1e6 + 0.5);
	return true;
}

/* Read a refusal: kind, message, and optionally a time. Returns what is wrong, or NULL. */
static const char *read_refusal(const struct lw_value *error, struct lw_reply *ret_reply)
{
	struct lw_value after;

	ret_reply->refused = true;
	ret_reply->retry_after = -1;
	if (error->type != LW_MAP || !lw_find(error, "kind", &ret_reply->kind) || ret_reply->kind.type != LW_TEXT ||
	    !lw_find(error, "message", &ret_reply->message) || ret_reply->message.type != LW_TEXT)
		return "a refusal: kind and message must be text";
	lw_find(error, "retry_after", &after);
	if (after.type != LW_NIL && !is_time(&after, &ret_reply->retry_after))
		return "a refusal: retry_after is no time";
	return NULL;
}

/* Read the reply in *payload*. Returns 0, or -EBADMSG with what is wrong. */
int lw_reply_read(const uint8_t *payload, size_t length, struct lw_reply *ret_reply, const char **ret_wrong)
{
	struct lw_cursor cursor = {payload, payload + length};
	struct lw_reply reply = {0};
	struct lw_value map, error, arenas, size;

	if (lw_check(payload, length, ret_wrong) || lw_next(&cursor, &map))
		return -EBADMSG;
	*ret_wrong = "a reply: id is out of range";
	if (!whole(&map, "id", ((int64_t)1 << 53) - 1, &reply.id))
		return -EBADMSG;
	if (lw_find(&map, "error", &error)) {
		*ret_wrong = read_refusal(&error, &reply);
		if (*ret_wrong)
			return -EBADMSG;
		*ret_reply = reply;
		return 0;
	}
	*ret_wrong = "a reply: ok must be a map";
	lw_find(&map, "ok", &reply.ok);
	if (reply.ok.type != LW_MAP)
		return -EBADMSG;
	if (lw_find(&reply.ok, "arenas", &arenas)) {
		*ret_wrong = "a reply: arenas must be a short array of sizes";
		if (arenas.type != LW_ARRAY || arenas.entries > LW_MAX_ARENAS)
			return -EBADMSG;
		while (reply.arena_count < arenas.entries) {
			if (lw_next(&arenas.inside, &size) || size.type != LW_INTEGER || size.integer <= 0 ||
			    size.integer > LW_MAX_ARENA || (uint64_t)size.integer > SIZE_MAX)
				return -EBADMSG;
			reply.arenas[reply.arena_count++] = (size_t)size.integer;
		}
	}
	*ret_reply = reply;
	return 0;
}

/* Find the bytes of a value: in the frame, or at an offset in one of the memory files. False if it is neither. */
static bool piece(const struct lw_value *value, const struct lw_reply *reply, const struct lw_mapping *mappings,
		  const void **ret_data, size_t *ret_length)
{
	struct lw_cursor inside = value->inside;
	struct lw_value item;
	uint64_t place[3];

	if (value->type == LW_BINARY) {
		*ret_data = value->data;
		*ret_length = value->length;
		return true;
	}
	if (value->type != LW_ARRAY || value->entries != 3)
		return false;
	for (int i = 0; i < 3; i++) {
		if (lw_next(&inside, &item) || item.type != LW_INTEGER || item.integer < 0)
			return false;
		place[i] = (uint64_t)item.integer;
	}
	if (place[0] >= reply->arena_count || place[1] > reply->arenas[place[0]] ||
	    place[2] > reply->arenas[place[0]] - place[1])
		return false;
	*ret_data = (const unsigned char *)mappings[place[0]].start + place[1];
	*ret_length = (size_t)place[2];
	return true;
}

/* Read the map or array at *key*; an empty one if it is missing and *optional*. False if there is none. */
static bool entries_of(const struct lw_value *map, const char *key, enum lw_type type, bool optional,
		       struct lw_value *ret_value)
{
	if (!lw_find(map, key, ret_value))
		return optional;
	return ret_value->type == type;
}

/* Read what `collect` left out: pairs of a name and a reason. Returns as read_lists does. */
static const char *read_left_out(const struct lw_reply *reply, struct result *result)
{
	static const char WRONG[] = "a result: left_out holds something else than names and reasons";
	struct lw_value list, pair, name, reason;

	if (!entries_of(&reply->ok, "left_out", LW_ARRAY, true, &list) || list.entries > MAX_LEFT_OUT)
		return WRONG;
	if (list.entries && !(result->left_out = calloc(list.entries, sizeof *result->left_out)))
		return NULL;
	for (uint32_t i = 0; i < list.entries; i++) {
		struct lw_cursor after = list.inside;

		lw_skip(&after);
		lw_next(&list.inside, &pair);
		if (pair.type != LW_ARRAY || pair.entries != 2 || lw_next(&pair.inside, &name) ||
		    lw_next(&pair.inside, &reason) || name.type != LW_TEXT || reason.type != LW_TEXT ||
		    !place_of(&reason, LEFT_OUT, COUNT(LEFT_OUT)))
			return WRONG;
		result->left_out[i] = (leeward_left_out){(const char *)name.data, (const char *)reason.data};
		list.inside = after;
	}
	result->shown.left_out = result->left_out;
	result->shown.left_out_count = list.entries;
	return "";
}

static const char *read_lists(const struct lw_reply *reply, struct result *result)
{
	struct lw_value denied, degraded, files, value;
	struct lw_cursor after;
	leeward_result *shown = &result->shown;

	if (!entries_of(&reply->ok, "denied", LW_MAP, false, &denied) ||
	    !entries_of(&reply->ok, "degraded", LW_ARRAY, false, &degraded) ||
	    !entries_of(&reply->ok, "files", LW_MAP, true, &files))
		return "a result: files, denied or degraded holds something else";
	/* These counts aren't just claimed: lw_check has seen every entry. */
	if ((denied.entries && !(result->denied = calloc(denied.entries, sizeof *result->denied))) ||
	    (degraded.entries && !(result->degraded = calloc(degraded.entries, sizeof *result->degraded))) ||
	    (files.entries && !(result->files = calloc(files.entries, sizeof *result->files))))
		return NULL;
	for (uint32_t i = 0; i < denied.entries; i++) {
		lw_next(&denied.inside, &value);
		result->denied[i].name = (const char *)value.data;
		lw_next(&denied.inside, &value);
		if (value.type != LW_INTEGER || value.integer < 0)
			return "a result: denied must hold counts";
		result->denied[i].count = (uint64_t)value.integer;
	}
	for (uint32_t i = 0; i < degraded.entries; i++) {
		lw_next(&degraded.inside, &value);
		if (value.type != LW_TEXT)
			return "a result: degraded must hold names";
		result->degraded[i] = (const char *)value.data;
	}
	for (uint32_t i = 0; i < files.entries; i++) {
		lw_next(&files.inside, &value);
		if (!lw_is_plain_name(value.data, value.length))
			return "a result: a file's name is none";
		result->files[i].name = (const char *)value.data;
		after = files.inside;
		lw_skip(&after);
		lw_next(&files.inside, &value);
		if (!piece(&value, reply, result->mappings, &result->files[i].data, &result->files[i].length))
			return "a result: a file is neither binary nor a place in a memory file";
		files.inside = after;
	}
	shown->denied = result->denied;
	shown->denied_count = denied.entries;
	shown->degraded = result->degraded;
	shown->degraded_count = degraded.entries;
	shown->files = result->files;
	shown->file_count = files.entries;
	return "";
}

static const char *read_error(const struct lw_value *ok, leeward_result *shown)
{
	const char **texts[] = {&shown->error_type, &shown->error_message, &shown->error_traceback};
	const char *const names[] = {"type", "message", "traceback"};
	struct lw_value error, value;

	lw_find(ok, "error", &error);
	if (error.type == LW_NIL)
		return "";
	if (error.type != LW_MAP)
		return "a result: error is no map";
	for (int i = 0; i < 3; i++) {
		if (!lw_find(&error, names[i], &value) || value.type != LW_TEXT)
			return "a job's error: type, message and traceback must be text";
		*texts[i] = (const char *)value.data;
	}
	return "";
}

static bool read_omitted(const struct lw_value *ok, leeward_result *shown)
{
	uint64_t *const counts[] = {&shown->stdout_omitted, &shown->stderr_omitted};
	struct lw_value pair, value;

	if (!lw_find(ok, "omitted", &pair))
		return true;
	if (pair.type != LW_ARRAY || pair.entries != COUNT(counts))
		return false;
	for (size_t i = 0; i < COUNT(counts); i++) {
		if (lw_next(&pair.inside, &value) || value.type != LW_INTEGER || value.integer < 0)
			return false;
		*counts[i] = (uint64_t)value.integer;
	}
	return true;
}

static const char *read_fields(const struct lw_reply *reply, struct result *result)
{
	const struct lw_value *ok = &reply->ok;
	leeward_result *shown = &result->shown;
	struct lw_value value;
	const void *data[2];
	int64_t number;

	lw_find(ok, "outcome", &value);
	shown->outcome = place_of(&value, OUTCOMES, COUNT(OUTCOMES));
	lw_find(ok, "limit", &value);
	shown->limit = place_of(&value, LIMITS, COUNT(LIMITS));
	if (!shown->outcome || (!shown->limit && value.type != LW_NIL))
		return "a result: outcome or limit is unknown";
	if (!whole(ok, "exit_code", 255, &number))
		return "a result: exit_code is out of range";
	shown->exit_code = (int32_t)number;
	if (!whole(ok, "memory_peak", INT64_MAX, &number))
		return "a result: memory_peak is out of range";
	shown->memory_peak = (uint64_t)number;
	if (!seconds(ok, "duration", &shown->duration_us) || !seconds(ok, "cpu_time", &shown->cpu_time_us))
		return "a result: duration or cpu_time is no time";
	lw_find(ok, "truncated", &value);
	if (value.type != LW_BOOL)
		return "a result: truncated is neither true nor false";
	shown->truncated = value.boolean;
	if (!read_omitted(ok, shown))
		return "a result: omitted is no pair of numbers";
	if (reply->silent) {
		shown->stdout_data = shown->stderr_data = (const unsigned char *)"";
		return read_error(ok, shown);
	}
	lw_find(ok, "stdout", &value);
	if (!piece(&value, reply, result->mappings, &data[0], &shown->stdout_length))
		return "a result: stdout is neither binary nor a place in a memory file";
	lw_find(ok, "stderr", &value);
	if (!piece(&value, reply, result->mappings, &data[1], &shown->stderr_length))
		return "a result: stderr is neither binary nor a place in a memory file";
	shown->stdout_data = data[0];
	shown->stderr_data = data[1];
	return read_error(ok, shown);
}

/* End every text of *payload* with a NUL. It overwrites the byte behind the text: the first byte of the next value, or
 * the spare byte. Call it when the payload has been read. */
static void terminate_texts(uint8_t *at, const uint8_t *end)
{
	struct lw_cursor cursor = {at, end};
	uint8_t *text_end = NULL;
	struct lw_value value;

	/* Write the NUL of a text only after the first byte of the next value was read. */
	while (!lw_next(&cursor, &value)) {
		if (text_end)
			*text_end = '\0';
		text_end = value.type == LW_TEXT ? at + (cursor.at - at) : NULL;
	}
	if (text_end)
		*text_end = '\0';
}

/* Make the result in *reply*.
 *
 * Args:
 *	block: the malloc'ed frame that *reply* views, with its header and one byte to spare.
 *	mappings: one for each of the reply's arenas, of exactly its size.
 *
 * Returns 0, and the result owns block and mappings; or -EBADMSG with what is wrong, or -ENOMEM, and the caller keeps
 * them. */
int lw_result_make(const struct lw_reply *reply, uint8_t *block, const struct lw_mapping mappings[LW_MAX_ARENAS],
		   leeward_result **ret_result, const char **ret_wrong)
{
	struct result *result;
	const char *wrong;

	*ret_wrong = "a refusal holds no result";
	if (reply->refused)
		return -EBADMSG;
	*ret_wrong = NULL;
	result = calloc(1, sizeof *result);
	if (!result)
		return -ENOMEM;
	for (size_t i = 0; i < reply->arena_count; i++)
		result->mappings[i] = mappings[i];
	wrong = read_fields(reply, result);
	if (wrong && !*wrong)
		wrong = read_lists(reply, result);
	if (wrong && !*wrong)
		wrong = read_left_out(reply, result);
	if (wrong && !*wrong)
		wrong = lw_shown_read(reply, &result->shown, &result->shown_things, &result->forms);
	if (!wrong || *wrong) {
		*ret_wrong = wrong;
		memset(result->mappings, 0, sizeof result->mappings);
		leeward_free_result(&result->shown);
		return wrong ? -EBADMSG : -ENOMEM;
	}
	terminate_texts(block + LW_HEADER, reply->ok.inside.end);
	result->block = block;
	result->shown.size = sizeof result->shown;
	result->shown.id = reply->id;
	*ret_result = &result->shown;
	return 0;
}

/* Unmap what is mapped. */
void lw_unmap(struct lw_mapping mappings[LW_MAX_ARENAS])
{
	for (size_t i = 0; i < LW_MAX_ARENAS; i++) {
		if (mappings[i].start)
			munmap(mappings[i].start, mappings[i].length);
		mappings[i] = (struct lw_mapping){NULL, 0};
	}
}

void leeward_free_result(leeward_result *result)
{
	struct result *kept = (struct result *)(void *)result;

	if (!kept)
		return;
	lw_unmap(kept->mappings);
	free(kept->denied);
	free(kept->degraded);
	free(kept->files);
	free(kept->left_out);
	free(kept->shown_things);
	free(kept->forms);
	free(kept->block);
	free(kept);
}

void leeward_result_free(leeward_result *result)
{
	leeward_free_result(result);
}
