#include "fault.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "leeward.h"

static _Thread_local int last_code;
static _Thread_local int last_errno;
static _Thread_local bool last_may_have_run;
static _Thread_local double last_retry_after = -1;
static _Thread_local char last_text[LW_FAULT_TEXT];

/* Whether a job whose call failed with *code* may have run. This is the default; callers that know more call lw_fail_ran.
 * LEEWARD_AWAY usually means that nothing was sent. */
static bool may_have_run(int code)
{
	return code == LEEWARD_NO_ANSWER || code == LEEWARD_BAD_REPLY || code == LEEWARD_NOT_YET ||
	       code == LEEWARD_REFUSED || code == LEEWARD_CANCELLED || code == LEEWARD_SANDBOX_OVER;
}

/* Keep *code* and a text for this thread; returns the code. */
int lw_fail(int code, const char *format, ...)
{
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(last_text, sizeof last_text, format, arguments);
	va_end(arguments);
	if (length >= (int)sizeof last_text) {
		size_t end = sizeof last_text - 1;

		/* Cut between two characters: remove the continuation bytes of the last one, then its first byte. */
		while (end && ((uint8_t)last_text[end - 1] & 0xc0) == 0x80)
			end--;
		if (end && (uint8_t)last_text[end - 1] >= 0xc0)
			end--;
		last_text[end] = '\0';
	}
	last_code = code;
	last_may_have_run = may_have_run(code);
	last_retry_after = -1;
	last_errno = 0;
	return code;
}

/* As lw_fail, with a finished text, which may be this thread's last error itself. */
int lw_fail_as(int code, const char *text)
{
	if (text != last_text) {
		size_t length = strnlen(text, sizeof last_text - 1);

		memmove(last_text, text, length);
		last_text[length] = '\0';
	}
	last_code = code;
	last_may_have_run = may_have_run(code);
	last_retry_after = -1;
	last_errno = 0;
	return code;
}

void lw_fail_until(double seconds)
{
	last_retry_after = seconds;
}

int lw_fail_errno(int code, int number)
{
	last_errno = number;
	return code;
}

int leeward_last_error_errno(void)
{
	return last_errno;
}

struct lw_fault lw_fault_keep(void)
{
	struct lw_fault fault = {last_code, last_errno, last_may_have_run, last_retry_after, {0}};

	memcpy(fault.text, last_text, sizeof fault.text);
	return fault;
}

void lw_fault_restore(const struct lw_fault *fault)
{
	last_code = fault->code;
	last_errno = fault->number;
	last_may_have_run = fault->may_have_run;
	last_retry_after = fault->retry_after;
	memcpy(last_text, fault->text, sizeof last_text);
}

double leeward_last_error_retry_after(void)
{
	return last_retry_after;
}

/* Set for this thread's last error, which is *code*, whether the job may have run. Returns *code*. */
int lw_fail_ran(int code, bool ran)
{
	last_may_have_run = ran;
	return code;
}

int lw_fail_no_memory(void)
{
	return lw_fail(LEEWARD_NO_MEMORY, "this process has no memory left");
}

const char *leeward_last_error(void)
{
	return last_text;
}

int leeward_last_error_may_have_run(void)
{
	return last_may_have_run;
}

int leeward_last_error_code(void)
{
	return last_code;
}
