/* One call about the files of a sandbox: its request, and its failure. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "sandbox.h"
#include "text.h"

int lw_file_check(const leeward_sandbox *sandbox, const char *path)
{
	if (lw_sandbox_check(sandbox))
		return LEEWARD_INVALID;
	if (!path || !*path || strlen(path) > LW_MAX_PATH)
		return lw_fail(LEEWARD_INVALID, "path: NULL, empty, or longer than %d bytes", LW_MAX_PATH);
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
	return lw_fail_errno(LEEWARD_FILE, number);
}

/* Send the call that was begun. Returns a leeward_error; LEEWARD_FILE if the call failed in the sandbox. */
int lw_file_call(const leeward_sandbox *sandbox, const char *op, const char *path, struct lw_answer *ret_answer)
{
	int failed = lw_ask(sandbox->handle, op, ret_answer);
	struct lw_value number, why;

	if (failed || !lw_find(&ret_answer->reply.ok, "errno", &number))
		return failed;
	lw_find(&ret_answer->reply.ok, "why", &why);
	if (number.type != LW_INTEGER || number.integer < 0 || number.integer > 4095 || why.type != LW_TEXT)
		return lw_bad_answer(sandbox->handle, ret_answer, "the answer to a file call is malformed");
	failed = failed_call(path, (int)number.integer, &why);
	free(ret_answer->block);
	return failed;
}

int lw_file_call_for_nothing(const leeward_sandbox *sandbox, const char *op, const char *path)
{
	struct lw_answer answer;
	int failed = lw_file_call(sandbox, op, path, &answer);

	if (!failed)
		free(answer.block);
	return failed;
}

/* Free the answer, and turn *failed* (0, -EBADMSG or -ENOMEM) into a leeward_error. */
int lw_file_call_done(const leeward_sandbox *sandbox, struct lw_answer *answer, int failed)
{
	if (failed == -EBADMSG)
		return lw_bad_answer(sandbox->handle, answer, "a row of a file call's answer is malformed");
	free(answer->block);
	return failed ? lw_fail_no_memory() : LEEWARD_OK;
}
