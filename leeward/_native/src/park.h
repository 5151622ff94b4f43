/* What stays of a process that waits for its end. See park.c. */
#pragma once

__attribute__((noreturn)) void lw_park(void);
