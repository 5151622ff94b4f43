#include "reply.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* The index of *word* in a table, whose entry 0 is unused; 0 if the word isn't there. */
static int32_t place_of(const struct lw_value *word, const char *const *table, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (lw_is(word, table[i]))
			return (int32_t)i;
	return 0;
}

/* Take the next value of a checked array or map, and step over what it holds. */
void lw_row_next(struct lw_value *rows, struct lw_value *ret_row)
{
	struct lw_cursor after = rows->inside;

	lw_skip(&after);
	lw_next(&rows->inside, ret_row);
	rows->inside = after;
}

/* Read a number of seconds. False if it is none. */
static bool is_time(const struct lw_value *value, double *ret_seconds)
{
	if (value->type != LW_INTEGER && value->type != LW_NUMBER)
		return false;
	*ret_seconds = value->type == LW_INTEGER ? (double)value->integer : value->number;
	return *ret_seconds >= 0 && *ret_seconds < 1e12; /* not so for NaN */
}

/* Read a field of an answer into its place *at*. False if the value is of another type, or out of range. */
static bool read_value(enum lw_kind kind, const struct lw_value *value, void *at)
{
	switch (kind) {
	case LW_FLAG:
		*(bool *)at = value->boolean;
		return value->type == LW_BOOL;
	case LW_WHOLE:
		*(uint64_t *)at = (uint64_t)value->integer;
		return value->type == LW_INTEGER && value->integer >= 0;
	case LW_SECONDS:
		return is_time(value, at);
	case LW_AS_TEXT: case LW_AS_BINARY:
		*(struct lw_bytes *)at = (struct lw_bytes){value->data, value->length};
		return value->type == (kind == LW_AS_TEXT ? LW_TEXT : LW_BINARY);
	default:
		*(struct lw_value *)at = *value;
		return kind == LW_ANYTHING || value->type == (kind == LW_LIST ? LW_ARRAY : LW_MAP);
	}
}

bool lw_answer_read(const struct lw_value *map, const struct lw_field *fields, size_t count, void *ret_answer)
{
	struct lw_value left = *map, name, value;
	uint64_t seen = 0;
	size_t at = 0;

	if (map->type != LW_MAP)
		return false;
	for (uint32_t i = 0; i < map->entries; i++) {
		size_t tried = 0;

		lw_next(&left.inside, &name);
		lw_row_next(&left, &value);
		/* The daemon writes the fields in this order, without some. */
		while (tried < count && !lw_is(&name, fields[at].name)) {
			tried++;
			at = at + 1 < count ? at + 1 : 0;
		}
		if (tried == count)
			continue;
		if (!read_value(fields[at].kind, &value, (char *)ret_answer + fields[at].offset))
			return false;
		seen |= UINT64_C(1) << at;
		at = at + 1 < count ? at + 1 : 0;
	}
	for (size_t i = 0; i < count; i++)
		if (fields[i].needed && !(seen >> i & 1))
			return false;
	return true;
}

/* Read an array of just *count* values, which hold no others. */
bool lw_parts_read(const struct lw_value *array, struct lw_value *ret_parts, uint32_t count)
{
	struct lw_cursor inside = array->inside;

	if (array->type != LW_ARRAY || array->entries != count)
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (lw_next(&inside, &ret_parts[i]))
			return false;
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
	struct lw_value map, id, error, arenas, size;

	if (lw_check(payload, length, ret_wrong) || lw_next(&cursor, &map))
		return -EBADMSG;
	*ret_wrong = "a reply: id is out of range";
	lw_find(&map, "id", &id);
	if (id.type != LW_INTEGER || id.integer < 0 || id.integer >= (int64_t)1 << 53)
		return -EBADMSG;
	reply.id = id.integer;
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
	struct lw_value parts[3];
	uint64_t place[3];

	if (value->type == LW_BINARY) {
		*ret_data = value->data;
		*ret_length = value->length;
		return true;
	}
	if (!lw_parts_read(value, parts, 3))
		return false;
	for (int i = 0; i < 3; i++) {
		if (parts[i].type != LW_INTEGER || parts[i].integer < 0)
			return false;
		place[i] = (uint64_t)parts[i].integer;
	}
	if (place[0] >= reply->arena_count || place[1] > reply->arenas[place[0]] ||
	    place[2] > reply->arenas[place[0]] - place[1])
		return false;
	*ret_data = (const unsigned char *)mappings[place[0]].start + place[1];
	*ret_length = (size_t)place[2];
	return true;
}

/* --- the parts of a result: each reader returns "", what is wrong, or NULL if there is no memory --- */

/* What `collect` left out: pairs of a name and a reason. */
static const char *read_left_out(const struct lw_execute_answer *answer, struct result *result)
{
	static const char WRONG[] = "a result: left_out holds something else than names and reasons";
	struct lw_value list = answer->left_out, pair, parts[2];

	if (list.entries > LW_MAX_LEFT_OUT)
		return WRONG;
	if (list.entries && !(result->left_out = calloc(list.entries, sizeof *result->left_out)))
		return NULL;
	for (uint32_t i = 0; i < list.entries; i++) {
		lw_row_next(&list, &pair);
		if (!lw_parts_read(&pair, parts, 2) || parts[0].type != LW_TEXT || parts[1].type != LW_TEXT ||
		    !place_of(&parts[1], lw_reasons, LW_COUNT(lw_reasons)))
			return WRONG;
		result->left_out[i] = (leeward_left_out){(const char *)parts[0].data, (const char *)parts[1].data};
	}
	result->shown.left_out = result->left_out;
	result->shown.left_out_count = list.entries;
	return "";
}

static const char *read_lists(const struct lw_reply *reply, const struct lw_execute_answer *answer, struct result *result)
{
	struct lw_value denied = answer->denied, degraded = answer->degraded, files = answer->files, value;
	leeward_result *shown = &result->shown;

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
		lw_row_next(&files, &value);
		if (!piece(&value, reply, result->mappings, &result->files[i].data, &result->files[i].length))
			return "a result: a file is neither binary nor a place in a memory file";
	}
	shown->denied = result->denied;
	shown->denied_count = denied.entries;
	shown->degraded = result->degraded;
	shown->degraded_count = degraded.entries;
	shown->files = result->files;
	shown->file_count = files.entries;
	return "";
}

static const char *read_error(const struct lw_value *error, leeward_result *shown)
{
	const char **texts[] = {&shown->error_type, &shown->error_message, &shown->error_traceback};
	const char *const names[] = {"type", "message", "traceback"};
	struct lw_value value;

	if (error->type == LW_NIL)
		return "";
	if (error->type != LW_MAP)
		return "a result: error is no map";
	for (int i = 0; i < 3; i++) {
		if (!lw_find(error, names[i], &value) || value.type != LW_TEXT)
			return "a job's error: type, message and traceback must be text";
		*texts[i] = (const char *)value.data;
	}
	return "";
}

/* Everything but lists and what is shown. */
static const char *read_fields(const struct lw_reply *reply, const struct lw_execute_answer *answer, struct result *result)
{
	leeward_result *shown = &result->shown;
	const void *out = "", *err = "";
	struct lw_value omitted[2] = {{.type = LW_INTEGER}, {.type = LW_INTEGER}};
	const struct lw_value outcome = {.type = LW_TEXT, .data = answer->outcome.data,
					 .length = (uint32_t)answer->outcome.length};

	shown->outcome = place_of(&outcome, lw_outcomes, LW_COUNT(lw_outcomes));
	shown->limit = place_of(&answer->limit, lw_limits, LW_COUNT(lw_limits));
	if (!shown->outcome || (!shown->limit && answer->limit.type != LW_NIL))
		return "a result: outcome or limit is unknown";
	if (answer->exit_code > 255)
		return "a result: exit_code is out of range";
	shown->exit_code = (int32_t)answer->exit_code;
	shown->memory_peak = answer->memory_peak;
	shown->duration_us = (int64_t)(answer->duration * 1e6 + 0.5);
	shown->cpu_time_us = (int64_t)(answer->cpu_time * 1e6 + 0.5);
	shown->starved_us = (int64_t)(answer->starved * 1e6 + 0.5);
	shown->truncated = answer->truncated;
	shown->hint = (const char *)answer->hint.data;
	if ((answer->omitted.type && !lw_parts_read(&answer->omitted, omitted, 2)) || omitted[0].type != LW_INTEGER ||
	    omitted[0].integer < 0 || omitted[1].type != LW_INTEGER || omitted[1].integer < 0)
		return "a result: omitted is no pair of numbers";
	shown->stdout_omitted = (uint64_t)omitted[0].integer;
	shown->stderr_omitted = (uint64_t)omitted[1].integer;
	if (!reply->silent && (!piece(&answer->stdout_, reply, result->mappings, &out, &shown->stdout_length) ||
			       !piece(&answer->stderr_, reply, result->mappings, &err, &shown->stderr_length)))
		return "a result: stdout or stderr is neither binary nor a place in a memory file";
	shown->stdout_data = out;
	shown->stderr_data = err;
	return read_error(&answer->error, shown);
}

/* Read one form. *left*: bytes that all further forms may have. False if it is malformed. */
static bool read_form(const struct lw_value *type, const struct lw_value *content, size_t *left, leeward_form *ret_form)
{
	for (size_t i = 0; i < LW_COUNT(lw_forms); i++) {
		if (!lw_is(type, lw_forms[i].type))
			continue;
		if (content->type != (lw_forms[i].is_text ? LW_TEXT : LW_BINARY) || content->length > LW_MAX_FORM ||
		    content->length > *left || (!i && lw_utf8_length(content->data, content->length) > LW_MAX_PLAIN))
			return false;
		*left -= content->length;
		*ret_form = (leeward_form){lw_forms[i].type, content->data, content->length};
		return true;
	}
	return false;
}

/* What the job has displayed: an array of maps, none of them empty. */
static const char *read_shown(const struct lw_execute_answer *answer, struct result *result)
{
	static const char WRONG[] = "a result: what it shows is something else";
	struct lw_value things = answer->results, list = things, thing, type, content;
	size_t count = 0, left = LW_MAX_FORMS;

	if (answer->value.data && lw_utf8_length(answer->value.data, answer->value.length) > LW_MAX_PLAIN)
		return WRONG;
	result->shown.value = answer->value.data;
	if (list.entries > LW_MAX_SHOWN)
		return WRONG;
	for (uint32_t i = 0; i < things.entries; i++) {
		lw_row_next(&list, &thing);
		if (thing.type != LW_MAP || !thing.entries)
			return WRONG;
		count += thing.entries;
	}
	if (!count)
		return "";
	result->shown_things = calloc(things.entries, sizeof *result->shown_things);
	result->forms = calloc(count, sizeof *result->forms);
	if (!result->shown_things || !result->forms)
		return NULL;
	count = 0;
	for (uint32_t i = 0; i < things.entries; i++) {
		lw_row_next(&things, &thing);
		result->shown_things[i] = (leeward_shown){result->forms + count, thing.entries};
		for (uint32_t j = 0; j < thing.entries; j++) {
			lw_next(&thing.inside, &type);
			lw_next(&thing.inside, &content);
			if (!read_form(&type, &content, &left, &result->forms[count++]))
				return WRONG;
		}
	}
	result->shown.shown = result->shown_things;
	result->shown.shown_count = things.entries;
	return "";
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
	struct lw_execute_answer answer = {0};
	struct result *result;
	const char *wrong;

	*ret_wrong = reply->refused ? "a refusal holds no result" : "a result: a field is missing, or of another type";
	if (reply->refused || !LW_READ(&reply->ok, execute, &answer))
		return -EBADMSG;
	*ret_wrong = NULL;
	result = calloc(1, sizeof *result);
	if (!result)
		return -ENOMEM;
	for (size_t i = 0; i < reply->arena_count; i++)
		result->mappings[i] = mappings[i];
	wrong = read_fields(reply, &answer, result);
	if (wrong && !*wrong)
		wrong = read_lists(reply, &answer, result);
	if (wrong && !*wrong)
		wrong = read_left_out(&answer, result);
	if (wrong && !*wrong)
		wrong = read_shown(&answer, result);
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
