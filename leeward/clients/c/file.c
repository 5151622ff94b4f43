/* Files in live sandboxes. A process in the sandbox executes these calls one after the other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "sandbox.h"
#include "text.h"

/* Bytes of a file that are read at most, if the caller names no limit. */
#define MOST_READ ((uint64_t)64 << 20)
/* Seconds for a call that may take long: a folder with its content, a file moved to another file system. */
#define LONG_S 300

/* Matches of a search, if the caller names no limit. */
#define MOST_MATCHES 1000

/* --- one call ------------------------------------------------------------------ */

static const char MALFORMED[] = "the answer to a file call is malformed";

/* The fields that all file calls have. */
#define ON(sandbox, name) LW_ABOUT(sandbox), .path = lw_bytes_of(name)

static int check_path(const char *what, const char *path)
{
	if (!path || !*path || strlen(path) > LW_MAX_PATH)
		return lw_fail(LEEWARD_INVALID, "%s: NULL, empty, or longer than %d bytes", what, LW_MAX_PATH);
	return LEEWARD_OK;
}

/* Fail with LEEWARD_FILE. *why* is a text from the sandbox; control characters are escaped. */
static int failed_call(const char *path, int number, const struct lw_value *why)
{
	char where[256], reason[512];
	size_t length = 0;

	lw_quoted(where, sizeof where, path);
	for (uint32_t i = 0; i < why->length && length + 1 < sizeof reason; i++)
		reason[length++] = why->data[i] >= ' ' && why->data[i] <= '~' ? (char)why->data[i] : '?';
	reason[length] = '\0';
	lw_fail(LEEWARD_FILE, "%s: %s", where, length ? reason : number ? strerror(number) : "the call is invalid");
	lw_last_fault()->number = number;
	return LEEWARD_FILE;
}

/* Call *request*, which is ON *path*. Returns a leeward_error; LEEWARD_FILE if the call failed in the sandbox. */
static int call(const leeward_sandbox *sandbox, const char *path, const struct lw_request *request, struct lw_answer *ret_answer)
{
	struct lw_value number, why;
	int failed = lw_sandbox_check(sandbox);

	if (!failed)
		failed = check_path("path", path);
	if (!failed)
		failed = lw_ask(sandbox, request, ret_answer);
	if (failed || !lw_find(&ret_answer->reply.ok, "errno", &number))
		return failed;
	lw_find(&ret_answer->reply.ok, "why", &why);
	if (number.type != LW_INTEGER || number.integer < 0 || number.integer > 4095 || why.type != LW_TEXT)
		return lw_bad_answer(sandbox->handle, ret_answer, MALFORMED);
	failed = failed_call(path, (int)number.integer, &why);
	free(ret_answer->block);
	return failed;
}

/* As call, if the answer says nothing. */
static int call_for_nothing(const leeward_sandbox *sandbox, const char *path, const struct lw_request *request)
{
	struct lw_answer answer;
	int failed = call(sandbox, path, request, &answer);

	if (!failed)
		free(answer.block);
	return failed;
}

/* Close a handle of a file that was read or written. It changes no error. */
static void close_file(const leeward_sandbox *sandbox, const char *path, uint64_t handle)
{
	struct lw_fault fault = *lw_last_fault();

	if (handle && sandbox->handle->connection.fd >= 0)
		call_for_nothing(sandbox, path, LW_REQUEST(file_close, ON(sandbox, path), .handle = handle));
	*lw_last_fault() = fault;
}

/* --- reading ------------------------------------------------------------------ */

/* Append the bytes of a piece. Memory grows with the bytes that have arrived, not with a size that an answer claims. */
static int take_piece(leeward_content *content, size_t *capacity, const struct lw_bytes *data)
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
	lw_last_fault()->number = EFBIG;
	return LEEWARD_FILE;
}

/* Read the next piece of the file into *content*. Returns 1 if there is more, 0 at the end, or a leeward_error. */
static int read_on(const leeward_sandbox *sandbox, const char *path, uint64_t most, uint64_t *handle,
		   leeward_content *content, size_t *capacity)
{
	struct lw_file_read_answer piece = {0};
	struct lw_answer answer;
	int failed = call(sandbox, path, LW_REQUEST(file_read, ON(sandbox, path), .handle = *handle, .offset = content->length,
						    .size = LW_PIECE), &answer);

	if (failed)
		return failed;
	if (!LW_READ(&answer.reply.ok, file_read, &piece) || piece.data.length > LW_PIECE || piece.mode > 07777 ||
	    piece.at != content->length || piece.end < piece.at + piece.data.length)
		return lw_bad_answer(sandbox->handle, &answer, "a piece of a file is malformed");
	content->mode = (uint32_t)piece.mode;
	content->time_ns = (int64_t)piece.time;
	failed = piece.end > most ? too_large(path, most) : take_piece(content, capacity, &piece.data);
	free(answer.block);
	*handle = piece.handle;
	if (failed)
		return failed;
	return piece.handle && piece.data.length && piece.end > content->length;
}

leeward_content *leeward_file_read(leeward_sandbox *sandbox, const char *path, uint64_t most)
{
	leeward_content *content = calloc(1, sizeof *content);
	size_t capacity = 0;
	uint64_t handle = 0;
	int more;

	if (!content) {
		lw_fail_no_memory();
		return NULL;
	}
	content->size = sizeof *content;
	do
		more = read_on(sandbox, path, most ? most : MOST_READ, &handle, content, &capacity);
	while (more > 0);
	close_file(sandbox, path, handle);
	if (!more)
		return content;
	leeward_free_content(content);
	return NULL;
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
static int write_on(const leeward_sandbox *sandbox, const char *path, struct lw_bytes piece, size_t offset, bool more, int mode,
		    uint64_t *handle)
{
	struct lw_file_write_answer next = {0};
	struct lw_answer answer;
	int failed = call(sandbox, path, LW_REQUEST(file_write, ON(sandbox, path), .handle = *handle, .offset = offset,
						    .data = piece, .more = more, .mode = {mode >= 0, (uint64_t)mode}), &answer);

	if (failed)
		return failed;
	if (!LW_READ(&answer.reply.ok, file_write, &next) || next.handle < more)
		return lw_bad_answer(sandbox->handle, &answer, "a piece of a file that is written has no handle");
	free(answer.block);
	*handle = next.handle;
	return LEEWARD_OK;
}

int leeward_file_write(leeward_sandbox *sandbox, const char *path, const void *data, size_t length, int mode)
{
	uint64_t handle = 0;
	size_t offset = 0;
	int failed;

	if (length && !data)
		return lw_fail(LEEWARD_INVALID, "data: NULL, and a length above 0");
	if (mode < -1 || mode > 0777)
		return lw_fail(LEEWARD_INVALID, "mode: must be permission bits, at most 0777, or -1");
	do {
		size_t piece = length - offset < LW_PIECE ? length - offset : LW_PIECE;

		failed = write_on(sandbox, path, (struct lw_bytes){length ? (const char *)data + offset : NULL, piece}, offset,
				  offset + piece < length, mode, &handle);
		offset += piece;
	} while (!failed && offset < length);
	if (failed)
		close_file(sandbox, path, handle);
	return failed;
}

int leeward_file_append(leeward_sandbox *sandbox, const char *path, const void *data, size_t length)
{
	int failed;

	if (length && !data)
		return lw_fail(LEEWARD_INVALID, "data: NULL, and a length above 0");
	do {
		size_t piece = length < LW_PIECE ? length : LW_PIECE;

		failed = call_for_nothing(sandbox, path, LW_REQUEST(file_append, ON(sandbox, path),
								    .data = {piece ? data : NULL, piece}));
		data = piece ? (const char *)data + piece : data;
		length -= piece;
	} while (!failed && length);
	return failed;
}

/* --- names -------------------------------------------------------------------- */

/* Whether the rows from *from* on have names that ascend. */
static bool are_sorted(const struct lw_rows *rows, size_t from)
{
	for (size_t i = from ? from : 1; i < rows->count; i++)
		if (strcmp(((const leeward_entry *)rows->all[i - 1])->name, ((const leeward_entry *)rows->all[i])->name) >= 0)
			return false;
	return true;
}

/* Read the next page of a folder into *rows*. Returns 1 if there are more pages, 0 if not, or a leeward_error. */
static int list_page(const leeward_sandbox *sandbox, const char *path, struct lw_rows *rows)
{
	size_t count = rows->count;
	const char *last = count ? ((const leeward_entry *)rows->all[count - 1])->name : NULL;
	struct lw_file_list_answer page = {0};
	struct lw_answer answer;
	int failed = call(sandbox, path, LW_REQUEST(file_list, ON(sandbox, path), .after = lw_bytes_of(last)), &answer);

	if (failed)
		return failed;
	failed = LW_READ(&answer.reply.ok, file_list, &page) ? lw_rows_add(rows, &page.rows, lw_entry_make) : -EBADMSG;
	if (!failed && !are_sorted(rows, count))
		failed = -EBADMSG;
	failed = lw_answered(sandbox->handle, &answer, failed, MALFORMED);
	return failed ? failed : page.more && page.rows.entries;
}

leeward_entries *leeward_file_list(leeward_sandbox *sandbox, const char *path)
{
	struct lw_rows rows = {0};
	int more;

	do
		more = list_page(sandbox, path, &rows);
	while (more > 0);
	return lw_list(&rows, sizeof(leeward_entries), more);
}

leeward_entries *leeward_file_stat(leeward_sandbox *sandbox, const char *path, int follow)
{
	struct lw_file_stat_answer found = {0};
	struct lw_rows rows = {0};
	struct lw_answer answer;
	int failed = call(sandbox, path, LW_REQUEST(file_stat, ON(sandbox, path), .follow = follow != 0), &answer);

	if (failed)
		return NULL;
	failed = LW_READ(&answer.reply.ok, file_stat, &found) ? lw_row_add(&rows, &found.row, lw_entry_make) : -EBADMSG;
	return lw_list(&rows, sizeof(leeward_entries), lw_answered(sandbox->handle, &answer, failed, MALFORMED));
}

int leeward_file_mkdir(leeward_sandbox *sandbox, const char *path, int parents)
{
	return call_for_nothing(sandbox, path, LW_REQUEST(file_mkdir, ON(sandbox, path), .parents = parents != 0,
							  .there = parents != 0));
}

int leeward_file_remove(leeward_sandbox *sandbox, const char *path, int recursive)
{
	return call_for_nothing(sandbox, path, LW_REQUEST(file_remove, ON(sandbox, path), .timeout = LONG_S,
							  .recursive = recursive != 0));
}

int leeward_file_move(leeward_sandbox *sandbox, const char *path, const char *to)
{
	if (check_path("to", to))
		return LEEWARD_INVALID;
	return call_for_nothing(sandbox, path, LW_REQUEST(file_move, ON(sandbox, path), .timeout = LONG_S,
							  .to = lw_bytes_of(to)));
}

int leeward_file_copy(leeward_sandbox *sandbox, const char *path, const char *to)
{
	if (check_path("to", to))
		return LEEWARD_INVALID;
	return call_for_nothing(sandbox, path, LW_REQUEST(file_copy, ON(sandbox, path), .timeout = LONG_S,
							  .to = lw_bytes_of(to)));
}

/* --- searching and editing ------------------------------------------------------ */

static int check_pattern(const char *what, const char *pattern, size_t least)
{
	if (!pattern || strlen(pattern) < least || strlen(pattern) > LW_MAX_PATTERN)
		return lw_fail(LEEWARD_INVALID, "%s: NULL, empty, or longer than %d bytes", what, LW_MAX_PATTERN);
	return LEEWARD_OK;
}

leeward_names *leeward_file_glob(leeward_sandbox *sandbox, const char *path, const char *pattern, uint32_t most)
{
	struct lw_file_glob_answer found = {0};
	struct lw_rows rows = {0};
	struct lw_answer answer;
	leeward_names *names;
	int failed;

	if (lw_sandbox_check(sandbox) || check_pattern("pattern", pattern, 1) ||
	    call(sandbox, path, LW_REQUEST(file_glob, ON(sandbox, path), .timeout = LONG_S, .pattern = lw_bytes_of(pattern),
					   .most = most && most < LW_MAX_ROWS ? most : LW_MAX_ROWS), &answer))
		return NULL;
	failed = LW_READ(&answer.reply.ok, file_glob, &found) && found.names.entries <= LW_MAX_ROWS
			 ? lw_rows_add(&rows, &found.names, lw_name_make) : -EBADMSG;
	names = lw_list(&rows, sizeof *names, lw_answered(sandbox->handle, &answer, failed, MALFORMED));
	if (names)
		names->more = found.more;
	return names;
}

leeward_matches *leeward_file_grep(leeward_sandbox *sandbox, const char *path, const char *pattern, const char *include,
				   uint32_t flags, uint32_t most)
{
	struct lw_file_grep_answer found = {0};
	struct lw_rows rows = {0};
	struct lw_answer answer;
	leeward_matches *matches;
	int failed;

	if (lw_sandbox_check(sandbox) || check_pattern("pattern", pattern, 1) ||
	    (include && check_pattern("include", include, 0)))
		return NULL;
	if (flags & ~(uint32_t)(LEEWARD_GREP_LITERAL | LEEWARD_GREP_IGNORE_CASE)) {
		lw_fail(LEEWARD_INVALID, "flags: a field or flag is set that this version of libleeward doesn't know");
		return NULL;
	}
	if (call(sandbox, path, LW_REQUEST(file_grep, ON(sandbox, path), .timeout = LONG_S, .pattern = lw_bytes_of(pattern),
					   .include = lw_bytes_of(include), .literal = flags & LEEWARD_GREP_LITERAL,
					   .ignore_case = flags & LEEWARD_GREP_IGNORE_CASE,
					   .most = !most ? MOST_MATCHES : most < LW_MAX_ROWS ? most : LW_MAX_ROWS), &answer))
		return NULL;
	failed = LW_READ(&answer.reply.ok, file_grep, &found) && found.rows.entries <= LW_MAX_ROWS
			 ? lw_rows_add(&rows, &found.rows, lw_match_make) : -EBADMSG;
	matches = lw_list(&rows, sizeof *matches, lw_answered(sandbox->handle, &answer, failed, MALFORMED));
	if (matches)
		matches->more = found.more;
	return matches;
}

int64_t leeward_file_edit(leeward_sandbox *sandbox, const char *path, const void *before, size_t before_length,
			  const void *after, size_t after_length)
{
	struct lw_file_edit_answer edit = {0};
	struct lw_answer answer;
	int failed;

	if (!before || !before_length || before_length > LW_MAX_EDIT)
		return lw_fail(LEEWARD_INVALID, "before: NULL, empty, or more than 1 MiB");
	if ((after_length && !after) || after_length > LW_MAX_EDIT)
		return lw_fail(LEEWARD_INVALID, "after: NULL, and a length above 0, or more than 1 MiB");
	failed = call(sandbox, path, LW_REQUEST(file_edit, ON(sandbox, path), .old = {before, before_length},
						.new = {after, after_length}), &answer);
	if (failed)
		return failed;
	failed = lw_answered(sandbox->handle, &answer, LW_READ(&answer.reply.ok, file_edit, &edit) ? 0 : -EBADMSG, MALFORMED);
	return failed ? failed : (int64_t)edit.found;
}
