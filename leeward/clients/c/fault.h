/* The last error of a thread: a code and one line of text.
 *
 * Runs in:   libleeward. */
#pragma once

#include <stdbool.h>

/* Bytes of a text, with the NUL: a message of the daemon has at most 4,096 characters; some bytes are added. */
#define LW_FAULT_TEXT 4608

struct lw_fault {
	int code, number; /* the errno of a failed file call, or 0 */
	bool may_have_run;
	double retry_after; /* seconds after which the request should be sent again; below 0: the daemon named no time */
	char text[LW_FAULT_TEXT];
};

int lw_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int lw_fail_as(int code, const char *text);
int lw_fail_no_memory(void);
/* That of this thread, to add to it, or to keep it over a cleanup that may fail. */
struct lw_fault *lw_last_fault(void);
