/* Files in live sandboxes. A process in the sandbox executes these calls one after the other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "sandbox.h"
#include "text.h"

/* Bytes of a file that are read at most, if the caller names no limit. */
#define MOST_READ ((uint64_t)64 << 20)

/* Close a handle of a file that is read or written. Errors are ignored. */
static void close_file(const leeward_sandbox *sandbox, const char *path, int64_t number)
{
	if (!number || sandbox->handle->link.fd < 0 || lw_file_check(sandbox, path))
		return;
	LW_BEGIN(sandbox->handle, file_close, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .handle = (uint64_t)number);
	lw_file_call_for_nothing(sandbox, "file_close", path);
}

/* --- reading ------------------------------------------------------------------ */

/* A piece of a file, as an answer has it. */
struct piece {
	struct lw_value data;
	int64_t at, end, handle, mode, time;
};

static bool read_piece(const struct lw_reply *reply, struct piece *ret_piece)
{
	struct lw_value time;

	lw_find(&reply->ok, "data", &ret_piece->data);
	lw_find(&reply->ok, "time", &time);
	ret_piece->time = time.integer;
	return ret_piece->data.type == LW_BINARY && time.type == LW_INTEGER &&
	       lw_answer_whole(reply, "at", 0, &ret_piece->at) && lw_answer_whole(reply, "end", 0, &ret_piece->end) &&
	       lw_answer_whole(reply, "handle", 0, &ret_piece->handle) && lw_answer_whole(reply, "mode", 0, &ret_piece->mode) &&
	       ret_piece->mode <= 07777;
}

/* Append the bytes of a piece. Memory grows with the bytes that have arrived, not with a size that an answer claims. */
static int take_piece(leeward_content *content, size_t *capacity, const struct lw_value *data)
{
	size_t needed = content->length + data->length + 1;
	unsigned char *grown;

	if (needed > *capacity) {
		size_t wanted = needed > 2 * *capacity ? needed : 2 * *capacity;

		grown = realloc((void *)(uintptr_t)content->data, wanted);
		if (!grown)
			return lw_fail_no_memory();
		content->data = grown;
		*capacity = wanted;
	}
	if (data->length)
		memcpy((unsigned char *)(uintptr_t)content->data + content->length, data->data, data->length);
	content->length += data->length;
	return LEEWARD_OK;
}

static int too_large(const char *path, uint64_t most)
{
	char where[256];

	lw_quoted(where, sizeof where, path);
	lw_fail(LEEWARD_FILE, "%s: it has more than %llu bytes", where, (unsigned long long)most);
	return lw_fail_errno(LEEWARD_FILE, EFBIG);
}

/* Read the next piece of the file into *content*. Returns 1 if there is more, 0 at the end, or a leeward_error. */
static int read_on(const leeward_sandbox *sandbox, const char *path, uint64_t most, int64_t *handle,
		   leeward_content *content, size_t *capacity)
{
	struct lw_answer answer;
	struct piece piece;
	int failed;

	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_read, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .handle = (uint64_t)*handle,
		 .offset = content->length, .size = LW_PIECE);
	failed = lw_file_call(sandbox, "file_read", path, &answer);
	if (failed)
		return failed;
	if (!read_piece(&answer.reply, &piece) || piece.data.length > LW_PIECE || (uint64_t)piece.at != content->length ||
	    piece.end - piece.at < (int64_t)piece.data.length)
		return lw_bad_answer(sandbox->handle, &answer, "a piece of a file is malformed");
	content->mode = (uint32_t)piece.mode;
	content->time_ns = piece.time;
	failed = (uint64_t)piece.end > most ? too_large(path, most) : take_piece(content, capacity, &piece.data);
	free(answer.block);
	*handle = piece.handle;
	if (failed)
		return failed;
	return piece.handle && piece.data.length && (uint64_t)piece.end > content->length;
}

leeward_content *leeward_file_read(leeward_sandbox *sandbox, const char *path, uint64_t most)
{
	leeward_content *content = calloc(1, sizeof *content);
	size_t capacity = 0;
	int64_t handle = 0;
	int more;

	if (!content) {
		lw_fail_no_memory();
		return NULL;
	}
	content->size = sizeof *content;
	do
		more = read_on(sandbox, path, most ? most : MOST_READ, &handle, content, &capacity);
	while (more > 0);
	if (more < 0) {
		struct lw_fault fault = lw_fault_keep();

		if (sandbox)
			close_file(sandbox, path, handle);
		lw_fault_restore(&fault);
		leeward_free_content(content);
		return NULL;
	}
	close_file(sandbox, path, handle);
	return content;
}

void leeward_free_content(leeward_content *content)
{
	if (!content)
		return;
	free((void *)(uintptr_t)content->data);
	free(content);
}

/* --- writing ------------------------------------------------------------------ */

/* Write one piece, and store the handle for the next one in *handle*. Returns a leeward_error. */
static int write_on(const leeward_sandbox *sandbox, const char *path, const void *data, size_t length, size_t offset,
		    bool more, int mode, int64_t *handle)
{
	struct lw_answer answer;
	int64_t next;
	int failed;

	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_write, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .handle = (uint64_t)*handle,
		 .offset = offset, .data = {length ? data : NULL, length}, .more = more,
		 .mode = {mode >= 0, (uint64_t)mode});
	failed = lw_file_call(sandbox, "file_write", path, &answer);
	if (failed)
		return failed;
	if (!lw_answer_whole(&answer.reply, "handle", more ? 1 : 0, &next))
		return lw_bad_answer(sandbox->handle, &answer, "a piece of a file that is written has no handle");
	free(answer.block);
	*handle = next;
	return LEEWARD_OK;
}

int leeward_file_write(leeward_sandbox *sandbox, const char *path, const void *data, size_t length, int mode)
{
	int64_t handle = 0;
	size_t offset = 0;
	int failed;

	if (length && !data)
		return lw_fail(LEEWARD_INVALID, "data: NULL, and a length above 0");
	if (mode < -1 || mode > 0777)
		return lw_fail(LEEWARD_INVALID, "mode: must be permission bits, at most 0777, or -1");
	do {
		size_t piece = length - offset < LW_PIECE ? length - offset : LW_PIECE;

		failed = write_on(sandbox, path, length ? (const char *)data + offset : NULL, piece, offset,
				  offset + piece < length, mode, &handle);
		offset += piece;
	} while (!failed && offset < length);
	if (failed && handle) {
		struct lw_fault fault = lw_fault_keep();

		close_file(sandbox, path, handle);
		lw_fault_restore(&fault);
	}
	return failed;
}

int leeward_file_append(leeward_sandbox *sandbox, const char *path, const void *data, size_t length)
{
	if (length && !data)
		return lw_fail(LEEWARD_INVALID, "data: NULL, and a length above 0");
	do {
		size_t piece = length < LW_PIECE ? length : LW_PIECE;
		int failed;

		if (lw_file_check(sandbox, path))
			return LEEWARD_INVALID;
		LW_BEGIN(sandbox->handle, file_append, LW_ABOUT(sandbox), .path = lw_bytes_of(path),
			 .data = {piece ? data : NULL, piece});
		if (piece)
			data = (const char *)data + piece;
		failed = lw_file_call_for_nothing(sandbox, "file_append", path);
		if (failed)
			return failed;
		length -= piece;
	} while (length);
	return LEEWARD_OK;
}

/* --- names -------------------------------------------------------------------- */

/* Read the next page of a folder into *list*. Returns 1 if there are more pages, 0 if not, or a leeward_error. */
static int list_page(const leeward_sandbox *sandbox, const char *path, leeward_entries **list)
{
	const char *last = *list && (*list)->count ? (*list)->entries[(*list)->count - 1]->name : NULL;
	struct lw_answer answer;
	struct lw_value rows, row;
	bool more;
	int failed;

	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_list, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .after = lw_bytes_of(last));
	failed = lw_file_call(sandbox, "file_list", path, &answer);
	if (failed)
		return failed;
	if (!lw_find(&answer.reply.ok, "rows", &rows) || rows.type != LW_ARRAY || !lw_answer_flag(&answer.reply, "more", &more))
		return lw_file_call_done(sandbox, &answer, -EBADMSG);
	if (!*list && !(*list = calloc(1, sizeof **list)))
		return lw_file_call_done(sandbox, &answer, -ENOMEM);
	(*list)->size = sizeof **list;
	for (uint32_t i = 0; !failed && i < rows.entries; i++) {
		struct lw_cursor after = rows.inside;

		lw_skip(&after);
		lw_next(&rows.inside, &row);
		rows.inside = after;
		failed = lw_entries_add(list, &row, last);
		if (!failed)
			last = (*list)->entries[(*list)->count - 1]->name;
	}
	failed = lw_file_call_done(sandbox, &answer, failed);
	return failed ? failed : more && rows.entries;
}

leeward_entries *leeward_file_list(leeward_sandbox *sandbox, const char *path)
{
	leeward_entries *list = NULL;
	int more;

	do
		more = list_page(sandbox, path, &list);
	while (more > 0);
	if (!more)
		return list;
	leeward_free_entries(list);
	return NULL;
}

leeward_entries *leeward_file_stat(leeward_sandbox *sandbox, const char *path, int follow)
{
	leeward_entries *list = NULL;
	struct lw_answer answer;
	struct lw_value row;

	if (lw_file_check(sandbox, path))
		return NULL;
	LW_BEGIN(sandbox->handle, file_stat, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .follow = follow != 0);
	if (lw_file_call(sandbox, "file_stat", path, &answer))
		return NULL;
	lw_find(&answer.reply.ok, "row", &row);
	if (!lw_file_call_done(sandbox, &answer, lw_entries_add(&list, &row, NULL)))
		return list;
	leeward_free_entries(list);
	return NULL;
}

int leeward_file_mkdir(leeward_sandbox *sandbox, const char *path, int parents)
{
	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_mkdir, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .parents = parents != 0,
		 .there = parents != 0);
	return lw_file_call_for_nothing(sandbox, "file_mkdir", path);
}

int leeward_file_remove(leeward_sandbox *sandbox, const char *path, int recursive)
{
	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_remove, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .timeout = LW_LONG_S,
		 .recursive = recursive != 0);
	return lw_file_call_for_nothing(sandbox, "file_remove", path);
}

int leeward_file_move(leeward_sandbox *sandbox, const char *path, const char *to)
{
	if (!to || !*to || strlen(to) > LW_MAX_PATH)
		return lw_fail(LEEWARD_INVALID, "to: NULL, empty, or longer than %d bytes", LW_MAX_PATH);
	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_move, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .timeout = LW_LONG_S,
		 .to = lw_bytes_of(to));
	return lw_file_call_for_nothing(sandbox, "file_move", path);
}
