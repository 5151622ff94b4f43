/* Files in live sandboxes: glob, grep, edit and copy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "sandbox.h"

/* As leeward/wire/file_requests.py and file_answers.py have them; a test compares. */
#define MAX_PATTERN 4096
#define MAX_EDIT ((size_t)1 << 20)
#define MAX_ROWS 4000
#define MOST_MATCHES 1000

static int check_pattern(const char *what, const char *pattern, size_t least)
{
	if (!pattern || strlen(pattern) < least || strlen(pattern) > MAX_PATTERN)
		return lw_fail(LEEWARD_INVALID, "%s: NULL, empty, or longer than %d bytes", what, MAX_PATTERN);
	return LEEWARD_OK;
}

/* Read the rows of an answer, and whether there are more than was asked for. False if the answer is malformed. */
static bool rows_of(const struct lw_reply *reply, const char *name, struct lw_value *ret_rows, int32_t *ret_more)
{
	bool more;

	if (!lw_find(&reply->ok, name, ret_rows) || ret_rows->type != LW_ARRAY || !lw_answer_flag(reply, "more", &more))
		return false;
	*ret_more = more;
	return ret_rows->entries <= MAX_ROWS;
}

leeward_names *leeward_file_glob(leeward_sandbox *sandbox, const char *path, const char *pattern, uint32_t most)
{
	struct lw_answer answer;
	struct lw_value rows;
	leeward_names *names = NULL;
	int32_t more = 0;
	int failed;

	if (lw_sandbox_check(sandbox) || check_pattern("pattern", pattern, 1) || lw_file_check(sandbox, path))
		return NULL;
	LW_BEGIN(sandbox->handle, file_glob, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .timeout = LW_LONG_S,
		 .pattern = lw_bytes_of(pattern), .most = most && most < MAX_ROWS ? most : MAX_ROWS);
	if (lw_file_call(sandbox, "file_glob", path, &answer))
		return NULL;
	failed = rows_of(&answer.reply, "names", &rows, &more) ? lw_names_make(&rows, &names) : -EBADMSG;
	if (names)
		names->more = more;
	if (!lw_file_call_done(sandbox, &answer, failed))
		return names;
	leeward_free_names(names);
	return NULL;
}

leeward_matches *leeward_file_grep(leeward_sandbox *sandbox, const char *path, const char *pattern, const char *include,
				   uint32_t flags, uint32_t most)
{
	struct lw_answer answer;
	struct lw_value rows;
	leeward_matches *matches = NULL;
	int32_t more = 0;
	int failed;

	if (lw_sandbox_check(sandbox) || check_pattern("pattern", pattern, 1) ||
	    (include && check_pattern("include", include, 0)))
		return NULL;
	if (flags & ~(uint32_t)(LEEWARD_GREP_LITERAL | LEEWARD_GREP_IGNORE_CASE)) {
		lw_fail(LEEWARD_INVALID, "flags: a field or flag is set that this version of libleeward doesn't know");
		return NULL;
	}
	if (lw_file_check(sandbox, path))
		return NULL;
	LW_BEGIN(sandbox->handle, file_grep, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .timeout = LW_LONG_S,
		 .pattern = lw_bytes_of(pattern), .include = lw_bytes_of(include), .literal = flags & LEEWARD_GREP_LITERAL,
		 .ignore_case = flags & LEEWARD_GREP_IGNORE_CASE,
		 .most = !most ? MOST_MATCHES : most < MAX_ROWS ? most : MAX_ROWS);
	if (lw_file_call(sandbox, "file_grep", path, &answer))
		return NULL;
	failed = rows_of(&answer.reply, "rows", &rows, &more) ? lw_matches_make(&rows, &matches) : -EBADMSG;
	if (matches)
		matches->more = more;
	if (!lw_file_call_done(sandbox, &answer, failed))
		return matches;
	leeward_free_matches(matches);
	return NULL;
}

int64_t leeward_file_edit(leeward_sandbox *sandbox, const char *path, const void *before, size_t before_length,
			  const void *after, size_t after_length)
{
	struct lw_answer answer;
	int64_t found;
	int failed;

	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	if (!before || !before_length || before_length > MAX_EDIT)
		return lw_fail(LEEWARD_INVALID, "before: NULL, empty, or more than 1 MiB");
	if ((after_length && !after) || after_length > MAX_EDIT)
		return lw_fail(LEEWARD_INVALID, "after: NULL, and a length above 0, or more than 1 MiB");
	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_edit, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .old = {before, before_length},
		 .new = {after, after_length});
	failed = lw_file_call(sandbox, "file_edit", path, &answer);
	if (failed)
		return failed;
	if (!lw_answer_whole(&answer.reply, "found", 0, &found))
		return lw_bad_answer(sandbox->handle, &answer, "an edit's count is malformed");
	free(answer.block);
	return found;
}

int leeward_file_copy(leeward_sandbox *sandbox, const char *path, const char *to)
{
	if (!to || !*to || strlen(to) > LW_MAX_PATH)
		return lw_fail(LEEWARD_INVALID, "to: NULL, empty, or longer than %d bytes", LW_MAX_PATH);
	if (lw_file_check(sandbox, path))
		return LEEWARD_INVALID;
	LW_BEGIN(sandbox->handle, file_copy, LW_ABOUT(sandbox), .path = lw_bytes_of(path), .timeout = LW_LONG_S,
		 .to = lw_bytes_of(to));
	return lw_file_call_for_nothing(sandbox, "file_copy", path);
}
