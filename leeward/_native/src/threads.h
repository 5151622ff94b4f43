/* Ending another thread of one's own process. See threads.c. */
#pragma once

int lw_end_thread(int tid);
int lw_end_no_more(void);
