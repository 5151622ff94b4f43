/* The last error of a thread: a code and one line of text.
 *
 * Runs in:   libleeward. */
#pragma once

#include <stdbool.h>

/* Bytes of a text, with the NUL: a message of the daemon has at most 4,096 characters; some bytes are added. */
#define LW_FAULT_TEXT 4608

int lw_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int lw_fail_as(int code, const char *text);
/* Set after how many seconds the request should be sent again; below 0: the daemon named no time. */
void lw_fail_until(double seconds);
int lw_fail_ran(int code, bool may_have_run);
int lw_fail_no_memory(void);
/* Set the errno of a failed file call, for the last error, which is *code*. Returns *code*. */
int lw_fail_errno(int code, int number);

/* A copy of this thread's last error, to restore it after a cleanup that may fail. */
struct lw_fault {
	int code, number;
	bool may_have_run;
	double retry_after;
	char text[LW_FAULT_TEXT];
};

struct lw_fault lw_fault_keep(void);
void lw_fault_restore(const struct lw_fault *fault);
