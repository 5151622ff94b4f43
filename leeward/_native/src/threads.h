/* Ending another thread of one's own process. See threads.c. */
#ifndef LW_THREADS_H
#define LW_THREADS_H

int lw_end_thread(int tid);
int lw_end_no_more(void);

#endif
