/* What the last failed call of a thread says: a code and one line of text.
 *
 * Runs in:   libleeward. */
#pragma once

#include <stdbool.h>

/* Bytes of a text, with the NUL: a message of the daemon's 4,096 characters and change. */
#define LW_FAULT_TEXT 4608

int lw_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int lw_fail_as(int code, const char *text);
/* The daemon says after how many seconds the request may be taken; less than 0: it doesn't say. */
void lw_fail_until(double seconds);
int lw_fail_ran(int code, bool may_have_run);
int lw_fail_no_memory(void);
/* The errno of a file call that has failed. */
int lw_fail_errno(int code, int number);

/* The last error of this thread, kept while something is tidied up. */
struct lw_fault {
	int code, number;
	bool may_have_run;
	double retry_after;
	char text[LW_FAULT_TEXT];
};

struct lw_fault lw_fault_keep(void);
void lw_fault_restore(const struct lw_fault *fault);
