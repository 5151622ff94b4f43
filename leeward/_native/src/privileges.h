/* Capabilities and prctl options. */
#ifndef LW_PRIVILEGES_H
#define LW_PRIVILEGES_H

#include <sys/prctl.h>

int lw_prctl(int option, unsigned long a, unsigned long b);
int lw_capabilities_left(void);

#endif
