#include "answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"

/* Rows of one list, at most; leeward/client/file_calls.py has the same bound. */
#define MAX_ROWS ((size_t)1000000)

static const char *const KINDS[] = {
	[LEEWARD_KIND_FILE] = "file", [LEEWARD_KIND_FOLDER] = "folder", [LEEWARD_KIND_LINK] = "link",
	[LEEWARD_KIND_OTHER] = "other",
};

bool lw_is_id(const void *text, size_t length)
{
	const char *at = text;

	if (length != LW_ID)
		return false;
	for (size_t i = 0; i < length; i++)
		if (!(at[i] >= 'a' && at[i] <= 'z') && !(at[i] >= '2' && at[i] <= '7'))
			return false;
	return true;
}

/* --- output ------------------------------------------------------------------- */

/* One chunk, an array of four. */
static bool read_chunk(const struct lw_value *chunk, leeward_chunk *ret_chunk)
{
	struct lw_value parts[4];

	if (!lw_parts_read(chunk, parts, 4) || parts[0].type != LW_INTEGER || parts[1].type != LW_INTEGER ||
	    parts[1].integer < 1 || parts[1].integer > 2 || parts[2].type != LW_NUMBER ||
	    !(parts[2].number >= 0 && parts[2].number < 1e12) || parts[3].type != LW_BINARY)
		return false;
	*ret_chunk = (leeward_chunk){.size = sizeof *ret_chunk, .number = parts[0].integer,
				     .stream = (int32_t)parts[1].integer, .time = parts[2].number, .data = parts[3].data,
				     .length = parts[3].length};
	return true;
}

/* Whether *chunks* are well-formed, with numbers that ascend from *after*. */
bool lw_chunks_check(const struct lw_value *chunks, int64_t after)
{
	struct lw_value left = *chunks, chunk;
	leeward_chunk read;

	for (uint32_t i = 0; i < chunks->entries; i++) {
		lw_row_next(&left, &chunk);
		if (!read_chunk(&chunk, &read) || read.number <= after)
			return false;
		after = read.number;
	}
	return true;
}

/* Read the next of *chunks*, which lw_chunks_check has accepted. */
void lw_chunk_next(struct lw_value *chunks, leeward_chunk *ret_chunk)
{
	struct lw_value chunk;

	lw_row_next(chunks, &chunk);
	read_chunk(&chunk, ret_chunk);
}

/* --- lists -------------------------------------------------------------------- */

/* What every list of leeward.h begins with. */
struct list {
	size_t size, count;
	void **rows;
};

/* Add the row that *make* makes of *value*. Returns 0, -EBADMSG or -ENOMEM. */
int lw_row_add(struct lw_rows *rows, const struct lw_value *value, lw_make *make)
{
	size_t count = rows->count;
	int failed;

	if (count >= MAX_ROWS)
		return -EBADMSG;
	if (!(count & (count - 1))) { /* it doubles */
		void **grown = realloc(rows->all, (count ? 2 * count : 1) * sizeof *grown);

		if (!grown)
			return -ENOMEM;
		rows->all = grown;
	}
	failed = make(value, &rows->all[count]);
	rows->count += !failed;
	return failed;
}

/* Add a row for each value of an array. Returns as lw_row_add. */
int lw_rows_add(struct lw_rows *rows, const struct lw_value *values, lw_make *make)
{
	struct lw_value left = *values, value;
	int failed = 0;

	for (uint32_t i = 0; !failed && i < values->entries; i++) {
		lw_row_next(&left, &value);
		failed = lw_row_add(rows, &value, make);
	}
	return failed;
}

static void free_rows(void **rows, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(rows[i]);
	free(rows);
}

/* A list of leeward.h, of *size* bytes, which owns the rows from then on. After a call has *failed* the rows are freed; NULL
 * then, or if there is no memory. */
void *lw_list(struct lw_rows *rows, size_t size, int failed)
{
	const struct list head = {size, rows->count, rows->all};
	void *list = failed ? NULL : calloc(1, size);

	if (list) {
		memcpy(list, &head, sizeof head);
		return list;
	}
	free_rows(rows->all, rows->count);
	if (!failed)
		lw_fail_no_memory();
	return NULL;
}

static void free_list(void *list)
{
	struct list head;

	if (!list)
		return;
	memcpy(&head, list, sizeof head);
	free_rows(head.rows, head.count);
	free(list);
}

void leeward_free_sandboxes(leeward_sandboxes *sandboxes)
{
	free_list(sandboxes);
}

void leeward_free_entries(leeward_entries *entries)
{
	free_list(entries);
}

void leeward_free_names(leeward_names *names)
{
	free_list(names);
}

void leeward_free_matches(leeward_matches *matches)
{
	free_list(matches);
}

/* --- their rows --------------------------------------------------------------- */

/* Copy *length* bytes and a NUL to *at*, and advance *at*. Returns where the copy begins. */
static const char *keep(char **at, const void *data, size_t length)
{
	const char *start = *at;

	if (length)
		memcpy(*at, data, length);
	(*at)[length] = '\0';
	*at += length + 1;
	return start;
}

/* Bytes of all texts in a map of texts, with a NUL each. False if it has something else. */
static bool texts_size(const struct lw_value *map, size_t *ret_size)
{
	struct lw_cursor inside = map->inside;
	struct lw_value text;

	*ret_size = 0;
	for (uint32_t i = 0; i < 2 * map->entries; i++) {
		if (lw_next(&inside, &text) || text.type != LW_TEXT)
			return false;
		*ret_size += (size_t)text.length + 1;
	}
	return true;
}

static int64_t microseconds(double seconds)
{
	return (int64_t)(seconds * 1e6 + 0.5);
}

/* A sandbox, as sandbox_info tells of it. */
int lw_sandbox_make(const struct lw_value *value, void **ret_row)
{
	struct lw_sandbox_info_answer told = {0};
	struct lw_value text;
	leeward_sandbox_info *info;
	const char **names;
	size_t texts, pairs;
	char *at;

	if (!LW_READ(value, sandbox_info, &told) || !lw_is_id(told.sandbox.data, told.sandbox.length) ||
	    !texts_size(&told.metadata, &texts))
		return -EBADMSG;
	pairs = told.metadata.entries;
	info = malloc(sizeof *info + 2 * pairs * sizeof(char *) + told.sandbox.length + told.profile.length + 2 + texts);
	if (!info)
		return -ENOMEM;
	names = (const char **)(void *)(info + 1);
	at = (char *)(names + 2 * pairs);
	*info = (leeward_sandbox_info){
		.size = sizeof *info, .metadata = pairs ? names : NULL, .metadata_count = pairs,
		.age_us = microseconds(told.age), .idle_us = microseconds(told.idle), .unused_us = microseconds(told.unused),
		.left_us = microseconds(told.left), .cpu_time_us = microseconds(told.cpu_time), .processes = told.processes,
		.calls = told.calls, .memory_limit = told.memory_limit, .memory_peak = told.memory_peak,
	};
	info->id = keep(&at, told.sandbox.data, told.sandbox.length);
	info->profile = keep(&at, told.profile.data, told.profile.length);
	for (size_t i = 0; i < 2 * pairs; i++) {
		lw_next(&told.metadata.inside, &text);
		names[i] = keep(&at, text.data, text.length);
	}
	*ret_row = info;
	return 0;
}

static bool is_path(const struct lw_value *name)
{
	return name->type == LW_BINARY && name->length <= LW_MAX_PATH && !memchr(name->data, 0, name->length);
}

/* A file, as a row of file_list or file_stat. */
int lw_entry_make(const struct lw_value *value, void **ret_row)
{
	struct lw_value parts[6];
	leeward_entry *entry;
	int32_t kind = 0;
	char *at;

	if (!lw_parts_read(value, parts, 6))
		return -EBADMSG;
	for (int32_t i = 1; i <= LEEWARD_KIND_OTHER; i++)
		if (lw_is(&parts[1], KINDS[i]))
			kind = i;
	if (!is_path(&parts[0]) || !kind || parts[2].type != LW_INTEGER || parts[2].integer < 0 || parts[2].integer > 07777 ||
	    parts[3].type != LW_INTEGER || parts[3].integer < 0 || parts[4].type != LW_INTEGER || !is_path(&parts[5]))
		return -EBADMSG;
	entry = malloc(sizeof *entry + (size_t)parts[0].length + parts[5].length + 2);
	if (!entry)
		return -ENOMEM;
	*entry = (leeward_entry){.size = sizeof *entry, .kind = kind, .mode = (uint32_t)parts[2].integer,
				 .length = (uint64_t)parts[3].integer, .time_ns = parts[4].integer};
	at = (char *)(entry + 1);
	entry->name = keep(&at, parts[0].data, parts[0].length);
	if (kind == LEEWARD_KIND_LINK)
		entry->target = keep(&at, parts[5].data, parts[5].length);
	*ret_row = entry;
	return 0;
}

/* A path, as one of the names of file_glob. */
int lw_name_make(const struct lw_value *value, void **ret_row)
{
	char *at;

	if (!is_path(value) || !value->length)
		return -EBADMSG;
	*ret_row = at = malloc((size_t)value->length + 1);
	if (!at)
		return -ENOMEM;
	keep(&at, value->data, value->length);
	return 0;
}

/* A line, as a row of file_grep: its file, its number and its bytes. */
int lw_match_make(const struct lw_value *value, void **ret_row)
{
	struct lw_value parts[3];
	leeward_match *match;
	char *at;

	if (!lw_parts_read(value, parts, 3) || !is_path(&parts[0]) || !parts[0].length || parts[1].type != LW_INTEGER ||
	    parts[1].integer < 0 || parts[2].type != LW_BINARY)
		return -EBADMSG;
	*ret_row = match = malloc(sizeof *match + (size_t)parts[0].length + parts[2].length + 2);
	if (!match)
		return -ENOMEM;
	*match = (leeward_match){.size = sizeof *match, .line = (uint64_t)parts[1].integer, .length = parts[2].length};
	at = (char *)(match + 1);
	match->path = keep(&at, parts[0].data, parts[0].length);
	match->text = (const unsigned char *)keep(&at, parts[2].data, parts[2].length);
	return 0;
}
