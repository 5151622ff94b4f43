#include "fault.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "leeward.h"

static _Thread_local int last_code;
static _Thread_local char last_text[LW_FAULT_TEXT];

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

		/* Cut between characters: back over the bytes that continue one, then its first. */
		while (end && ((uint8_t)last_text[end - 1] & 0xc0) == 0x80)
			end--;
		if (end && (uint8_t)last_text[end - 1] >= 0xc0)
			end--;
		last_text[end] = '\0';
	}
	last_code = code;
	return code;
}

/* The same with a text that is kept already, or that is this thread's own. */
int lw_fail_as(int code, const char *text)
{
	if (text != last_text) {
		size_t length = strnlen(text, sizeof last_text - 1);

		memmove(last_text, text, length);
		last_text[length] = '\0';
	}
	last_code = code;
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

int leeward_last_error_code(void)
{
	return last_code;
}
