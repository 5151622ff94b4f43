#include "answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Rows of one list, at most; leeward/client/file_calls.py has the same bound. */
#define MAX_ROWS ((size_t)1000000)

static const char *const KINDS[] = {
	[LEEWARD_KIND_FILE] = "file", [LEEWARD_KIND_FOLDER] = "folder", [LEEWARD_KIND_LINK] = "link",
	[LEEWARD_KIND_OTHER] = "other",
};

bool lw_is_id(const uint8_t *text, size_t length)
{
	if (length != LW_ID)
		return false;
	for (size_t i = 0; i < length; i++)
		if (!(text[i] >= 'a' && text[i] <= 'z') && !(text[i] >= '2' && text[i] <= '7'))
			return false;
	return true;
}

/* Read the whole number *name* of an answer. False if it is missing or below *least*. */
bool lw_answer_whole(const struct lw_reply *reply, const char *name, int64_t least, int64_t *ret_number)
{
	struct lw_value value;

	lw_find(&reply->ok, name, &value);
	*ret_number = value.integer;
	return value.type == LW_INTEGER && value.integer >= least;
}

bool lw_answer_flag(const struct lw_reply *reply, const char *name, bool *ret_flag)
{
	struct lw_value value;

	lw_find(&reply->ok, name, &value);
	*ret_flag = value.type == LW_BOOL && value.boolean;
	return value.type == LW_BOOL;
}

/* --- output ------------------------------------------------------------------- */

/* One chunk, an array of four. */
static bool read_chunk(struct lw_value *chunk, leeward_chunk *ret_chunk)
{
	struct lw_value parts[4];

	if (chunk->type != LW_ARRAY || chunk->entries != 4)
		return false;
	for (int i = 0; i < 4; i++)
		if (lw_next(&chunk->inside, &parts[i]))
			return false;
	if (parts[0].type != LW_INTEGER || parts[1].type != LW_INTEGER || parts[1].integer < 1 || parts[1].integer > 2 ||
	    parts[2].type != LW_NUMBER || !(parts[2].number >= 0 && parts[2].number < 1e12) || parts[3].type != LW_BINARY)
		return false;
	*ret_chunk = (leeward_chunk){.size = sizeof *ret_chunk, .number = parts[0].integer,
				     .stream = (int32_t)parts[1].integer, .time = parts[2].number, .data = parts[3].data,
				     .length = parts[3].length};
	return true;
}

/* Step over one value of an array and what is inside it. */
static void next_row(struct lw_value *rows, struct lw_value *ret_row)
{
	struct lw_cursor after = rows->inside;

	lw_skip(&after);
	lw_next(&rows->inside, ret_row);
	rows->inside = after;
}

/* Whether the chunks of an answer are well-formed, with numbers that ascend from *after*. */
bool lw_chunks_check(const struct lw_reply *reply, int64_t after, struct lw_value *ret_chunks)
{
	struct lw_value chunks, chunk;
	leeward_chunk read;

	if (!lw_find(&reply->ok, "chunks", &chunks) || chunks.type != LW_ARRAY)
		return false;
	*ret_chunks = chunks;
	for (uint32_t i = 0; i < chunks.entries; i++) {
		next_row(&chunks, &chunk);
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

	next_row(chunks, &chunk);
	read_chunk(&chunk, ret_chunk);
}

/* --- lists -------------------------------------------------------------------- */

/* Room for one more pointer in an array of *count*. Returns the array, which may have moved, or NULL. */
static void *grown(void *array, size_t count)
{
	if (count & (count - 1))
		return array;
	return realloc(array, (count ? 2 * count : 1) * sizeof(void *));
}

/* Copy a text and a NUL to *at*, and advance *at*. Returns where the copy begins. */
static const char *keep(char **at, const struct lw_value *text)
{
	const char *start = *at;

	if (text->length)
		memcpy(*at, text->data, text->length);
	(*at)[text->length] = '\0';
	*at += text->length + 1;
	return start;
}

/* Bytes of all texts in a map of texts, with a NUL each. False if it isn't such a map. */
static bool texts_size(const struct lw_value *map, size_t *ret_size)
{
	struct lw_cursor inside = map->inside;
	struct lw_value key, value;

	*ret_size = 0;
	if (map->type != LW_MAP)
		return false;
	for (uint32_t i = 0; i < map->entries; i++) {
		if (lw_next(&inside, &key) || lw_next(&inside, &value) || key.type != LW_TEXT || value.type != LW_TEXT)
			return false;
		*ret_size += (size_t)key.length + value.length + 2;
	}
	return true;
}

static bool time_us(const struct lw_value *row, const char *name, int64_t *ret_us)
{
	struct lw_value value;
	double seconds;

	lw_find(row, name, &value);
	seconds = value.type == LW_INTEGER ? (double)value.integer : value.type == LW_NUMBER ? value.number : -1;
	if (!(seconds >= 0 && seconds < 1e12))
		return false;
	*ret_us = (int64_t)(seconds * 1e6 + 0.5);
	return true;
}

static bool count_of(const struct lw_value *row, const char *name, uint64_t *ret_count)
{
	struct lw_value value;

	lw_find(row, name, &value);
	*ret_count = (uint64_t)value.integer;
	return value.type == LW_INTEGER && value.integer >= 0;
}

/* Add one sandbox, described by a map, to *list*, which is made if it is NULL. Returns 0, -EBADMSG or -ENOMEM. */
int lw_sandboxes_add(leeward_sandboxes **list, const struct lw_value *row)
{
	leeward_sandbox_info read = {.size = sizeof read}, *info, **rows;
	struct lw_value id, profile, metadata, text;
	size_t texts;
	char *at;

	if (!*list && !(*list = calloc(1, sizeof **list)))
		return -ENOMEM;
	(*list)->size = sizeof **list;
	if (row->type != LW_MAP)
		return -EBADMSG;
	lw_find(row, "sandbox", &id);
	lw_find(row, "profile", &profile);
	lw_find(row, "metadata", &metadata);
	if (id.type != LW_TEXT || !lw_is_id(id.data, id.length) || profile.type != LW_TEXT || !texts_size(&metadata, &texts) ||
	    !time_us(row, "age", &read.age_us) || !time_us(row, "idle", &read.idle_us) ||
	    !time_us(row, "unused", &read.unused_us) || !time_us(row, "left", &read.left_us) ||
	    !time_us(row, "cpu_time", &read.cpu_time_us) || !count_of(row, "processes", &read.processes) ||
	    !count_of(row, "calls", &read.calls) || !count_of(row, "memory_limit", &read.memory_limit) ||
	    !count_of(row, "memory_peak", &read.memory_peak) || (*list)->count >= MAX_ROWS)
		return -EBADMSG;
	rows = grown((void *)(uintptr_t)(*list)->sandboxes, (*list)->count);
	if (!rows)
		return -ENOMEM;
	(*list)->sandboxes = (const leeward_sandbox_info *const *)rows;
	info = malloc(sizeof *info + 2 * metadata.entries * sizeof(char *) + (size_t)id.length + profile.length + 2 + texts);
	if (!info)
		return -ENOMEM;
	*info = read;
	at = (char *)(info + 1) + 2 * metadata.entries * sizeof(char *);
	info->id = keep(&at, &id);
	info->profile = keep(&at, &profile);
	if (metadata.entries) {
		const char **names = (const char **)(void *)(info + 1);

		info->metadata = names;
		info->metadata_count = metadata.entries;
		for (uint32_t i = 0; i < 2 * metadata.entries; i++) {
			lw_next(&metadata.inside, &text);
			names[i] = keep(&at, &text);
		}
	}
	rows[(*list)->count++] = info;
	return 0;
}

void leeward_free_sandboxes(leeward_sandboxes *sandboxes)
{
	if (!sandboxes)
		return;
	for (size_t i = 0; i < sandboxes->count; i++)
		free((void *)(uintptr_t)sandboxes->sandboxes[i]);
	free((void *)(uintptr_t)sandboxes->sandboxes);
	free(sandboxes);
}

static bool is_path(const struct lw_value *name)
{
	return name->type == LW_BINARY && name->length <= LW_MAX_PATH && !memchr(name->data, 0, name->length);
}

/* Add a row of file_list or file_stat to *list*, which is made if it is NULL.
 *
 * Args:
 *	after: the last name of the list, which the new one has to follow in order; NULL: no such check.
 *
 * Returns 0, -EBADMSG or -ENOMEM. */
int lw_entries_add(leeward_entries **list, const struct lw_value *row, const char *after)
{
	struct lw_cursor inside = row->inside;
	leeward_entry *entry, **rows;
	struct lw_value parts[6];
	int32_t kind = 0;
	char *at;

	if (!*list && !(*list = calloc(1, sizeof **list)))
		return -ENOMEM;
	(*list)->size = sizeof **list;
	if (row->type != LW_ARRAY || row->entries != 6)
		return -EBADMSG;
	for (int i = 0; i < 6; i++)
		if (lw_next(&inside, &parts[i]))
			return -EBADMSG;
	for (int32_t i = 1; i <= LEEWARD_KIND_OTHER; i++)
		if (lw_is(&parts[1], KINDS[i]))
			kind = i;
	if (!is_path(&parts[0]) || !kind || parts[2].type != LW_INTEGER || parts[2].integer < 0 || parts[2].integer > 07777 ||
	    parts[3].type != LW_INTEGER || parts[3].integer < 0 || parts[4].type != LW_INTEGER || !is_path(&parts[5]) ||
	    (*list)->count >= MAX_ROWS)
		return -EBADMSG;
	rows = grown((void *)(uintptr_t)(*list)->entries, (*list)->count);
	if (!rows)
		return -ENOMEM;
	(*list)->entries = (const leeward_entry *const *)rows;
	entry = malloc(sizeof *entry + (size_t)parts[0].length + parts[5].length + 2);
	if (!entry)
		return -ENOMEM;
	*entry = (leeward_entry){.size = sizeof *entry, .kind = kind, .mode = (uint32_t)parts[2].integer,
				 .length = (uint64_t)parts[3].integer, .time_ns = parts[4].integer};
	at = (char *)(entry + 1);
	entry->name = keep(&at, &parts[0]);
	if (kind == LEEWARD_KIND_LINK)
		entry->target = keep(&at, &parts[5]);
	if (after && strcmp(entry->name, after) <= 0) {
		free(entry);
		return -EBADMSG;
	}
	rows[(*list)->count++] = entry;
	return 0;
}

void leeward_free_entries(leeward_entries *entries)
{
	if (!entries)
		return;
	for (size_t i = 0; i < entries->count; i++)
		free((void *)(uintptr_t)entries->entries[i]);
	free((void *)(uintptr_t)entries->entries);
	free(entries);
}

/* Make the list of names from an answer to file_glob. Returns 0, -EBADMSG or -ENOMEM; the caller frees *ret_names also
 * after an error. */
int lw_names_make(const struct lw_value *rows, leeward_names **ret_names)
{
	leeward_names *names = *ret_names = calloc(1, sizeof *names);
	struct lw_value left = *rows, row;
	const char **all;

	if (!names)
		return -ENOMEM;
	names->size = sizeof *names;
	for (uint32_t i = 0; i < rows->entries; i++) {
		char *name, *at;

		next_row(&left, &row);
		if (!is_path(&row) || !row.length)
			return -EBADMSG;
		all = grown((void *)(uintptr_t)names->names, names->count);
		if (!all)
			return -ENOMEM;
		names->names = all;
		at = name = malloc((size_t)row.length + 1);
		if (!name)
			return -ENOMEM;
		all[names->count++] = keep(&at, &row);
	}
	return 0;
}

void leeward_free_names(leeward_names *names)
{
	if (!names)
		return;
	for (size_t i = 0; i < names->count; i++)
		free((void *)(uintptr_t)names->names[i]);
	free((void *)(uintptr_t)names->names);
	free(names);
}

/* Make one match from an array of three values. Returns NULL, with -EBADMSG or -ENOMEM in *ret_failed, if that fails. */
static leeward_match *match_of(struct lw_value *row, int *ret_failed)
{
	struct lw_value parts[3];
	leeward_match *match;
	char *at;

	*ret_failed = -EBADMSG;
	if (row->type != LW_ARRAY || row->entries != 3)
		return NULL;
	for (int i = 0; i < 3; i++)
		if (lw_next(&row->inside, &parts[i]))
			return NULL;
	if (!is_path(&parts[0]) || !parts[0].length || parts[1].type != LW_INTEGER || parts[1].integer < 0 ||
	    parts[2].type != LW_BINARY)
		return NULL;
	*ret_failed = -ENOMEM;
	match = malloc(sizeof *match + (size_t)parts[0].length + parts[2].length + 2);
	if (!match)
		return NULL;
	*match = (leeward_match){.size = sizeof *match, .line = (uint64_t)parts[1].integer, .length = parts[2].length};
	at = (char *)(match + 1);
	match->path = keep(&at, &parts[0]);
	match->text = (const unsigned char *)keep(&at, &parts[2]);
	return match;
}

/* Make the list of matches from an answer to file_grep; otherwise as lw_names_make. */
int lw_matches_make(const struct lw_value *rows, leeward_matches **ret_matches)
{
	leeward_matches *matches = *ret_matches = calloc(1, sizeof *matches);
	struct lw_value left = *rows, row;
	int failed = 0;

	if (!matches)
		return -ENOMEM;
	matches->size = sizeof *matches;
	for (uint32_t i = 0; i < rows->entries; i++) {
		const leeward_match **all = grown((void *)(uintptr_t)matches->matches, matches->count);

		if (!all)
			return -ENOMEM;
		matches->matches = all;
		next_row(&left, &row);
		all[matches->count] = match_of(&row, &failed);
		if (!all[matches->count])
			return failed;
		matches->count++;
	}
	return 0;
}

void leeward_free_matches(leeward_matches *matches)
{
	if (!matches)
		return;
	for (size_t i = 0; i < matches->count; i++)
		free((void *)(uintptr_t)matches->matches[i]);
	free((void *)(uintptr_t)matches->matches);
	free(matches);
}
