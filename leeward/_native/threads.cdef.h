int lw_end_thread(int tid);
int lw_end_no_more(void);

#define SYS_futex ...
