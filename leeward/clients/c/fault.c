#include "fault.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "leeward.h"

static _Thread_local struct lw_fault last = {.retry_after = -1};

/* Whether a job whose call failed with *code* may have run. This is the default; callers that know more call lw_fail_ran.
 * LEEWARD_AWAY usually means that nothing was sent. */
static bool may_have_run(int code)
{
	return code == LEEWARD_NO_ANSWER || code == LEEWARD_BAD_REPLY || code == LEEWARD_NOT_YET ||
	       code == LEEWARD_REFUSED || code == LEEWARD_CANCELLED || code == LEEWARD_SANDBOX_OVER;
}

/* Set what a new error, whose text is set, has beside it. Returns the code. */
static int failed(int code)
{
	last.code = code;
	last.may_have_run = may_have_run(code);
	last.retry_after = -1;
	last.number = 0;
	return code;
}

/* Keep *code* and a text for this thread; returns the code. */
int lw_fail(int code, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(last.text, sizeof last.text, format, arguments);
	va_end(arguments);
	if (length >= (int)sizeof last.text) {
		size_t end = sizeof last.text - 1;

		/* Cut between two characters: remove the continuation bytes of the last one, then its first byte. */
		while (end && ((uint8_t)last.text[end - 1] & 0xc0) == 0x80)
			end--;
		if (end && (uint8_t)last.text[end - 1] >= 0xc0)
			end--;
		last.text[end] = '\0';
	}
	return failed(code);
}

/* As lw_fail, with a finished text, which may be this thread's last error itself. */
int lw_fail_as(int code, const char *text)
{
	if (text != last.text) {
		size_t length = strnlen(text, sizeof last.text - 1);

		memmove(last.text, text, length);
		last.text[length] = '\0';
	}
	return failed(code);
}

int lw_fail_no_memory(void)
{
	return lw_fail(LEEWARD_NO_MEMORY, "this process has no memory left");
}

struct lw_fault *lw_last_fault(void)
{
	return &last;
}

int leeward_last_error_errno(void)
{
	return last.number;
}

double leeward_last_error_retry_after(void)
{
	return last.retry_after;
}

const char *leeward_last_error(void)
{
	return last.text;
}

int leeward_last_error_may_have_run(void)
{
	return last.may_have_run;
}

int leeward_last_error_code(void)
{
	return last.code;
}
