#ifndef LW_FORK_H
#define LW_FORK_H

void lw_before_fork(void);
void lw_after_fork_parent(void);
void lw_after_fork_child(void);

#endif
