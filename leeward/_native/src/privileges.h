/* Capabilities, prctl options, namespaces, names. See privileges.c. */
#ifndef LW_PRIVILEGES_H
#define LW_PRIVILEGES_H

#include <sys/prctl.h>

int lw_prctl(int option, unsigned long a, unsigned long b);
int lw_drop_capabilities(void);
int lw_drop_bounding(void);
int lw_capabilities_left(void);
int lw_sethostname(const char *name, unsigned length);

#endif
