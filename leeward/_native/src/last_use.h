/* When nobody has a file any more. See last_use.c. */
#pragma once

int lw_last_uses(void);
int lw_last_use(int queue, int fd);
