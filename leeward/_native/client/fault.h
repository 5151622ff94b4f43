/* What the last failed call of a thread says: a code and one line of text.
 *
 * Runs in:   libleeward. */
#pragma once

/* Bytes of a text, with the NUL: a message of the daemon's 4,096 characters and change. */
#define LW_FAULT_TEXT 4608

int lw_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int lw_fail_as(int code, const char *text);
int lw_fail_no_memory(void);
